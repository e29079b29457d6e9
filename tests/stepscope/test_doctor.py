"""Node acceptance, on replayed outputs of machines well and sick, and once on this one."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from recorded_machine import GIB, MISSING, TIMEOUT, RecordedMachine, nvlink_status, recorded, smi_log, uevent
from stepscope.cli import parser
from stepscope.doctor import CHECKS, LocalMachine, acceptance
from stepscope.doctor.command import doctor, wants_colour
from stepscope.doctor.finding import STATUSES
from stepscope.doctor.machine import Disk, Output
from stepscope.doctor.report import as_metrics, as_table, quarantine
from stepscope.doctor.sampling import READ_BYTES, sample

ROOT = Path(__file__).parents[2]
NAMES = [check.name for check in CHECKS]
ON_REQUEST = {"dataset", "nccl"}
GPU_CHECKS = {check.name for check in CHECKS if check.needs != "nothing"}
WIDTH = "pci/pci_gpu_link_info/link_widths/current_link_width"
GENERATION = "pci/pci_gpu_link_info/pcie_gen/current_link_gen"
LIMIT = "gpu_power_readings/current_power_limit"
GONE = {path: None for path in RecordedMachine().files if path.endswith("/uevent")}


def examine(machine, **asked):
    return acceptance(machine, name="gpu-01", progress=lambda message: None, **asked)


def check(name, machine, **asked):
    return next(result for result in examine(machine, **asked).results if result.name == name)


def with_smi(text, **more):
    return RecordedMachine({"nvidia-smi -q -x": Output(text=text), **more})


def with_gpus(changes):
    return with_smi(smi_log(changes))


def every_gpu(changes, gpus=8):
    return {gpu: changes for gpu in range(gpus)}  # noqa: C420  # the changes are never changed


def no_gpu():
    nothing = dict.fromkeys(RecordedMachine().outputs, MISSING)
    return RecordedMachine(nothing, GONE)


def statuses(report):
    return {result.name: result.status for result in report.results}


# The whole


def test_a_healthy_node_passes_every_check():
    """Eight H100, idle, with nothing to do and nothing to warn of."""
    report = examine(RecordedMachine())
    assert statuses(report) == {name: "not_applicable" if name in ON_REQUEST else "pass" for name in NAMES}
    assert [result.next_step for result in report.results if result.next_step] == []
    assert report.status == "pass"
    assert check("gpu", RecordedMachine()).found == "8 × NVIDIA H100 80GB HBM3"


def test_without_a_gpu_the_host_is_examined_all_the_same():
    """No nvidia-smi and nothing on the bus is no fault: the GPU checks do not apply, the others are made."""
    report = examine(no_gpu())
    found = statuses(report)
    assert {name for name, status in found.items() if status == "not_applicable"} == GPU_CHECKS | ON_REQUEST
    assert {result.found for result in report.results if result.name in GPU_CHECKS} == {"no NVIDIA GPU here"}
    assert report.status == "pass"


def test_gpus_that_were_asked_for_and_are_not_there_are_a_failure():
    """--gpus 8 makes it a node with GPUs, whatever the machine says."""
    assert "no nvidia-smi" in check("gpu", no_gpu(), gpus_expected=8).found
    assert examine(no_gpu(), gpus_expected=8).status == "fail"
    assert check("gpu", RecordedMachine(), gpus_expected=4).found == "8 GPUs answer, 4 were asked for"


@pytest.mark.parametrize(
    "garbage", ["", "Segmentation fault", "<a>", "\x00\ufffd", "<nvidia_smi_log><gpu></nvidia_smi_log>"]
)
def test_no_output_whatever_ends_the_command(garbage):
    """Every program and every file says something senseless: each check still has a result, and none is a pass by luck."""
    machine = RecordedMachine()
    machine.outputs = dict.fromkeys([*machine.outputs, "sampling", "all_reduce_perf"], Output(text=garbage))
    machine.files = dict.fromkeys(machine.files, garbage)
    report = examine(machine, data="/data", nccl=True, gpus_expected=8)
    assert [result.name for result in report.results] == NAMES
    assert {name for name, status in statuses(report).items() if status == "pass"} <= {"shm", "xid"}
    assert statuses(report)["gpu"] == "fail"
    assert not [result for result in report.results if "the check itself failed" in result.found]


def test_a_check_that_breaks_is_its_own_warning_and_costs_no_other(monkeypatch):
    """A bug in one check is said in its place."""
    machine = RecordedMachine()
    monkeypatch.setattr(machine, "disk", lambda path: 1 / 0)
    report = examine(machine)
    broken = next(result for result in report.results if result.name == "shm")
    assert (broken.status, broken.found) == ("warn", "the check itself failed: ZeroDivisionError: division by zero")
    assert len(report.results) == len(CHECKS)


# The driver


@pytest.mark.parametrize(
    ("exit_status", "says", "found"),
    [
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "driver is not loaded"),
        (15, "Unable to determine the device handle for GPU0000:9D:00.0: GPU is lost.", "fallen off the bus"),
        (18, "Failed to initialize NVML: Driver/library version mismatch", "differ in version"),
        (6, "No devices were found", "finds no GPU"),
        (255, "Unknown error", "exited with 255: Unknown error"),
    ],
)
def test_a_driver_that_does_not_answer_fails_with_what_its_exit_status_means(exit_status, says, found):
    """The other GPU checks say that they could not measure; the kernel log is read nevertheless."""
    machine = RecordedMachine({"nvidia-smi": Output(exit_status=exit_status, text=says + "\n")})
    machine.outputs = {**machine.outputs, "nvidia-smi -q -x": machine.outputs["nvidia-smi"]}
    report = examine(machine)
    assert found in check("gpu", machine).found
    assert statuses(report)["gpu"] == "fail"
    assert {status for name, status in statuses(report).items() if name in GPU_CHECKS - {"gpu", "xid"}} == {
        "not_applicable"
    }
    assert statuses(report)["xid"] == "pass"


def test_a_driver_that_hangs_fails():
    """nvidia-smi that does not come back is the commonest sign of a lost GPU."""
    result = check("gpu", RecordedMachine({"nvidia-smi -q -x": TIMEOUT}))
    assert (result.status, result.found) == ("fail", "nvidia-smi did not answer in time")
    assert "Xid" in result.next_step


def test_gpus_without_nvidia_smi_fail():
    """The bus knows of GPUs, and nobody installed their driver."""
    result = check("gpu", RecordedMachine({"nvidia-smi -q -x": MISSING}))
    assert (result.status, result.found) == ("fail", "no nvidia-smi; 8 NVIDIA GPUs on the PCI bus")


def test_a_gpu_on_the_bus_that_does_not_answer_fails():
    """Seven of eight; an NVSwitch, and a GPU that was handed to a virtual machine, are not counted."""
    result = check("gpu", with_smi(smi_log(gpus=7)))
    assert (result.status, result.found) == ("fail", "7 GPUs answer, 8 are on the PCI bus")
    handed_over = {"/sys/bus/pci/devices/0000:df:00.0/uevent": uevent("2330", "30200", driver="vfio-pci")}
    machine = RecordedMachine({"nvidia-smi -q -x": Output(text=smi_log(gpus=7))}, handed_over)
    assert check("gpu", machine).status == "pass"


def test_a_lost_gpu_that_is_still_listed_fails():
    """An error stands where its name should be."""
    result = check("gpu", with_gpus({4: {"product_name": "Unknown Error"}}))
    assert (result.status, result.found) == ("fail", "GPU 4: says 'Unknown Error'")


def test_a_warning_around_the_xml_does_not_hide_the_gpus():
    """A corrupt infoROM is said on the same output, with exit status 14: a warning, and everything else is measured."""
    text = smi_log() + "WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n"
    machine = RecordedMachine({"nvidia-smi -q -x": Output(text=text, exit_status=14)})
    result = check("gpu", machine)
    assert (result.status, "infoROM is corrupted" in result.found) == ("warn", True)
    assert statuses(examine(machine))["pcie"] == "pass"


def test_mig_instances_are_counted_and_their_links_do_not_apply():
    """In MIG mode GPUs do not talk to one another; what the driver then does not report is no failure."""
    machine = with_smi(recorded("a100-mig.xml"))
    report = examine(machine, gpus_expected=1)
    assert check("gpu", machine, gpus_expected=1).found == "1 × NVIDIA A100-SXM4-80GB (1 in MIG mode, 2 instances)"
    found = statuses(report)
    assert (found["nvlink"], found["pcie"], found["power_limit"], found["ecc"]) == ("not_applicable", *["pass"] * 3)


def test_an_older_driver_is_read_as_well():
    """Version 11 of the format has other names for power and throttle reasons, and no slot's generation."""
    found = statuses(examine(with_smi(recorded("t4-v11.xml")), gpus_expected=1))
    assert [found[name] for name in ("gpu", "versions", "pcie", "throttle", "power_limit", "ecc")] == [
        *("pass", "pass", "warn", "pass", "pass", "pass")
    ]


