"""GPU metrics through NVML, over a stand-in for its bindings that fails as real drivers do."""

import ast
import inspect
import re
import sys
from pathlib import Path

import pynvml
import pytest
from prometheus_client.parser import text_string_to_metric_families

import fake_nvml as fake
from stepscope import device
from stepscope.device import DEVICE, XID, NvmlDevices, NvmlUnavailable, load_nvml
from stepsim.probes import DCGM

FakeNvml, gpu = fake.FakeNvml, fake.gpu

UTILIZATION, POWER = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE"
FB_USED, FB_FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
THROTTLE, MEMORY_TEMP = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_MEMORY_TEMP"
NOT_SUPPORTED, NO_PERMISSION = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION
LOST, UNKNOWN = pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN


def devices(nvml, **more):
    return NvmlDevices(nvml, hostname="node-0", **more)


def samples(text):
    """The parser adds a suffix to counters, which DCGM's names lack."""
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return [sample._replace(name=sample.name.removesuffix("_total")) for sample in found]


def values(text, name):
    """The values of a family by UUID."""
    return {sample.labels["UUID"]: sample.value for sample in samples(text) if sample.name == name}


def names(text):
    return {sample.name for sample in samples(text)}


def uuids(text):
    return {sample.labels["UUID"] for sample in samples(text)}


# -- a healthy machine


def test_a_healthy_gpu_reports_every_field_in_dcgms_unit():
    """Watts, millijoules, whole percents, MHz, °C and MiB, whatever NVML's own unit is."""
    assert {sample.name: sample.value for sample in samples(devices(FakeNvml(gpu())).text())} == {
        "DCGM_FI_DEV_SM_CLOCK": 1755,
        "DCGM_FI_DEV_MAX_SM_CLOCK": 1980,
        "DCGM_FI_DEV_MEM_CLOCK": 2619,
        "DCGM_FI_DEV_MEMORY_TEMP": 70,
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_POWER_USAGE": 523.456,
        "DCGM_FI_DEV_POWER_MGMT_LIMIT": 700,
        "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF": 700,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123_456_789,
        "DCGM_FI_DEV_GPU_UTIL": 97,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 41,
        "DCGM_FI_DEV_XID_ERRORS": 0,
        "DCGM_FI_DEV_FB_FREE": 9 * 1024,
        "DCGM_FI_DEV_FB_USED": 70 * 1024,
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 0x4,
        "DCGM_FI_DEV_PCIE_LINK_GEN": 5,
        "DCGM_FI_DEV_PCIE_LINK_WIDTH": 16,
        "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": 5,
        "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": 16,
    }


@pytest.mark.parametrize("text", [str, bytes])
def test_labels_are_dcgm_exporters_with_old_bindings_too(text):
    """Every series has the six labels, as text, also where the bindings return bytes."""
    found = samples(devices(FakeNvml(gpu(0), gpu(1), text=text)).text())
    assert {frozenset(sample.labels.items()) for sample in found} == {
        frozenset({
            "gpu": str(number), "UUID": f"GPU-{number:08d}", "pci_bus_id": f"00000000:0{'AB'[number]}:00.0",
            "device": f"nvidia{number}", "modelName": "NVIDIA H100 80GB HBM3", "hostname": "node-0",
        }.items())
        for number in (0, 1)
    }  # fmt: skip


def test_names_types_and_help_are_the_simulators():
    """A dashboard cannot tell this endpoint's families from the simulator's."""
    simulated = {metric.name: (metric.kind, metric.help) for metric in DCGM}
    assert {field.name: (field.kind, field.help) for field in DEVICE}.items() <= simulated.items()
    assert {name for name in simulated if "_DEV_" in name} == {field.name for field in DEVICE}


def test_only_the_chosen_gpus_are_read():
    """GPUs are chosen by UUID: of the others nothing but their identity is asked."""
    other, chosen = gpu(0), gpu(1)
    assert uuids(devices(FakeNvml(other, chosen), only=[chosen.uuid]).text()) == {chosen.uuid}
    assert "nvmlDeviceGetPowerUsage" not in other.calls


def test_values_are_read_at_each_scrape():
    """Nothing is remembered between readings but what is absent."""
    one = gpu()
    reader = devices(FakeNvml(one))
    reader.text()
    one.values["power"] = 100_000
    assert values(reader.text(), POWER) == {one.uuid: 100}


