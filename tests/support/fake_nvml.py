"""A stand-in for the module ``pynvml``, over GPUs that behave, and misbehave, like those of real drivers.

Exceptions, constants and structures are the real module's own, which loads without a driver. A device handle is a
pointer, as there: it is not hashable by value, and says nothing about the GPU that it stands for.
"""

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml

FIRST_ADDRESS = 0x1000
INSTANCE_ADDRESS = 0x100


@dataclass
class FakeInstance:
    """A MIG instance, as one of its compute instances."""

    gpu_instance: int
    profile: str = "1g.10gb"
    used: int = 3 * 2**30
    free: int = 7 * 2**30


@dataclass
class FakeGpu:
    """One GPU: what it reports, and what is wrong with it."""

    uuid: str
    bus: str
    values: dict = field(default_factory=dict)
    fails: dict = field(default_factory=dict)
    """NVML error code by function."""
    fails_after: int | None = None
    """Calls that still succeed before the GPU falls off the bus."""
    lost: int | None = None
    """The error code that every call gives."""
    instances: list = field(default_factory=list)
    calls: list = field(default_factory=list)


HEALTHY = {
    "NVML_CLOCK_SM": 1755, "NVML_CLOCK_MEM": 2619, "max_sm_clock": 1980, "temperature": 61, "memory_temperature": 70,
    "power": 523_456, "power_limit": 700_000, "default_limit": 700_000,
    "energy": 123_456_789, "utilization": (97, 41), "reserved": 2**30, "used": 70 * 2**30, "free": 9 * 2**30,
    "reasons": 0x4, "generation": 5, "width": 16, "max_generation": 5, "max_width": 16,
}  # fmt: skip


def gpu(number=0, **values):
    """A healthy GPU."""
    return FakeGpu(uuid=f"GPU-{number:08d}", bus=f"00000000:{0x0A + number:02X}:00.0", values={**HEALTHY, **values})