# Versions


@pytest.mark.parametrize(
    ("packages", "head", "status", "found"),
    [
        (
            {"torch": "2.6.0+cu124", "nvidia-nccl-cu12": "2.21.5"},
            ("560.35.03", "12.6"),
            "pass",
            "NCCL 2.21.5 for CUDA 12",
        ),
        ({"torch": "2.8.0", "nvidia-cuda-runtime-cu12": "12.8.90"}, ("535.183.01", "12.2"), "warn", "minor-version"),
        ({"torch": "2.9.0+cu130"}, ("560.35.03", "12.6"), "fail", "CUDA 13 needs driver 580 or later"),
        ({"torch": "2.9.0+cu130"}, ("580.65.06", "13.0"), "pass", "torch 2.9.0+cu130 for CUDA 13.0"),
        ({"torch": "1.13.1+cu117"}, ("560.35.03", "12.6"), "fail", "Hopper GPUs need CUDA 11.8 or later"),
        (
            {"torch": "2.6.0+cu124", "nvidia-nccl-cu13": "2.28.3"},
            ("560.35.03", "12.6"),
            "fail",
            "NCCL is built for CUDA 13",
        ),
        ({"torch": "2.13.0+cpu"}, ("560.35.03", "12.6"), "warn", "build without CUDA"),
        ({}, ("560.35.03", "12.6"), "pass", "no torch here"),
        ({}, ("560.35.03", "ERR!"), "warn", "<cuda_version> is 'ERR!', no version"),
    ],
)
def test_driver_cuda_and_nccl_must_fit(packages, head, status, found):
    """NVIDIA's tables of least drivers and of CUDA by architecture; within a major release an older driver will do."""
    outputs = {"nvidia-smi -q -x": Output(text=smi_log(head=head))}
    result = check("versions", RecordedMachine(outputs, packages=packages))
    assert (result.status, found in result.found) == (status, True), result.found