def test_a_machine_without_gpus_has_an_empty_page():
    """A driver without a device is no failure."""
    assert devices(FakeNvml()).text() == ""


# -- fields that are missing


def test_an_unsupported_field_is_absent_and_not_asked_again():
    """Not supported means never: the other GPU's series stays, and the driver is asked once."""
    without, whole = gpu(0), gpu(1)
    without.fails["nvmlDeviceGetTotalEnergyConsumption"] = NOT_SUPPORTED
    reader = devices(FakeNvml(without, whole))
    for _ in range(3):
        assert set(values(reader.text(), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")) == {whole.uuid}
    assert without.calls.count("nvmlDeviceGetTotalEnergyConsumption") == 1
    assert whole.calls.count("nvmlDeviceGetTotalEnergyConsumption") == 3


@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN, pynvml.NVML_ERROR_NO_DATA])
def test_a_field_that_fails_for_now_is_absent_and_asked_again(code):
    """A missing permission or a broken sensor costs one series, until it can be read."""
    one = gpu()
    one.fails["nvmlDeviceGetPowerUsage"] = code
    reader = devices(FakeNvml(one))
    text = reader.text()
    assert POWER not in names(text)
    assert UTILIZATION in names(text)
    one.fails.clear()
    assert POWER in names(reader.text())


@pytest.mark.parametrize("nothing", [2**32 - 1, 2**64 - 1])
def test_a_value_that_nvml_calls_not_available_is_absent(nothing):
    """All bits set is NVML's way to say N/A, not four billion watts."""
    assert POWER not in names(devices(FakeNvml(gpu(power=nothing))).text())


@pytest.mark.parametrize("celsius", [None, 0])
def test_memory_without_a_sensor_has_no_temperature(celsius):
    """The field's own result counts, and 0 °C is what drivers say without a sensor."""
    assert MEMORY_TEMP not in names(devices(FakeNvml(gpu(memory_temperature=celsius))).text())


def test_an_idle_gpu_reads_zero():
    """A zero that was measured is a zero."""
    one = gpu(utilization=(0, 0), reasons=0)
    text = devices(FakeNvml(one)).text()
    assert values(text, UTILIZATION) == values(text, THROTTLE) == {one.uuid: 0}


