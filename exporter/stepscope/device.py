"""GPUs read through NVML, under DCGM's names, units and labels, for machines on which no dcgm-exporter runs.

To add a reading: add a row to ``DEVICE``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from threading import Lock
from typing import Any

from stepscope.exposition import Labels, Page
from stepscope.metrics import Metric, Values

MEBI = 2**20
NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)
"""NVML_VALUE_NOT_AVAILABLE (nvml.h): all bits set, in either width."""
MAX_EVENTS = 256
"""Taken from the queue at one reading, so that a storm of XIDs cannot hold up a scrape."""


class Code(IntEnum):
    """The results of NVML calls that are told apart: nvmlReturn_t (nvml.h), whose numbers never change."""

    UNINITIALIZED = 1
    NOT_SUPPORTED = 3
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18


STOPPED = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIBRARY_NOT_FOUND, Code.LIB_RM_VERSION_MISMATCH})
"""No GPU can be read until NVML is started anew."""
LOST = STOPPED | {Code.GPU_IS_LOST, Code.RESET_REQUIRED}
"""Nothing more can be read from this GPU. An unknown error is not among them: a broken power sensor gives it as well."""
NEVER = frozenset({Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND})
"""The device, or its driver, does not have the field and will not have it at the next reading either."""

ADVICE = {
    Code.LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is missing: install the NVIDIA driver; in a container, start it with the "
    "NVIDIA container toolkit and the driver capability 'utility'",
    Code.DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded: nvidia-smi should list the GPUs",
    Code.LIB_RM_VERSION_MISMATCH: "the NVIDIA library and the kernel driver have different versions: "
    "reload the driver, or reboot",
}


class NvmlUnavailable(RuntimeError):
    """NVML cannot be read; the message says what is missing."""


def load_nvml() -> Any:
    """The module ``pynvml``, initialized."""
    try:
        nvml = import_module("pynvml")
    except ImportError as error:
        raise NvmlUnavailable("the package nvidia-ml-py is not installed: pip install 'stepscope[nvml]'") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlUnavailable(_explained(error)) from error
    return nvml


def _explained(error: Any) -> str:
    return f"NVML: {error}" + (f" ({ADVICE[error.value]})" if error.value in ADVICE else "")


@contextmanager
def _tolerant(nvml: Any, fatal: Collection[int], failures: list[str]) -> Iterator[None]:
    """Note an NVML error and go on, unless it is ``fatal``."""
    try:
        yield
    except nvml.NVMLError as error:
        if error.value in fatal:
            raise
        failures.append(str(error))


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU, or a MIG instance of one, at one reading."""

    nvml: Any
    handle: Any
    labels: Labels
    absent: set[str]
    """Fields that it turned out not to have; kept from reading to reading."""
    xid: int | None = None

    @property
    def uuid(self) -> str:
        return self.labels["UUID"]

    def ask(self, name: str, read: Callable[[Device], int | None]) -> int | None:
        """The value, or None where the device has none or does not give it. Raises when it is lost."""
        if name in self.absent:
            return None
        try:
            value = read(self)
        except self.nvml.NVMLError as error:
            if error.value in LOST:
                raise
            if error.value in NEVER:
                self.absent.add(name)
            return None
        return None if value in NOT_AVAILABLE else value

    def in_mig_mode(self) -> bool:
        mode = self.ask("MIG", lambda device: device.nvml.nvmlDeviceGetMigMode(device.handle)[0])
        return mode == self.nvml.NVML_DEVICE_MIG_ENABLE


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one device said."""

    labels: Labels
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Field(Metric):
    """A family, and how one device is asked for it."""

    read: Callable[[Device], int | None]
    convert: Callable[[int], float]
    """From NVML's unit to DCGM's."""
    per_instance: bool
    """A MIG instance has its own. Its GPU then does not report it, so that a sum counts nothing twice."""

    def value(self, device: Device) -> float | None:
        raw = device.ask(self.name, self.read)
        return None if raw is None else self.convert(raw)


def _field(
    name: str,
    help: str,
    read: Callable[[Device], int | None],
    *,
    convert: Callable[[int], float] = int,
    kind: Any = "gauge",
    per_instance: bool = False,
) -> Field:
    def values(readings: list[Reading]) -> Values:
        yield (), [reading.values.get(name) for reading in readings]

    return Field(
        name=name,
        kind=kind,
        help=help,
        scope="gpu",
        values=values,
        read=read,
        convert=convert,
        per_instance=per_instance,
    )


def _clock(name: str) -> Callable[[Device], int]:
    return lambda device: device.nvml.nvmlDeviceGetClockInfo(device.handle, getattr(device.nvml, name))


VALUE_MEMBER = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of nvmlValue_t that holds the value, by nvmlValueType_t (nvml.h)."""