# Links and clocks


def test_a_link_downgraded_to_gen_3_by_8_fails():
    """A GPU that is seated badly; it is named with what it has and what it could have."""
    result = check("pcie", with_gpus({3: {WIDTH: "8x", GENERATION: "3"}}))
    assert (result.status, result.found) == ("fail", "GPU 3: gen 3 of 5, ×8 of ×16")


def test_a_slow_link_of_an_idle_gpu_is_only_a_warning():
    """All GPUs lower the generation while they sleep; under load the same is a failure."""
    asleep = every_gpu({GENERATION: "1", "performance_state": "P8"})
    result = check("pcie", with_gpus(asleep))
    assert (result.status, result.found) == ("warn", "GPU 0, 1, 2, 3, 4, 5, 6, 7: gen 1 of 5, ×16 of ×16 while idle")
    assert "measure again under load" in result.next_step
    working = every_gpu({GENERATION: "1", "utilization/gpu_util": "97 %"})
    assert check("pcie", with_gpus(working)).status == "fail"


def test_a_link_slower_than_that_of_its_likes_fails_even_when_idle():
    """Seven GPUs in the same performance state run at generation 5."""
    assert check("pcie", with_gpus({6: {GENERATION: "4"}})).found == "GPU 6: gen 4 of 5, ×16 of ×16"
    assert check("pcie", with_gpus({6: {GENERATION: "4"}})).status == "fail"
    assert check("pcie", with_gpus({6: {GENERATION: "4", "performance_state": "P8"}})).status == "warn"


def test_a_gpu_in_a_slower_slot_is_a_warning():
    """The maximum is that of both together, and so hides it."""
    folder = "pci/pci_gpu_link_info/pcie_gen/"
    slot = {folder + "max_host_link_gen": "4", folder + "max_link_gen": "4", GENERATION: "4"}
    result = check("pcie", with_gpus(every_gpu(slot)))
    assert (result.status, result.found.partition(": ")[2]) == ("warn", "a gen 5 GPU in a gen 4 slot")


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("gpu_idle", "pass"),
        ("sw_power_cap", "pass"),
        ("hw_slowdown", "fail"),
        ("sw_thermal_slowdown", "fail"),
        ("hw_thermal_slowdown", "fail"),
        ("hw_power_brake_slowdown", "fail"),
    ],
)
def test_only_slowdowns_are_bad_reasons(reason, status):
    """Idle and the power cap are what a healthy GPU shows."""
    result = check("throttle", with_gpus({2: {f"clocks_event_reasons/clocks_event_reason_{reason}": "Active"}}))
    assert (result.status, "GPU 2" in result.found) == (status, status == "fail")


def test_one_capped_gpu_fails_and_all_capped_alike_are_a_warning():
    """One below its likes is a straggler; all of them may be a decision."""
    one = check("power_limit", with_gpus({5: {LIMIT: "500.00 W"}}))
    assert (one.status, one.found) == ("fail", "GPU 5: limited to 500 W of 700 W")
    every = check("power_limit", with_gpus(every_gpu({LIMIT: "500.00 W"})))
    assert every.status == "warn"


@pytest.mark.parametrize(
    ("path", "value", "status"),
    [
        ("remapped_rows/remapped_row_failure", "Yes", "fail"),
        ("remapped_rows/remapped_row_pending", "Yes", "fail"),
        ("gpu_recovery_action", "Drain and Reset", "fail"),
        ("gpu_recovery_action", "None", "pass"),
        ("ecc_errors/volatile/dram_uncorrectable", "2", "warn"),
        ("ecc_mode/current_ecc", "Disabled", "warn"),
    ],
)
def test_memory_that_needs_a_reset_or_a_replacement_fails(path, value, status):
    """A remap that waits is cured by a reset, for which this is the moment."""
    assert check("ecc", with_gpus({1: {path: value}})).status == status