def test_throttle_reasons_are_read_under_either_name():
    """Old bindings lack the new name; new bindings on an old driver have it and fail."""
    old_bindings = FakeNvml(gpu(), missing=["nvmlDeviceGetCurrentClocksEventReasons"])
    old_driver, newest = gpu(), FakeNvml(gpu(), missing=["nvmlDeviceGetCurrentClocksThrottleReasons"])
    old_driver.fails["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    for nvml in (old_bindings, FakeNvml(old_driver), newest):
        assert list(values(devices(nvml).text(), THROTTLE).values()) == [4]


def test_memory_of_an_old_driver_is_read_in_the_first_version():
    """There the driver's reserve counts as used; nothing is lost but that distinction."""
    one = gpu()
    one.fails["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert values(devices(FakeNvml(one)).text(), FB_USED) == {one.uuid: 71 * 1024}


# -- GPUs that get lost


def test_a_gpu_lost_at_any_call_disappears_whole_and_comes_back():
    """Wherever in a reading it happens, none of its series stays, the other GPU's all do, and it may recover."""
    lost, other = gpu(0), gpu(1)
    reader = devices(FakeNvml(lost, other))
    whole = reader.text()
    lost.calls.clear()
    reader.text()
    calls = len(lost.calls)
    assert calls > 15
    for after in range(calls):
        lost.fails_after = after
        text = reader.text()
        assert uuids(text) == {other.uuid}, f"lost after {after} calls"
        assert names(text) == names(whole)
        lost.fails_after = lost.lost = None
        assert names(reader.text()) == names(whole)
        assert uuids(reader.text()) == {lost.uuid, other.uuid}


@pytest.mark.parametrize("code", [LOST, UNKNOWN, pynvml.NVML_ERROR_RESET_REQUIRED, NO_PERMISSION])
def test_a_gpu_that_gives_no_handle_is_left_out(code):
    """A lost GPU is still counted, and so is one that a container may not touch."""
    lost, other = gpu(0), gpu(1)
    lost.lost = code
    assert uuids(devices(FakeNvml(lost, other)).text()) == {other.uuid}


def test_a_gpu_whose_every_field_fails_is_lost():
    """A remembered XID alone does not keep a dead GPU on the page."""
    dead, other = gpu(0), gpu(1)
    dead.fails = {name: UNKNOWN for name in functions_used() if "Get" in name} | {"nvmlDeviceGetMemoryInfo_v2": UNKNOWN}
    for name in ("HandleByIndex", "UUID", "PciInfo", "Name"):
        del dead.fails[f"nvmlDeviceGet{name}"]
    assert uuids(devices(FakeNvml(dead, other)).text()) == {other.uuid}


def test_a_gpu_is_known_by_its_uuid_when_indices_move():
    """What one GPU lacks is not held against the one that takes over its index."""
    without, whole = gpu(0), gpu(1)
    without.fails["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    nvml = FakeNvml(without, whole)
    reader = devices(nvml)
    assert set(values(reader.text(), POWER)) == {whole.uuid}
    nvml.gpus.reverse()
    assert set(values(reader.text(), POWER)) == {whole.uuid}


def test_when_no_gpu_answers_the_scrape_fails_and_nvml_is_started_anew():
    """Silence would look like a machine without GPUs; a reloaded driver needs a new start."""
    one = gpu()
    nvml = FakeNvml(one)
    reader = devices(nvml)
    one.lost = LOST
    with pytest.raises(NvmlUnavailable, match=r"no GPU can be read: .*lost"):
        reader.text()
    one.lost = None
    assert uuids(reader.text()) == {one.uuid}
    assert nvml.inits == 1


def test_a_chosen_gpu_that_is_not_there_is_named():
    """A wrong UUID is an error that names it, not an empty page."""
    with pytest.raises(NvmlUnavailable, match="no GPU of GPU-typo can be read: not found"):
        devices(FakeNvml(gpu()), only=["GPU-typo"]).text()


# -- NVML itself


def test_nvml_that_stopped_fails_the_scrape_and_is_started_anew():
    """The caller can count the failure, and the next scrape works."""
    one = gpu()
    nvml = FakeNvml(one)
    reader = devices(nvml)
    reader.text()
    nvml.up = False
    with pytest.raises(NvmlUnavailable, match="Uninitialized"):
        reader.text()
    assert uuids(reader.text()) == {one.uuid}
    assert nvml.inits == 1


def test_nvml_that_does_not_start_again_keeps_failing_until_it_does():
    """While the driver is unloaded each scrape fails and says why; afterwards what is absent is found out anew."""
    one = gpu()
    one.fails["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    nvml = FakeNvml(one)
    reader = devices(nvml)
    reader.text()
    nvml.up, nvml.start_fails = False, pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(NvmlUnavailable, match="Uninitialized"):
        reader.text()
    for _ in range(2):
        with pytest.raises(NvmlUnavailable, match="kernel driver is not loaded"):
            reader.text()
    nvml.start_fails = None
    one.fails.clear()
    assert POWER in names(reader.text())


def test_nvml_that_stops_in_the_middle_of_a_gpu_is_no_lost_gpu():
    """A page of half the GPUs would be a lie when NVML is down for all."""
    one, two = gpu(0), gpu(1)
    two.fails["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_UNINITIALIZED
    with pytest.raises(NvmlUnavailable, match="Uninitialized"):
        devices(FakeNvml(one, two)).text()


def test_nvml_that_stops_while_events_are_fetched_fails_the_scrape():
    """Wherever in a reading it is noticed."""
    nvml = FakeNvml(gpu())
    reader = devices(nvml)
    reader.text()
    nvml.wait_fails = pynvml.NVML_ERROR_UNINITIALIZED
    with pytest.raises(NvmlUnavailable, match="Uninitialized"):
        reader.text()


def test_loading_without_the_package_says_what_to_install(monkeypatch):
    """The bindings are an extra."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlUnavailable, match=r"pip install 'stepscope\[nvml\]'"):
        load_nvml()


def test_loading_without_a_driver_says_what_is_missing(monkeypatch):
    """The real bindings, on a machine whose library cannot be opened."""

    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    with pytest.raises(NvmlUnavailable, match=r"libnvidia-ml\.so\.1 is missing: install the NVIDIA driver"):
        load_nvml()


def test_loading_returns_the_initialized_bindings(monkeypatch):
    """What it returns can be read at once."""
    nvml = FakeNvml(gpu())
    nvml.up = False
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert UTILIZATION in names(devices(load_nvml()).text())


# -- XIDs


def test_the_last_xid_of_a_gpu_stays():
    """Several events between two readings leave the last one, on their own GPU, until another comes."""
    sick, well = gpu(0), gpu(1)
    nvml = FakeNvml(sick, well)
    reader = devices(nvml)
    assert values(reader.text(), XID) == {sick.uuid: 0, well.uuid: 0}
    nvml.xid(sick, 63)
    nvml.xid(sick, 94)
    for _ in range(2):
        assert values(reader.text(), XID) == {sick.uuid: 94, well.uuid: 0}
    nvml.xid(sick, 31)
    assert values(reader.text(), XID) == {sick.uuid: 31, well.uuid: 0}


def test_a_storm_of_xids_does_not_hold_up_the_scrape():
    """A reading takes a bounded number of events and the next one goes on from there."""
    one = gpu()
    nvml = FakeNvml(one)
    reader = devices(nvml)
    reader.text()
    for number in range(device.MAX_EVENTS + 10):
        nvml.xid(one, number)
    assert values(reader.text(), XID) == {one.uuid: device.MAX_EVENTS - 1}
    assert values(reader.text(), XID) == {one.uuid: device.MAX_EVENTS + 9}


def test_without_event_sets_there_is_no_xid():
    """Not known is absent, not 0, and the rest of the page stands."""
    nvml = FakeNvml(gpu())
    nvml.sets_fail = NOT_SUPPORTED
    text = devices(nvml).text()
    assert XID not in names(text)
    assert UTILIZATION in names(text)


def test_a_gpu_without_events_has_no_xid_and_the_other_has():
    """Each GPU registers by itself."""
    without, whole = gpu(0), gpu(1)
    without.fails["nvmlDeviceRegisterEvents"] = NOT_SUPPORTED
    assert set(values(devices(FakeNvml(without, whole)).text(), XID)) == {whole.uuid}


def test_a_spoiled_event_set_is_made_anew():
    """After a GPU was lost the set fails for good: the others' next XID must still be seen, and no set leaks."""
    one = gpu()
    nvml = FakeNvml(one)
    reader = devices(nvml)
    reader.text()
    nvml.wait_fails = LOST
    reader.text()
    nvml.wait_fails = None
    nvml.xid(one, 79)
    assert values(reader.text(), XID) == {one.uuid: 79}
    assert nvml.sets == 1


def test_a_gpu_that_came_back_is_watched_again():
    """The set follows the GPUs that answer."""
    one, two = gpu(0), gpu(1)
    nvml = FakeNvml(one, two)
    reader = devices(nvml)
    reader.text()
    two.lost = LOST
    assert set(values(reader.text(), XID)) == {one.uuid}
    two.lost = None
    reader.text()
    nvml.xid(two, 48)
    assert values(reader.text(), XID) == {one.uuid: 0, two.uuid: 48}


# -- MIG


@pytest.fixture
def partitioned():
    """A GPU in MIG mode: two GPU instances, the first one with two compute instances."""
    one = gpu()
    one.instances = [
        fake.FakeInstance(gpu_instance=1, profile="1c.2g.20gb", used=2**30),
        fake.FakeInstance(gpu_instance=1, profile="1c.2g.20gb", used=2**30),
        fake.FakeInstance(gpu_instance=7, profile="1g.10gb", used=4 * 2**30),
    ]
    return one


def test_a_gpu_in_mig_mode_reports_what_its_instances_share(partitioned):
    """Power and temperature are the whole GPU's; utilization is not to be had; memory is the instances'."""
    whole = [s.name for s in samples(devices(FakeNvml(partitioned)).text()) if "GPU_I_ID" not in s.labels]
    lacking = {UTILIZATION, "DCGM_FI_DEV_MEM_COPY_UTIL", FB_USED, FB_FREE}
    assert sorted(whole) == sorted({field.name for field in DEVICE} - lacking)


def test_mig_instances_report_their_memory_once(partitioned):
    """Labelled as by dcgm-exporter; two compute instances of one GPU instance share its memory and its series."""
    found = [s for s in samples(devices(FakeNvml(partitioned)).text()) if "GPU_I_ID" in s.labels]
    used = [(s.labels["GPU_I_ID"], s.labels["GPU_I_PROFILE"], s.value) for s in found if s.name == FB_USED]
    assert used == [("1", "1c.2g.20gb", 1024), ("7", "1g.10gb", 4096)]
    assert {s.name for s in found} == {FB_USED, FB_FREE}
    assert {s.labels["UUID"] for s in found} == {partitioned.uuid}


def test_out_of_mig_mode_utilization_returns(partitioned):
    """What the GPU lacked in MIG mode is not held against it afterwards."""
    reader = devices(FakeNvml(partitioned))
    assert UTILIZATION not in names(reader.text())
    partitioned.instances = []
    text = reader.text()
    assert values(text, UTILIZATION) == {partitioned.uuid: 97}
    assert "GPU_I_ID" not in text


# -- the real bindings


def names_used(pattern):
    """Every attribute or string of the module that is such a name as a whole."""
    for node in ast.walk(ast.parse(Path(device.__file__).read_text(encoding="utf-8"))):
        name = getattr(node, "attr", None) or getattr(node, "value", None)
        if isinstance(name, str) and re.fullmatch(pattern, name):
            yield name


def functions_used():
    """Every NVML function that the module calls."""
    return set(names_used(r"nvml(Init|Shutdown|Device[A-Z]\w+|EventSet[A-Z]\w+)"))


def test_every_function_exists_in_the_real_bindings():
    """By name, in the package that the extra installs."""
    used = functions_used()
    assert len(used) > 20
    assert {name for name in used if not callable(getattr(pynvml, name, None))} == set()


def test_every_constant_exists_in_the_real_bindings():
    """Constants, exception classes and event types too."""
    used = set(names_used(r"NVML_[A-Z]\w+|NVMLError\w*|nvmlMemory_\w+|nvmlEventType\w+"))
    assert {"NVML_CLOCK_SM", "NVML_FI_DEV_MEMORY_TEMP", "NVMLError_FunctionNotFound", "nvmlMemory_v2"} <= used
    assert {name for name in used if not hasattr(pynvml, name)} == set()


def test_codes_and_value_types_are_the_real_ones():
    """The numbers of nvml.h, as the bindings have them."""
    assert {code.name: getattr(pynvml, f"NVML_ERROR_{code.name}") for code in device.Code} == {
        code.name: code.value for code in device.Code
    }
    types = ("DOUBLE", "UNSIGNED_INT", "UNSIGNED_LONG", "UNSIGNED_LONG_LONG", "SIGNED_LONG_LONG", "SIGNED_INT",
             "UNSIGNED_SHORT")  # fmt: skip
    assert [getattr(pynvml, f"NVML_VALUE_TYPE_{name}") for name in types] == list(range(len(device.VALUE_MEMBER)))
    members = dict(pynvml.c_nvmlValue_t._fields_)
    assert list(members) == list(device.VALUE_MEMBER)
    assert {pynvml.NVML_VALUE_NOT_AVAILABLE_uint.value, pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value} == set(
        device.NOT_AVAILABLE
    )


def test_the_stand_in_has_the_real_arguments():
    """Each of its functions takes what the real one takes, by the same names, and it has every one that is used."""
    stands_in = {name: getattr(FakeNvml, name) for name in dir(FakeNvml) if name.startswith("nvml")}
    assert functions_used() <= stands_in.keys()
    for name, function in stands_in.items():
        _, *arguments = inspect.signature(function).parameters
        assert arguments == list(inspect.signature(inspect.unwrap(real(name))).parameters), name


def real(name):
    """A function of the bindings, without the wrapper that some have to turn bytes into text."""
    function = getattr(pynvml, name)
    wrapped = [cell.cell_contents for cell in function.__closure__ or () if callable(cell.cell_contents)]
    return wrapped[0] if wrapped else function


def test_structures_have_the_members_that_are_read():
    """The stand-in builds most of them from the bindings; this holds for the rest."""
    members = {
        pynvml.nvmlPciInfo_t: {"busId"},
        pynvml.c_nvmlUtilization_t: {"gpu", "memory"},
        pynvml.c_nvmlMemory_v2_t: {"used", "free", "reserved"},
        pynvml.c_nvmlEventData_t: {"device", "eventType", "eventData"},
        pynvml.c_nvmlFieldValue_t: {"nvmlReturn", "valueType", "value"},
    }
    for structure, read in members.items():
        assert read <= {name for name, *_ in structure._fields_}, structure.__name__
