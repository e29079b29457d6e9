"""The metric tables of dcgm-exporter and node_exporter, with their names, units and labels.

To add a reading: add a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stepscope.metrics import Metric, Values, listed
from stepsim.accelerators import Accelerator
from stepsim.draws import FloatArray
from stepsim.params import PCIE_LANES
from stepsim.telemetry import IO_MODES, GpuTelemetry, HostTelemetry

MEBI = 2.0**20
IDLE_BIT, POWER_CAP_BIT, THERMAL_BIT = 0x1, 0x4, 0x20
"""nvmlClocksEventReasonGpuIdle, …SwPowerCap and …SwThermalSlowdown (nvml.h)."""
FALLEN_OFF_THE_BUS = 79
"""The XID of a GPU that no longer answers on PCIe (NVIDIA, XID errors)."""
READ_REQUEST_BYTES = 256
TRAINER_MEMORY_BYTES = 8 * 2.0**30
"""Resident memory of one rank's Python process with CUDA."""
MEMORY_OVER_CORE_CELSIUS = 9.0
"""HBM runs a little hotter than the die's own sensor."""


def _always(gpu: Accelerator) -> bool:
    return True


def _profiled(gpu: Accelerator) -> bool:
    return gpu.profiling


def _linked(gpu: Accelerator) -> bool:
    return gpu.profiling and gpu.nvlink


def _gauge(
    name: str, help: str, value: Any, *, where: Callable[[Accelerator], bool] = _always, kind: Any = "gauge"
) -> Metric:
    """``where`` tells which accelerators have the counter: on others, and on a lost GPU, the series is absent."""

    def values(node: GpuNode) -> Values:
        return [((), node.present(value(node)))] if where(node.gpus.job.gpu) else []

    return Metric(name=name, kind=kind, help=help, scope="gpu", values=values)


class GpuNode:
    """One node's GPUs, as its exporter reads them."""

    def __init__(self, gpus: GpuTelemetry, ranks: slice) -> None:
        self.gpus = gpus
        self._ranks = ranks

    def of(self, column: Any) -> Any:
        return column[self._ranks]

    def present(self, column: Any) -> Any:
        """Nothing is read of a GPU that is gone."""
        return without(column, self.of(self.gpus.params.lost))

    def percent(self, ratio: Any) -> Any:
        """NVML reports whole percents."""
        return np.rint(100 * self.of(ratio)).astype(int)

    def every(self, value: float) -> list[float]:
        return [value] * (self._ranks.stop - self._ranks.start)

    def throttle_reasons(self) -> Any:
        gpus = self.gpus
        slowed = self.of(gpus.mhz) < gpus.job.gpu.max_mhz
        reason = np.where(self.of(gpus.thermally_limited), THERMAL_BIT, POWER_CAP_BIT)
        return np.where(self.of(gpus.utilization) > 0, np.where(slowed, reason, 0), IDLE_BIT)

    def xids(self) -> list[int]:
        return [FALLEN_OFF_THE_BUS if lost else 0 for lost in self.of(self.gpus.params.lost)]

    def memory_used_mib(self) -> int:
        return round(self.gpus.params.job.memory_bytes()["reserved"] / MEBI)

    def memory_free_mib(self) -> int:
        return round(self.gpus.job.gpu.memory_bytes / MEBI) - self.memory_used_mib()


def without(column: Any, lost: Any) -> Any:
    """A column with None, which is absence, in the place of each lost rank."""
    return [None if gone else value for value, gone in zip(listed(column), lost, strict=True)] if lost.any() else column