def test_an_element_that_is_gone_or_is_no_number_is_named():
    """The format changed: the check warns, says what it did not understand, and does not take it for health."""
    result = check("pcie", with_gpus({0: {WIDTH: "wide"}}))
    assert (result.status, "'wide', which is no number" in result.found) == ("warn", True)
    result = check("power_limit", with_gpus({7: {"gpu_power_readings": None}}))
    assert (result.status, "<gpu_power_readings/current_power_limit> for GPU 7" in result.found) == ("warn", True)
    result = check("throttle", with_gpus({0: {"clocks_event_reasons/clocks_event_reason_hw_slowdown": "Perhaps"}}))
    assert (result.status, "neither Active nor Not Active" in result.found) == ("warn", True)


# NVLink and topology


def test_an_nvlink_that_is_down_fails():
    """The GPU is named, with how many links are up; a link that is slower than the others is a warning."""
    down = {"nvidia-smi nvlink --status": Output(text=nvlink_status({(2, 7): "<inactive>", (2, 8): "<inactive>"}))}
    result = check("nvlink", RecordedMachine(down))
    assert (result.status, result.found) == ("fail", "GPU 2: 16 of 18 NVLinks up")
    slow = {"nvidia-smi nvlink --status": Output(text=nvlink_status({(0, 3): "13.281 GB/s"}))}
    result = check("nvlink", RecordedMachine(slow))
    assert (result.status, result.found) == ("warn", "GPU 0: 1 links at 13.281 GB/s, others at 26.562")


def test_nvlinks_that_are_all_down_fail_where_the_gpus_are_wired():
    """An SXM node whose fabric never came up looks, to nvidia-smi, as if it had no NVLink; a node of cards has none."""
    inactive = "NVML: Unable to retrieve NVLink information as all links are inActive\n"
    text = "".join(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})\n{inactive}" for gpu in range(8))
    down = Output(text=text)
    result = check("nvlink", RecordedMachine({"nvidia-smi nvlink --status": down}))
    assert (result.status, result.found) == ("fail", "GPU 0, 1, 2, 3, 4, 5, 6, 7: 0 of 18 NVLinks up")
    cards = smi_log(every_gpu({"product_name": "NVIDIA L40S", "fabric/state": "N/A"}))
    result = check("nvlink", with_smi(cards, **{"nvidia-smi nvlink --status": down}))
    assert (result.status, result.found) == ("not_applicable", "no NVLink here")


def test_a_fabric_that_is_not_ready_fails():
    """CUDA does not start before the fabric manager has registered the GPU."""
    result = check("nvlink", with_gpus({0: {"fabric/state": "In Progress"}}))
    assert (result.status, result.found) == ("fail", "GPU 0: NVLink fabric: In Progress")


def test_a_wired_gpu_that_reaches_the_others_over_pcie_fails():
    """The matrix of a node on which GPU 2's links did not come up: the pairs are named."""
    matrix = recorded("topo-h100.txt").splitlines()
    row = matrix[3].split("\t")
    matrix[3] = "\t".join(row[:1] + [c.replace("NV18", "NODE" if gpu < 4 else "SYS") for gpu, c in enumerate(row[1:])])
    for line in (1, 2, 4, 5, 6, 7, 8):
        row = matrix[line].split("\t")
        row[3] = "NODE" if line < 5 else "SYS"
        matrix[line] = "\t".join(row)
    result = check("topology", RecordedMachine({"nvidia-smi topo -m": Output(text="\n".join(matrix))}))
    assert result.status == "fail"
    assert "GPUs 2–4, 2–5, 2–6, 2–7 cross NUMA nodes instead of NVLink" in result.found
    assert "GPUs 0–2, 1–2, 2–3 cross host bridges instead of NVLink" in result.found


def test_cards_whose_pairs_cross_numa_nodes_are_a_warning():
    """They are built so; the ranks can be placed accordingly."""
    matrix = "\x1b[4m\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    matrix += "GPU0\t X \tPIX\tSYS\t0-31\t0\t\tN/A\nGPU1\tPIX\t X \tSYS\t0-31\t0\t\tN/A\nGPU2\tSYS\tSYS\t X \t32-63\t1\t\tN/A\n"
    cards = smi_log(every_gpu({"product_name": "NVIDIA L40S"}, 3), gpus=3)
    result = check("topology", with_smi(cards, **{"nvidia-smi topo -m": Output(text=matrix)}))
    assert (result.status, result.found) == ("warn", "GPUs 0–2, 1–2 cross NUMA nodes")


# The kernel log


def test_xid_79_in_the_log_fails():
    """With the GPU's address and what it means; the page fault of some program before it is not held against the node."""
    result = check("xid", RecordedMachine({"dmesg": Output(text=recorded("dmesg-xid.txt"))}))
    assert (result.status, result.found) == ("fail", "Xid 79 on 0000:9b:00: GPU has fallen off the bus")