def _memory_celsius(device: Device) -> int | None:
    """Drivers report 0 °C for memory that has no sensor: no memory is that cold."""
    [field] = device.nvml.nvmlDeviceGetFieldValues(device.handle, [device.nvml.NVML_FI_DEV_MEMORY_TEMP])
    if field.nvmlReturn:
        raise device.nvml.NVMLError(field.nvmlReturn)
    return getattr(field.value, VALUE_MEMBER[field.valueType]) or None


def _memory(device: Device) -> Any:
    """Version 2 keeps the driver's own reserve apart from what is used, as DCGM does; older drivers lack it."""
    nvml = device.nvml
    with suppress(AttributeError, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported):
        return nvml.nvmlDeviceGetMemoryInfo(device.handle, version=nvml.nvmlMemory_v2)
    return nvml.nvmlDeviceGetMemoryInfo(device.handle)


def _throttle_reasons(device: Device) -> int:
    """NVML renamed the function; new bindings have both names, old drivers only the old one."""
    nvml = device.nvml
    with suppress(AttributeError, nvml.NVMLError_FunctionNotFound):
        return nvml.nvmlDeviceGetCurrentClocksEventReasons(device.handle)
    return nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device.handle)


XID = "DCGM_FI_DEV_XID_ERRORS"