DCGM: tuple[Metric, ...] = (
    _gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", lambda n: np.rint(n.of(n.gpus.mhz)).astype(int)),
    _gauge("DCGM_FI_DEV_MAX_SM_CLOCK", "Maximum supported SM clock frequency (in MHz).",
           lambda n: n.every(round(n.gpus.job.gpu.max_mhz))),
    _gauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).",
           lambda n: n.every(round(n.gpus.job.gpu.memory_mhz))),
    _gauge("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).",
           lambda n: np.rint(n.of(n.gpus.celsius) + MEMORY_OVER_CORE_CELSIUS).astype(int)),
    _gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", lambda n: np.rint(n.of(n.gpus.celsius)).astype(int)),
    _gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", lambda n: np.round(n.of(n.gpus.watts), 3)),
    _gauge("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Current power limit of the device (in W).",
           lambda n: n.of(n.gpus.params.power_limit_watts)),
    _gauge("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", "Default power limit of the device (in W).",
           lambda n: n.every(n.gpus.job.gpu.power_limit_watts)),
    _gauge("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).",
           lambda n: np.rint(1000 * n.of(n.gpus.joules)).astype(int), kind="counter"),
    _gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", lambda n: n.percent(n.gpus.utilization)),
    _gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", lambda n: n.percent(n.gpus.activity("dram"))),
    Metric(name="DCGM_FI_DEV_XID_ERRORS", kind="gauge", help="Value of the last XID error encountered.", scope="gpu",
           values=lambda n: [((), n.xids())]),
    _gauge("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", lambda n: n.every(n.memory_free_mib())),
    _gauge("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", lambda n: n.every(n.memory_used_mib())),
    _gauge("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "Current clock throttle reasons (bitmask of DCGM_CLOCKS_THROTTLE_REASON_*).",
           lambda n: n.throttle_reasons()),
    _gauge("DCGM_FI_DEV_PCIE_LINK_GEN", "PCIe current link generation.", lambda n: n.of(n.gpus.params.pcie_generation)),
    _gauge("DCGM_FI_DEV_PCIE_LINK_WIDTH", "PCIe current link width.", lambda n: n.of(n.gpus.params.pcie_lanes)),
    _gauge("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "PCIe maximum link generation.",
           lambda n: n.every(n.gpus.job.gpu.pcie_generation)),
    _gauge("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "PCIe maximum link width.", lambda n: n.every(PCIE_LANES)),
    _gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.",
           lambda n: n.of(n.gpus.utilization), where=_profiled),
    _gauge("DCGM_FI_PROF_SM_ACTIVE", "The ratio of cycles an SM has at least 1 warp assigned.",
           lambda n: n.of(n.gpus.activity("sm")), where=_profiled),
    _gauge("DCGM_FI_PROF_SM_OCCUPANCY", "The ratio of number of warps resident on an SM.",
           lambda n: n.of(n.gpus.activity("occupancy")), where=_profiled),
    _gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active.",
           lambda n: n.of(n.gpus.activity("tensor")), where=_profiled),
    _gauge("DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the device memory interface is active sending or receiving data.",
           lambda n: n.of(n.gpus.activity("dram")), where=_profiled),
    _gauge("DCGM_FI_PROF_PCIE_TX_BYTES", "The rate of data transmitted over the PCIe bus (in bytes per second).",
           lambda n: np.rint(n.of(n.gpus.pcie_sent_bytes_per_second())).astype(int), where=_profiled),
    _gauge("DCGM_FI_PROF_PCIE_RX_BYTES", "The rate of data received over the PCIe bus (in bytes per second).",
           lambda n: np.rint(n.of(n.gpus.pcie_received_bytes_per_second())).astype(int), where=_profiled),
    _gauge("DCGM_FI_PROF_NVLINK_TX_BYTES", "The rate of data transmitted over NVLink (in bytes per second).",
           lambda n: np.rint(n.of(n.gpus.nvlink_bytes_per_second())).astype(int), where=_linked),
    _gauge("DCGM_FI_PROF_NVLINK_RX_BYTES", "The rate of data received over NVLink (in bytes per second).",
           lambda n: np.rint(n.of(n.gpus.nvlink_bytes_per_second())).astype(int), where=_linked),
)  # fmt: skip
"""Read from a ``GpuNode``."""