def test_an_xid_that_no_table_has_is_a_warning():
    """And a fatal SXid of an NVSwitch a failure, one that is not fatal nothing."""
    log = "[1.0] NVRM: Xid (PCI:0000:1b:00): 63, pid=1, Row Remapper: New row marked for remapping\n" * 2
    result = check("xid", RecordedMachine({"dmesg": Output(text=log)}))
    assert (result.status, result.found) == ("warn", "Xid 63 on 0000:1b:00, 2 times")
    log = "[1.0] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): {}, Link 46 data\n"
    result = check("xid", RecordedMachine({"dmesg": Output(text=log.format("20034, Fatal"))}))
    assert (result.status, result.found) == ("fail", "SXid 20034 on NVSwitch 0000:05:00.0: fatal")
    assert check("xid", RecordedMachine({"dmesg": Output(text=log.format("28006, Non-fatal"))})).status == "pass"


def test_where_dmesg_is_not_allowed_the_journal_is_read():
    """And where that shows nothing either, the check says so rather than pass."""
    refused = {"dmesg": Output(exit_status=1, errors="dmesg: read kernel buffer failed: Operation not permitted\n")}
    journal = {"journalctl -k": Output(text=recorded("dmesg-xid.txt"))}
    assert check("xid", RecordedMachine(refused | journal)).status == "fail"
    result = check("xid", RecordedMachine(refused | {"journalctl -k": Output()}))
    assert (result.status, "Operation not permitted, journalctl shows nothing" in result.found) == ("warn", True)


# The host


def governors(name, driver):
    folder = "/sys/devices/system/cpu/"
    files = {f"{folder}cpu{cpu}/cpufreq/scaling_governor": f"{name}\n" for cpu in range(224)}
    return RecordedMachine(files=files | {folder + "cpu0/cpufreq/scaling_driver": f"{driver}\n"})


def test_powersave_that_pins_the_lowest_clock_fails():
    """Under acpi-cpufreq it does; intel_pstate's powersave follows the load, and is a warning as ondemand is."""
    result = check("governor", governors("powersave", "acpi-cpufreq"))
    assert (result.status, result.found) == ("fail", "powersave on 224 CPUs (acpi-cpufreq)")
    assert check("governor", governors("powersave", "intel_pstate")).status == "warn"
    assert check("governor", governors("ondemand", "acpi-cpufreq")).status == "warn"


def test_a_quota_of_two_cpus_for_eight_gpus_fails():
    """The tightest quota on the way up counts, in either version of cgroups; the status depends on CPUs per GPU."""
    v2 = {"/sys/fs/cgroup/system.slice/cpu.max": "200000 100000\n"}
    result = check("cpu_quota", RecordedMachine(files=v2))
    assert (result.status, result.found) == ("fail", "2 CPUs for 8 ranks (224 allowed, quota of 2)")
    assert result.expected == "48 CPUs or more, 16 at least"
    outer = {"/sys/fs/cgroup/system.slice/cpu.max": "9600000 100000\n", "/sys/fs/cgroup/cpu.max": "400000 100000\n"}
    assert "quota of 4)" in check("cpu_quota", RecordedMachine(files=outer)).found
    v1 = {
        "/proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n0::/\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "3200000\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "-1\n",
    }
    result = check("cpu_quota", RecordedMachine(files=v1))
    assert (result.status, result.found) == ("warn", "32 CPUs for 8 ranks (224 allowed, quota of 32)")
    strange = {"/sys/fs/cgroup/system.slice/cpu.max": "lots\n"}
    assert "CPU quota is 'lots'" in check("cpu_quota", RecordedMachine(files=strange)).found


def test_a_cpuset_limits_as_a_quota_does():
    """And one that leaves out a GPU's NUMA node is said by another check."""
    machine = RecordedMachine(files={"/proc/self/status": "Cpus_allowed_list:\t0-11\n"})
    assert check("cpu_quota", machine).found == "12 CPUs for 8 ranks (12 allowed, no quota)"
    result = check("numa", machine)
    assert (result.status, result.found) == ("warn", "GPU 4, 5, 6, 7: no CPU of its NUMA node 1 may be used")


def test_a_gpu_whose_numa_node_the_bios_does_not_say_is_a_warning():
    """The kernel writes -1."""
    result = check("numa", RecordedMachine(files={"/sys/bus/pci/devices/0000:1b:00.0/numa_node": "-1\n"}))
    assert (result.status, result.found) == ("warn", "GPU 0: its NUMA node is not known")


@pytest.mark.parametrize(("available", "status"), [(90, "pass"), (40, "warn"), (5, "fail")])
def test_memory_that_something_else_holds(available, status):
    """Before a job most of it is free."""
    meminfo = f"MemTotal: 100000000 kB\nMemAvailable: {available}000000 kB\n"
    assert check("memory", RecordedMachine(files={"/proc/meminfo": meminfo})).status == status