class FakeNvml:
    """Functions are those of ``pynvml``, by name and arguments; all other names come from the real module."""

    def __init__(self, *gpus, text=str, missing=()):
        """``text``: what strings are returned as. ``missing``: functions that these bindings lack."""
        self.gpus, self.events, self.up, self.inits, self.sets = list(gpus), [], True, 0, 0
        self.start_fails = self.wait_fails = self.sets_fail = None
        self._text, self._missing = text, missing

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in self._missing:
            raise AttributeError(name)
        return super().__getattribute__(name)

    def __getattr__(self, name):
        if name.startswith(("NVML", "nvmlMemory_", "nvmlEventType")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def xid(self, gpu, number):
        """Queue an XID event."""
        self.events.append((gpu, number))

    # -- library

    def nvmlInit(self):
        self.inits += 1
        if self.start_fails:
            raise pynvml.NVMLError(self.start_fails)
        self.up = True

    def nvmlShutdown(self):
        self._running()
        self.up = False

    def nvmlDeviceGetCount(self):
        self._running()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        self._ask(self.gpus[index], "nvmlDeviceGetHandleByIndex")
        return _pointer(FIRST_ADDRESS * (index + 1))

    # -- a device

    def nvmlDeviceGetUUID(self, handle):
        return self._string(self._device(handle, "nvmlDeviceGetUUID").uuid)

    def nvmlDeviceGetName(self, handle):
        gpu, instance = self._find(handle)
        self._ask(gpu, "nvmlDeviceGetName")
        return self._string("NVIDIA H100 80GB HBM3" + (f" MIG {instance.profile}" if instance else ""))

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=self._string(self._device(handle, "nvmlDeviceGetPciInfo").bus))

    def nvmlDeviceGetClockInfo(self, handle, type):
        name = {pynvml.NVML_CLOCK_SM: "NVML_CLOCK_SM", pynvml.NVML_CLOCK_MEM: "NVML_CLOCK_MEM"}[type]
        return self._device(handle, "nvmlDeviceGetClockInfo").values[name]

    def nvmlDeviceGetMaxClockInfo(self, handle, type):
        assert type == pynvml.NVML_CLOCK_SM
        return self._device(handle, "nvmlDeviceGetMaxClockInfo").values["max_sm_clock"]

    def nvmlDeviceGetTemperature(self, handle, sensor):
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self._device(handle, "nvmlDeviceGetTemperature").values["temperature"]

    def nvmlDeviceGetFieldValues(self, handle, fieldIds):
        """The call succeeds; each field has a result of its own, and of one that failed the value means nothing."""
        assert fieldIds == [pynvml.NVML_FI_DEV_MEMORY_TEMP]
        celsius = self._device(handle, "nvmlDeviceGetFieldValues").values["memory_temperature"]
        values = (pynvml.c_nvmlFieldValue_t * 1)()
        values[0].valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        values[0].value.uiVal = 37 if celsius is None else celsius
        values[0].nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if celsius is None else pynvml.NVML_SUCCESS
        return values

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._device(handle, "nvmlDeviceGetPowerUsage").values["power"]

    def nvmlDeviceGetPowerManagementLimit(self, handle):
        return self._device(handle, "nvmlDeviceGetPowerManagementLimit").values["power_limit"]

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle):
        return self._device(handle, "nvmlDeviceGetPowerManagementDefaultLimit").values["default_limit"]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return self._device(handle, "nvmlDeviceGetTotalEnergyConsumption").values["energy"]

    def nvmlDeviceGetUtilizationRates(self, handle):
        gpu = self._device(handle, "nvmlDeviceGetUtilizationRates")
        if gpu.instances:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return pynvml.c_nvmlUtilization_t(*gpu.values["utilization"])

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        """Version 1 counts the driver's reserve as used."""
        gpu, instance = self._find(handle)
        self._ask(gpu, f"nvmlDeviceGetMemoryInfo{'_v2' if version else ''}")
        used, free = (instance.used, instance.free) if instance else (gpu.values["used"], gpu.values["free"])
        reserved = gpu.values["reserved"]
        if version:
            return pynvml.c_nvmlMemory_v2_t(version=version, used=used, free=free, reserved=reserved)
        return pynvml.c_nvmlMemory_t(used=used + reserved, free=free)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self._device(handle, "nvmlDeviceGetCurrentClocksEventReasons").values["reasons"]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self._device(handle, "nvmlDeviceGetCurrentClocksThrottleReasons").values["reasons"]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle):
        return self._device(handle, "nvmlDeviceGetCurrPcieLinkGeneration").values["generation"]

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle):
        return self._device(handle, "nvmlDeviceGetCurrPcieLinkWidth").values["width"]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):
        return self._device(handle, "nvmlDeviceGetMaxPcieLinkGeneration").values["max_generation"]

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle):
        return self._device(handle, "nvmlDeviceGetMaxPcieLinkWidth").values["max_width"]

    # -- MIG

    def nvmlDeviceGetMigMode(self, device):
        on = int(bool(self._device(device, "nvmlDeviceGetMigMode").instances))
        return [on, on]

    def nvmlDeviceGetMaxMigDeviceCount(self, device):
        self._device(device, "nvmlDeviceGetMaxMigDeviceCount")
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):
        if index >= len(self._device(device, "nvmlDeviceGetMigDeviceHandleByIndex").instances):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return _pointer(_address(device) + INSTANCE_ADDRESS * (index + 1))

    def nvmlDeviceGetGpuInstanceId(self, device):
        return self._find(device)[1].gpu_instance

    # -- events

    def nvmlEventSetCreate(self):
        self._running()
        if self.sets_fail:
            raise pynvml.NVMLError(self.sets_fail)
        self.sets += 1
        return {"watched": set()}

    def nvmlDeviceRegisterEvents(self, handle, eventTypes, eventSet):
        assert eventTypes == pynvml.nvmlEventTypeXidCriticalError
        eventSet["watched"].add(self._device(handle, "nvmlDeviceRegisterEvents").uuid)

    def nvmlEventSetWait_v2(self, eventSet, timeoutms):
        assert timeoutms == 0
        self._running()
        if self.wait_fails:
            eventSet["spoiled"] = self.wait_fails
        if code := eventSet.get("spoiled"):
            raise pynvml.NVMLError(code)
        for gpu, number in self.events:
            if gpu.uuid in eventSet["watched"]:
                self.events.remove((gpu, number))
                handle = _pointer(FIRST_ADDRESS * (self.gpus.index(gpu) + 1))
                return pynvml.c_nvmlEventData_t(handle, pynvml.nvmlEventTypeXidCriticalError, number)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    def nvmlEventSetFree(self, eventSet):
        self._running()
        self.sets -= 1

    # -- how it goes wrong

    def _running(self):
        if not self.up:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def _find(self, handle):
        number, part = divmod(_address(handle), FIRST_ADDRESS)
        gpu = self.gpus[number - 1]
        return gpu, gpu.instances[part // INSTANCE_ADDRESS - 1] if part else None

    def _device(self, handle, function):
        """The GPU of a handle. An instance has little of its own."""
        gpu, instance = self._find(handle)
        if instance:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self._ask(gpu, function)

    def _ask(self, gpu, function):
        self._running()
        gpu.calls.append(function)
        if gpu.fails_after is not None:
            gpu.fails_after -= 1
            gpu.lost = pynvml.NVML_ERROR_GPU_IS_LOST if gpu.fails_after < 0 else None
        if code := gpu.lost or gpu.fails.get(function):
            raise pynvml.NVMLError(code)
        return gpu

    def _string(self, value):
        return value.encode() if self._text is bytes else value


def _pointer(address):
    return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlDevice_t)


def _address(handle):
    return ctypes.cast(handle, ctypes.c_void_p).value