class Host:
    """One node's host, as node_exporter reads it."""

    def __init__(self, hosts: HostTelemetry, gpus: GpuTelemetry, node: int) -> None:
        self.hosts, self.node = hosts, node
        size = hosts.job.gpus_per_node
        self._ranks = slice(node * size, (node + 1) * size)
        self._gpus = gpus

    def of(self, column: Any) -> list[float]:
        return [float(column[self.node])]

    def ethernet_bytes(self) -> list[int]:
        """Asking remote storage for a sample takes one small message; and what NCCL sends through sockets."""
        sockets = float(self._gpus.network_bytes("sockets")[self._ranks].sum())
        return [round(READ_REQUEST_BYTES * self.of(self.hosts.reads)[0] + sockets)]

    def memory_available(self) -> list[int]:
        job = self.hosts.job
        used = job.loader.workers * job.loader.worker_memory_bytes + TRAINER_MEMORY_BYTES
        return [round(job.gpus_per_node * (job.host_memory_bytes_per_gpu - used))]

    def ports(self) -> Iterator[tuple[tuple[str, ...], list[int]]]:
        return self._per_port(self._gpus.network_bytes("rdma"))

    def port_rates(self) -> Iterator[tuple[tuple[str, ...], list[int]]]:
        return self._per_port(self.hosts.job.network.nic_bytes_per_second * self._gpus.params.nic_scale)

    def _per_port(self, column: FloatArray) -> Iterator[tuple[tuple[str, ...], list[int]]]:
        if self.hosts.job.gpu.profiling:  # a workstation has no InfiniBand
            for device, value in enumerate(column[self._ranks].tolist()):
                yield (f"mlx5_{device}", "1"), [round(value)]

    def governor(self) -> str:
        return "powersave" if self.of(self.hosts.cpu_speed)[0] < 1 else "performance"


def _cpu(host: Host) -> Values:
    cpus = host.hosts.job.cpus_per_node
    for mode in IO_MODES:
        yield (mode,), [host.of(host.hosts.cpu_seconds[mode])[0] / cpus] * cpus


def _counter(name: str, help: str, value: Any, labels: tuple[str, ...] = ("device",)) -> Metric:
    own = ("nvme0n1",) if labels else ()
    return Metric(name=name, kind="counter", help=help, scope="host", labels=labels, values=lambda h: [(own, value(h))])


NODE_EXPORTER: tuple[Metric, ...] = (
    Metric(name="node_cpu_seconds_total", kind="counter", scope="cpu", labels=("mode",),
           help="Seconds the CPUs spent in each mode.", values=_cpu),
    _counter("node_pressure_io_waiting_seconds_total",
             "Total time in seconds that processes have waited due to IO congestion",
             lambda h: h.of(h.hosts.stalled_seconds), ()),
    _counter("node_disk_read_bytes_total", "The total number of bytes read successfully.",
             lambda h: h.of(h.hosts.read_bytes)),
    _counter("node_disk_reads_completed_total", "The total number of reads completed successfully.",
             lambda h: h.of(h.hosts.reads)),
    _counter("node_disk_read_time_seconds_total", "The total number of seconds spent by all reads.",
             lambda h: h.of(h.hosts.read_seconds)),
    _counter("node_disk_io_time_seconds_total", "Total seconds spent doing I/Os.", lambda h: h.of(h.hosts.stalled_seconds)),
    Metric(name="node_infiniband_port_data_transmitted_bytes_total", kind="counter", scope="host",
           labels=("device", "port"), help="Number of data octets transmitted on all links", values=lambda h: h.ports()),
    Metric(name="node_infiniband_port_data_received_bytes_total", kind="counter", scope="host",
           labels=("device", "port"), help="Number of data octets received on all links", values=lambda h: h.ports()),
    Metric(name="node_infiniband_rate_bytes_per_second", kind="gauge", scope="host", labels=("device", "port"),
           help="Maximum signal transfer rate", values=lambda h: h.port_rates()),
    Metric(name="node_network_transmit_bytes_total", kind="counter", scope="host", labels=("device",),
           help="Network device statistic transmit_bytes.", values=lambda h: [(("eth0",), h.ethernet_bytes())]),
    Metric(name="node_memory_MemAvailable_bytes", kind="gauge", scope="host",
           help="Memory information field MemAvailable_bytes.",
           values=lambda h: [((), h.memory_available())]),
    Metric(name="node_cpu_scaling_governor", kind="gauge", scope="cpu", labels=("governor",),
           help="Current enabled CPU frequency governor.",
           values=lambda h: [((h.governor(),), [1] * h.hosts.job.cpus_per_node)]),
)  # fmt: skip
"""Read from a ``Host``."""