def test_huge_pages_warn_only_where_they_cost():
    """Compaction at every fault, or a reserve that nobody uses; madvise, always and never alone are fine."""
    folder = "/sys/kernel/mm/transparent_hugepage/"
    stalls = {folder + "enabled": "[always] madvise never\n", folder + "defrag": "[always] defer madvise never\n"}
    assert check("hugepages", RecordedMachine(files=stalls)).status == "warn"
    for chosen in ("[always] madvise never", "always [madvise] never", "always madvise [never]"):
        assert check("hugepages", RecordedMachine(files={folder + "enabled": chosen})).status == "pass"
    reserve = "MemTotal: 100000000 kB\nMemAvailable: 60000000 kB\nHugePages_Free: 16384\nHugepagesize: 2048 kB\n"
    assert "34% of memory reserved" in check("hugepages", RecordedMachine(files={"/proc/meminfo": reserve})).found


@pytest.mark.parametrize(
    ("total", "free", "status"), [(0.0625, 0.0625, "fail"), (4, 4, "warn"), (100, 30, "warn"), (100, 90, "pass")]
)
def test_shared_memory_of_a_container_is_too_small(total, free, status):
    """64 MiB is Docker's default and kills loader workers; less than 1 GiB a rank, or left-overs, are a warning."""
    shm = Disk(total_bytes=int(total * GIB), free_bytes=int(free * GIB))
    assert check("shm", RecordedMachine(shm=shm)).status == status


# The dataset


def sampled(**said):
    plain = {"files": 5000, "listed_all": True, "small_files": 10, "read_seconds": [0.002] * 64, "unreadable": 0}
    return RecordedMachine({"stepscope.doctor.sampling": Output(text=json.dumps(plain | said))})


@pytest.mark.parametrize(
    ("said", "status", "found"),
    [
        ({}, "pass", "median 2.0 ms, slowest 2 ms; 5000 files, 0% below 1 MiB"),
        ({"read_seconds": [0.03] * 9}, "warn", "slow reads"),
        ({"read_seconds": [0.002] * 63 + [0.4]}, "warn", "slowest 400 ms"),
        ({"read_seconds": [0.002] * 63 + [1.2]}, "fail", "a read stalled"),
        ({"small_files": 4900, "listed_all": False}, "warn", "mostly small files"),
        ({"unreadable": 3}, "warn", "3 of 67 reads failed"),
        ({"read_seconds": [], "unreadable": 64}, "fail", "none of 5000 files could be read"),
        ({"files": 0}, "fail", "no file in it"),
        ({"files": None}, "warn", "not understood: the sampling wrote"),
    ],
)
def test_a_dataset_is_judged_by_its_reads_and_its_small_files(said, status, found):
    """A stall of a second is the fault data_starvation at its plain severity."""
    result = check("dataset", sampled(**said), data="/data")
    assert (result.status, found in result.found) == (status, True), result.found


def test_a_file_system_that_never_answers_fails_in_bounded_time():
    """The sampling is a child that is left behind."""
    result = check("dataset", RecordedMachine({"stepscope.doctor.sampling": TIMEOUT}), data="/data")
    assert (result.status, result.found) == ("fail", "no answer within 30 s")


def test_a_dataset_path_that_does_not_answer_is_a_finding_and_no_bad_usage(capsys):
    """A dead mount is what the check is there to find."""
    dead = RecordedMachine({"os.path.exists": TIMEOUT, "stepscope.doctor.sampling": TIMEOUT})
    status, output = run_command(["--data", "/data"], dead, capsys)
    assert (status, "no answer within 30 s" in output.out) == (1, True)


def test_sampling_ends_when_its_time_is_up(tmp_path):
    """A clock that runs a second at every look: some files are listed, some are read, and no more."""
    for number in range(50):
        (tmp_path / f"{number}.bin").write_bytes(b"x" * 100)
    seconds = iter(range(10_000))
    said = sample(str(tmp_path), 10, random.Random(0), lambda: next(seconds))
    assert said["files"] < 6
    assert said["listed_all"] is False
    assert len(said["read_seconds"]) < 6


def test_sampling_counts_small_files_in_all_folders_and_reads_single_files(tmp_path):
    """On a real file system; a file that cannot be read is counted, not fatal."""
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/small.jpg").write_bytes(b"x")
    (tmp_path / "shard.tar").write_bytes(b"x" * (2**20 + READ_BYTES))
    (tmp_path / "dangling").symlink_to("nowhere")
    said = sample(str(tmp_path), 5, random.Random(0), iter(x / 1000 for x in range(10_000)).__next__)
    assert (said["files"], said["small_files"], said["listed_all"], said["unreadable"]) == (2, 1, True, 0)
    assert len(said["read_seconds"]) == 64
    said = sample(str(tmp_path / "shard.tar"), 5, random.Random(0), iter(x / 1000 for x in range(10_000)).__next__)
    assert (said["files"], len(said["read_seconds"])) == (1, 64)