DEVICE: tuple[Field, ...] = (
    _field("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", _clock("NVML_CLOCK_SM")),
    _field("DCGM_FI_DEV_MAX_SM_CLOCK", "Maximum supported SM clock frequency (in MHz).",
           lambda d: d.nvml.nvmlDeviceGetMaxClockInfo(d.handle, d.nvml.NVML_CLOCK_SM)),
    _field("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", _clock("NVML_CLOCK_MEM")),
    _field("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", _memory_celsius),
    _field("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).",
           lambda d: d.nvml.nvmlDeviceGetTemperature(d.handle, d.nvml.NVML_TEMPERATURE_GPU)),
    _field("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", lambda d: d.nvml.nvmlDeviceGetPowerUsage(d.handle),
           convert=lambda milliwatts: milliwatts / 1000),
    _field("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Current power limit of the device (in W).",
           lambda d: d.nvml.nvmlDeviceGetPowerManagementLimit(d.handle), convert=lambda milliwatts: milliwatts / 1000),
    _field("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", "Default power limit of the device (in W).",
           lambda d: d.nvml.nvmlDeviceGetPowerManagementDefaultLimit(d.handle), convert=lambda milliwatts: milliwatts / 1000),
    _field("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).",
           lambda d: d.nvml.nvmlDeviceGetTotalEnergyConsumption(d.handle), kind="counter"),
    _field("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).",
           lambda d: d.nvml.nvmlDeviceGetUtilizationRates(d.handle).gpu),
    _field("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).",
           lambda d: d.nvml.nvmlDeviceGetUtilizationRates(d.handle).memory),
    _field(XID, "Value of the last XID error encountered.", lambda d: d.xid),
    _field("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", lambda d: _memory(d).free,
           convert=lambda octets: octets // MEBI, per_instance=True),
    _field("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", lambda d: _memory(d).used,
           convert=lambda octets: octets // MEBI, per_instance=True),
    _field("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "Current clock throttle reasons (bitmask of DCGM_CLOCKS_THROTTLE_REASON_*).",
           _throttle_reasons),
    _field("DCGM_FI_DEV_PCIE_LINK_GEN", "PCIe current link generation.",
           lambda d: d.nvml.nvmlDeviceGetCurrPcieLinkGeneration(d.handle)),
    _field("DCGM_FI_DEV_PCIE_LINK_WIDTH", "PCIe current link width.",
           lambda d: d.nvml.nvmlDeviceGetCurrPcieLinkWidth(d.handle)),
    _field("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "PCIe maximum link generation.",
           lambda d: d.nvml.nvmlDeviceGetMaxPcieLinkGeneration(d.handle)),
    _field("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "PCIe maximum link width.",
           lambda d: d.nvml.nvmlDeviceGetMaxPcieLinkWidth(d.handle)),
)  # fmt: skip
"""Read from the list of ``Reading``.

DCGM_FI_PROF_PCIE_TX_BYTES and RX_BYTES are left out on purpose. nvmlDeviceGetPcieThroughput blocks for 20 ms per call,
a third of a second on a machine of eight GPUs, and tells of those 20 ms alone, where DCGM's field of that name is the
average since the last reading. Whoever needs it runs dcgm-exporter.
"""


class XidWatch:
    """The last XID of every GPU that reports them. The driver queues events between readings."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._asked: set[str] | None = None
        self._watched: set[str] = set()
        self._last: dict[str, int] = {}

    def last(self, gpus: Mapping[str, Device]) -> dict[str, int]:
        """By UUID; 0 where none was seen since watching began, as DCGM says it."""
        if self._events is not None:
            self._poll()
        if self._asked != set(gpus):
            self._watch(gpus)
        return {uuid: self._last.get(uuid, 0) for uuid in self._watched}

    def _poll(self) -> None:
        try:
            for _ in range(MAX_EVENTS):
                self._note(self._nvml.nvmlEventSetWait_v2(self._events, 0))
        except self._nvml.NVMLError as error:
            if error.value in STOPPED:
                raise
            if error.value != Code.TIMEOUT:
                self._asked = None  # a GPU that got lost spoils the whole set: make a new one

    def _note(self, event: Any) -> None:
        """A GPU that fell off the bus cannot say who it is any more; its series are gone anyway."""
        if event.eventType == self._nvml.nvmlEventTypeXidCriticalError:
            with _tolerant(self._nvml, STOPPED, []):
                self._last[_text(self._nvml.nvmlDeviceGetUUID(event.device))] = int(event.eventData)

    def _watch(self, gpus: Mapping[str, Device]) -> None:
        """Without event sets, on WSL for instance, no GPU is watched and the series is absent."""
        nvml = self._nvml
        self.close()
        self._asked, self._watched = set(gpus), set()
        with _tolerant(nvml, STOPPED, []):
            self._events = nvml.nvmlEventSetCreate()
            for uuid, gpu in gpus.items():
                with _tolerant(nvml, STOPPED, []):
                    nvml.nvmlDeviceRegisterEvents(gpu.handle, nvml.nvmlEventTypeXidCriticalError, self._events)
                    self._watched.add(uuid)

    def close(self) -> None:
        """Give the event set back to the driver."""
        if self._events is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)
            self._events = None


class NvmlDevices:
    """The GPUs of this machine as a ``/metrics`` page. ``nvml`` is the initialized module ``pynvml``."""

    name = "nvml"

    def __init__(self, nvml: Any, *, hostname: str, only: Collection[str] | None = None) -> None:
        """``only``: the UUIDs of the GPUs to report; all of them by default."""
        self._nvml, self._hostname, self._only = nvml, hostname, only
        self._lock = Lock()  # two servers may scrape at once; no training thread ever takes it
        self._running = True
        self._forget()

    def text(self) -> str:
        """Raises ``NvmlUnavailable`` when no GPU can be read; the next call starts NVML anew."""
        with self._lock:
            try:
                self._ensure_running()
                readings = self._read()
            except self._nvml.NVMLError as error:
                self._running = False
                raise NvmlUnavailable(_explained(error)) from error
            return self._render(readings)

    def _forget(self) -> None:
        self._absent: dict[tuple[str, str], set[str]] = {}
        self._xids = XidWatch(self._nvml)
        self._page = Page(DEVICE, {})

    def _ensure_running(self) -> None:
        if not self._running:
            self._xids.close()
            with suppress(self._nvml.NVMLError):  # it may be down already
                self._nvml.nvmlShutdown()
            self._nvml.nvmlInit()
            self._forget()
            self._running = True

    def _render(self, readings: list[Reading]) -> str:
        """GPUs come and go, and with them the page's series."""
        series = [reading.labels for reading in readings]
        if self._page.series.get("gpu") != series:
            self._page = Page(DEVICE, {"gpu": series})
        return self._page.text(readings)

    def _read(self) -> list[Reading]:
        failures: list[str] = []
        gpus = self._gpus(failures)
        xids = self._xids.last(gpus)
        readings: list[Reading] = []
        for uuid, gpu in gpus.items():
            with _tolerant(self._nvml, STOPPED, failures):
                readings += self._readings(gpu, xids.get(uuid))
        if not readings and (failures or self._only):
            self._running = False
            raise NvmlUnavailable(f"no GPU{self._named()} can be read: {', '.join(failures) or 'not found'}")
        return readings

    def _named(self) -> str:
        return f" of {', '.join(self._only)}" if self._only else ""

    def _gpus(self, failures: list[str]) -> dict[str, Device]:
        """By UUID. A container may not touch every GPU that is counted, and a lost one gives no handle."""
        found = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            with _tolerant(self._nvml, STOPPED, failures):
                found.append(self._gpu(index))
        return {gpu.uuid: gpu for gpu in found if self._only is None or gpu.uuid in self._only}

    def _gpu(self, index: int) -> Device:
        """The index serves as a label, as in dcgm-exporter, and nowhere else: it changes when a GPU is lost."""
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        labels = {
            "gpu": str(index),
            "UUID": _text(nvml.nvmlDeviceGetUUID(handle)),
            "pci_bus_id": _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
            "device": f"nvidia{index}",
            "modelName": _text(nvml.nvmlDeviceGetName(handle)),
            "hostname": self._hostname,
        }
        return self._device(handle, labels, "")

    def _device(self, handle: Any, labels: Labels, part: str, xid: int | None = None) -> Device:
        """A GPU in MIG mode has fewer fields than out of it, so what is absent is remembered by ``part`` too."""
        absent = self._absent.setdefault((labels["UUID"], part), set())
        return Device(nvml=self._nvml, handle=handle, labels=labels, absent=absent, xid=xid)

    def _readings(self, gpu: Device, xid: int | None) -> list[Reading]:
        """A GPU that answers nothing is lost, even where an XID is remembered for it."""
        readings = [self._reading(device, fields) for device, fields in self._parts(gpu, xid)]
        if all(reading.values.keys() <= {XID} for reading in readings):
            raise self._nvml.NVMLError(Code.GPU_IS_LOST)
        return readings

    def _parts(self, gpu: Device, xid: int | None) -> Iterator[tuple[Device, Collection[Field]]]:
        """The GPU, or its share in MIG mode and then its instances, each with the fields to ask for."""
        if not gpu.in_mig_mode():
            yield self._device(gpu.handle, gpu.labels, "", xid), DEVICE
            return
        yield self._device(gpu.handle, gpu.labels, "MIG", xid), [field for field in DEVICE if not field.per_instance]
        for instance in self._instances(gpu):
            yield instance, [field for field in DEVICE if field.per_instance]

    def _reading(self, device: Device, fields: Collection[Field]) -> Reading:
        values = {field.name: value for field in fields if (value := field.value(device)) is not None}
        return Reading(labels=device.labels, values=values)

    def _instances(self, gpu: Device) -> list[Device]:
        """One per GPU instance: its memory is shared by the compute instances that NVML lists separately."""
        instances: dict[str, Device] = {}
        for index in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)):
            with _tolerant(self._nvml, LOST, []):  # most places are empty: not found
                instance = self._instance(gpu, index)
                instances.setdefault(instance.labels["GPU_I_ID"], instance)
        return list(instances.values())

    def _instance(self, gpu: Device, index: int) -> Device:
        """Labelled as dcgm-exporter does: the GPU's UUID, and the instance beside it."""
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, index)
        number = str(nvml.nvmlDeviceGetGpuInstanceId(handle))
        profile = _text(nvml.nvmlDeviceGetName(handle)).rpartition(" MIG ")[2]  # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
        return self._device(handle, {**gpu.labels, "GPU_I_PROFILE": profile, "GPU_I_ID": number}, number)


def _text(value: str | bytes) -> str:
    """Older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