# NCCL


def h200(text, name="NVIDIA H200", **output):
    log = smi_log(every_gpu({"product_name": name}))
    return with_smi(log, all_reduce_perf=Output(text=text, **output))


@pytest.mark.parametrize(("measured", "status"), [("478.98", "pass"), ("365.10", "warn"), ("41.00", "fail")])
def test_bus_bandwidth_is_held_against_published_runs(measured, status):
    """480 GB/s with NVLS on H200; a ring's 367 means that NVLS is off, and less that NVLink is not used."""
    machine = h200(recorded("all_reduce_perf-h200.txt").replace("478.98", measured))
    result = check("nccl", machine, nccl=True)
    assert (result.status, result.found) == (status, f"{float(measured):g} GB/s")
    assert result.expected == "480 GB/s in published runs; 367 as a ring"
    assert any(line.startswith("all_reduce_perf") and line.endswith("-g 8") for line in machine.ran)


def test_an_all_reduce_that_is_wrong_missing_or_unknown_says_so():
    """Wrong results fail whatever the speed; without the program or a figure there is nothing to compare."""
    text = recorded("all_reduce_perf-h200.txt")
    assert check("nccl", h200(text.replace("values : 0 OK", "values : 7 FAILED")), nccl=True).status == "fail"
    assert check("nccl", h200("", exit_status=2, errors="unhandled system error\n"), nccl=True).status == "fail"
    assert "nccl-tests" in check("nccl", RecordedMachine(), nccl=True).next_step
    result = check("nccl", h200(text, name="NVIDIA L40S"), nccl=True)
    assert (result.status, result.expected) == ("warn", "no published figure for 8 × NVIDIA L40S")


# What is written


def sick():
    return examine(with_gpus({3: {WIDTH: "8x", LIMIT: "500.00 W"}}))


def test_the_table_is_aligned_says_what_to_do_and_how_to_quarantine():
    """Every check on its line; failures with their next step, and the recipe for Slurm and Kubernetes."""
    text = as_table(sick(), coloured=False)
    lines = text.splitlines()
    assert "\x1b" not in text
    assert [line.split()[1] for line in lines if line[:6] in ("pass  ", "warn  ", "FAIL  ", "n/a   ")] == NAMES
    column = lines[0].index("found")
    assert next(line for line in lines if " pcie " in line)[column:].startswith("GPU 3: gen 5 of 5, ×8 of ×16")
    assert "  pcie: when idle, measure again under load" in text
    assert "FAIL: gpu-01: 13 pass, 0 warn, 2 fail, 2 n/a" in lines
    assert '  scontrol update nodename=gpu-01 state=drain reason="stepscope doctor: pcie, power_limit"' in lines
    assert "  kubectl taint nodes gpu-01 stepscope/doctor=failed:NoSchedule" in lines
    healthy = as_table(examine(RecordedMachine()), coloured=False)
    assert "scontrol" not in healthy
    assert "What to do" not in healthy


def test_colours_mark_the_status_alone():
    """Without its escape codes the coloured table is the plain one."""
    coloured = as_table(sick(), coloured=True)
    assert "\x1b[1;31mFAIL\x1b[0m" in coloured
    plain = coloured
    for code in ("\x1b[32m", "\x1b[33m", "\x1b[1;31m", "\x1b[2m", "\x1b[0m"):
        plain = plain.replace(code, "")
    assert plain == as_table(sick(), coloured=False)


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    """Not in a pipe, not with NO_COLOR, not on a dumb terminal."""
    terminal, pipe = SimpleNamespace(isatty=lambda: True), SimpleNamespace(isatty=lambda: False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert (wants_colour(terminal), wants_colour(pipe)) == (True, False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(terminal)
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(terminal)


def test_a_node_name_cannot_break_the_recipe():
    """It is quoted for the shell."""
    report = acceptance(no_gpu(), name="a; reboot", gpus_expected=1, progress=lambda message: None)
    assert "  kubectl cordon 'a; reboot'" in quarantine(report)


def test_the_recipe_doubts_what_another_node_would_not_cure():
    """A CPU quota is the job's own, a bad link is not."""
    machine = RecordedMachine(files={"/sys/fs/cgroup/system.slice/cpu.max": "200000 100000\n"})
    assert "(but cpu_quota may be this job's own" in quarantine(examine(machine))[0]
    assert quarantine(sick())[0] == "To keep jobs away from it:"


def test_metrics_are_a_state_set_by_check():
    """One of the four statuses is 1, and promtool has nothing to say against the page."""
    text = as_metrics(sick(), now=1_700_000_000.0).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample_ in family.samples:
            found[sample_.name, *sample_.labels.values()] = sample_.value
    assert found["stepscope_doctor_last_run_timestamp_seconds",] == 1_700_000_000
    for name, status in statuses(sick()).items():
        assert {each: found["stepscope_doctor_check_status", name, each] for each in STATUSES} == {
            each: float(each == status) for each in STATUSES
        }
    if promtool := shutil.which("promtool"):
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


# The command


def run_command(arguments, machine, capsys):
    status = doctor(parser().parse_args(["doctor", *arguments]), machine)
    return status, capsys.readouterr()


def test_json_has_the_status_the_node_and_every_check(capsys, monkeypatch):
    """And the exit status is 1 with a failure, 0 with warnings only."""
    monkeypatch.setenv("STEPSCOPE_NODE", "gpu-07")
    status, output = run_command(["--json"], with_gpus({3: {WIDTH: "8x"}}), capsys)
    said = json.loads(output.out)
    assert (status, said["status"], said["node"]) == (1, "fail", "gpu-07")
    assert [each["name"] for each in said["checks"]] == NAMES
    assert {key for each in said["checks"] for key in each} == {"name", "status", "found", "expected", "next_step"}
    status, output = run_command(["--json"], governors("ondemand", "acpi-cpufreq"), capsys)
    assert (status, json.loads(output.out)["status"]) == (0, "warn")


def test_the_textfile_is_whole_and_readable(tmp_path, capsys):
    """Mode 0644 whatever the umask, nothing else left in the folder, and the report is written as well."""
    before = os.umask(0o077)
    try:
        status, output = run_command(["--textfile", str(tmp_path / "doctor.prom")], RecordedMachine(), capsys)
    finally:
        os.umask(before)
    assert status == 0
    assert "pass: " in output.out
    assert [file.name for file in tmp_path.iterdir()] == ["doctor.prom"]
    assert (tmp_path / "doctor.prom").stat().st_mode & 0o777 == 0o644
    assert 'stepscope_doctor_check_status{check="gpu",status="pass"} 1.0' in (tmp_path / "doctor.prom").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--textfile", "{}/gone/doctor.prom"], "cannot write a file into"),
        (["--textfile", "{}/doctor.txt"], "call it {}/doctor.txt.prom"),
        (["--textfile", "{}/folder.prom"], "cannot write a file into"),
        (["--data", "{}/gone"], "no such file or folder"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_measured(arguments, says, tmp_path, capsys):
    """With what was wrong and what would be right, and exit status 2."""
    (tmp_path / "folder.prom").mkdir()
    machine = RecordedMachine({"os.path.exists": Output(exit_status=1)})
    status, output = run_command([word.format(tmp_path) for word in arguments], machine, capsys)
    assert (status, output.out) == (2, "")
    assert says.format(tmp_path) in output.err
    assert not [line for line in machine.ran if "nvidia-smi" in line]


def test_a_number_of_gpus_that_is_none_is_refused(capsys):
    """Argparse's own exit status is 2, too."""
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args(["doctor", "--gpus", "all"])
    assert stopped.value.code == 2
    assert "'all' is no number of GPUs: give one from 1 to 1024" in capsys.readouterr().err


def test_this_machine_is_examined_end_to_end(tmp_path):
    """The real command on the real machine, with a dataset and a textfile: JSON on stdout, and nothing on stderr."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/shard.tar").write_bytes(b"x" * 4096)
    command = [sys.executable, "-m", "stepsim", "doctor", "--json", "--data", tmp_path / "data"]
    done = subprocess.run([*command, "--textfile", tmp_path / "d.prom"], capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)
    found = {each["name"]: each for each in said["checks"]}
    assert done.stderr == ""
    assert done.returncode == int(said["status"] == "fail")
    assert [each["name"] for each in said["checks"]] == NAMES
    assert not [each for each in said["checks"] if "the check itself failed" in each["found"]]
    assert "1 files, 100% below 1 MiB" in found["dataset"]["found"]
    assert "GiB available" in found["memory"]["found"]
    if not shutil.which("nvidia-smi"):
        assert found["gpu"]["found"] == "no NVIDIA GPU here"
    assert f'check="dataset",status="{found["dataset"]["status"]}"}} 1.0' in (tmp_path / "d.prom").read_text()


def test_a_program_that_hangs_is_killed_with_its_children():
    """The shell's own child, which holds the pipe, included: the call returns when time is up."""
    output = LocalMachine().run(("sh", "-c", "sleep 60 & sleep 60; echo done"), timeout_seconds=0.2)
    assert (output.ended, output.text) == ("timeout", "")
    output = LocalMachine().run(("sh", "-c", "echo out; echo why >&2; exit 3"), timeout_seconds=30)
    assert (output.ended, output.exit_status, output.text, output.why()) == ("exited", 3, "out\n", "exited with 3: why")
    assert LocalMachine().run(("no-such-program-here",), timeout_seconds=1).ended == "missing"


def test_the_documentation_has_every_check_as_it_is():
    """Name, what is expected and the next step, word by word."""
    page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
    rows = [f"| `{check.name}` | {check.expected} | {check.next_step} |" for check in CHECKS]
    assert [row for row in rows if row not in page] == []
    assert page.count("\n| `") == len(CHECKS)
