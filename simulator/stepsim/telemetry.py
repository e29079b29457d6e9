"""What NVML, DCGM and node_exporter would read of the simulated machines, one window after the other.

Everything follows from the timelines that overlap a window. Columns have shape (ranks,) for GPUs, (nodes,) for hosts.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp
from typing import Literal

import numpy as np

from stepscope.phases import ALLREDUCE, BACKWARD, FORWARD, OPTIMIZER
from stepsim.accelerators import INLET_CELSIUS, THERMAL_SECONDS
from stepsim.draws import FloatArray
from stepsim.job import Job
from stepsim.loader import TRAINING_CPUS_PER_GPU
from stepsim.model import Plan
from stepsim.params import Params
from stepsim.power import OPTIMIZER as OPTIMIZER_ACTIVITY
from stepsim.power import Activity, waiting
from stepsim.timeline import EVALUATION, Timeline

WINDOW_SECONDS = 1.0
"""NVML's sample period for utilization, and the interval over which a data-center GPU averages its power."""

READINGS = ("utilization", "tensor", "dram", "sm", "occupancy", "watts")


class GpuTelemetry:
    """Readings of all GPUs over the last window, and their counters."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._readings: FloatArray = np.zeros((len(READINGS), job.ranks))
        self._readings[-1] = job.gpu.idle_watts
        self._plan: Plan | None = None
        self._weights: FloatArray = np.empty(0)
        self.celsius: FloatArray = INLET_CELSIUS + job.gpu.thermal_resistance * self.watts
        self.joules: FloatArray = np.zeros(job.ranks)
        self.mhz: FloatArray = np.full(job.ranks, job.gpu.max_mhz)
        self.params = Params.healthy(job)
        self.thermally_limited = np.zeros(job.ranks, dtype=bool)
        self.backwards: FloatArray = np.zeros(job.ranks)
        """Steps' worth of backward in the last window: under it the gradients travel."""
        self._sent_bytes = {"rdma": np.zeros(job.ranks), "sockets": np.zeros(job.ranks)}

    @property
    def observed(self) -> bool:
        """Whether a window is over yet."""
        return self._plan is not None

    @property
    def utilization(self) -> FloatArray:
        return self._readings[0]

    @property
    def watts(self) -> FloatArray:
        return self._readings[-1]

    def activity(self, name: str) -> FloatArray:
        """Share of the window in which ``tensor``, ``dram`` or ``sm`` was active, or the ``occupancy``."""
        return self._readings[READINGS.index(name)]

    def observe(self, seconds: FloatArray, plan: Plan, window: float) -> None:
        """``seconds`` has shape (segments, ranks): time spent in each segment during the window."""
        job, params = self.job, plan.params
        if plan is not self._plan:
            self._plan, self._weights, self.mhz, self.params = plan, _weights(plan), plan.compute.mhz, params
            self.thermally_limited = plan.limit_watts < params.power_limit_watts
        computing = seconds[FORWARD] + seconds[BACKWARD] + seconds[EVALUATION]
        nominal = computing / params.compute_scale
        spent = np.stack((computing, nominal, seconds[OPTIMIZER], seconds[ALLREDUCE]))
        self._readings = (self._weights * spent).sum(axis=1) / window
        self.watts[:] += job.gpu.idle_watts
        self.joules = self.joules + window * self.watts
        settled = INLET_CELSIUS + job.gpu.thermal_resistance * params.thermal_scale * self.watts
        self.celsius = settled + (self.celsius - settled) * exp(-window / THERMAL_SECONDS)
        self.backwards = seconds[BACKWARD] / plan.backward_seconds
        way = "rdma" if params.fallback_bytes_per_second is None else "sockets"
        share = 2 * (job.nodes - 1) / job.nodes * _gradient_bytes(job) / job.gpus_per_node
        self._sent_bytes[way] = self._sent_bytes[way] + self.backwards * share

    def nvlink_bytes_per_second(self) -> FloatArray:
        """A job of one node that has fallen back from NVLink sends nothing over it."""
        return self.backwards * (0.0 if self._over_pcie else self._inside_bytes) / WINDOW_SECONDS

    def pcie_sent_bytes_per_second(self) -> FloatArray:
        """Acknowledgements of what was copied, and what goes to other GPUs this way."""
        return self.backwards * (0.01 * self._copied_bytes + self._pcie_inside_bytes) / WINDOW_SECONDS

    def pcie_received_bytes_per_second(self) -> FloatArray:
        return self.backwards * (self._copied_bytes + self._pcie_inside_bytes) / WINDOW_SECONDS

    def network_bytes(self, way: Literal["rdma", "sockets"]) -> FloatArray:
        """Sent by each GPU so far, through its NIC or through the host's sockets."""
        return self._sent_bytes[way]

    @property
    def _over_pcie(self) -> bool:
        job = self.job
        return not job.gpu.nvlink or (job.nodes == 1 and self.params.fallback_bytes_per_second is not None)

    @property
    def _copied_bytes(self) -> float:
        """Of one step from the host."""
        return self.params.job.tokens_per_gpu * self.params.job.loader.bytes_per_token

    @property
    def _pcie_inside_bytes(self) -> float:
        return self._inside_bytes if self._over_pcie else 0.0

    @property
    def _inside_bytes(self) -> float:
        """Of one step that each GPU sends to the others of its node."""
        job = self.job
        return 2 * (job.gpus_per_node - 1) / job.gpus_per_node * _gradient_bytes(job)


def _gradient_bytes(job: Job) -> float:
    return job.model.parameters * job.network.gradient_bytes


def _weights(plan: Plan) -> FloatArray:
    """How much a second of computing, of nominal computing, of the optimizer and of a collective adds to each reading.

    Shape (readings, 4, ranks). A slowed GPU spreads the same tensor and memory work over more time, and draws less; its
    SMs stay occupied. The power cap holds while computing, and a waiting GPU, far below it, may clock up.
    """
    gpu = plan.params.job.gpu
    compute, wait = plan.compute.activity, waiting(gpu)

    def extra(activity: Activity, mhz: FloatArray | float) -> FloatArray:
        return np.minimum(plan.limit_watts, activity.watts(gpu, mhz)) - gpu.idle_watts

    rows = (
        (1, 0, 1, 1),
        (0, compute.tensor, OPTIMIZER_ACTIVITY.tensor, wait.tensor),
        (0, compute.dram, OPTIMIZER_ACTIVITY.dram, wait.dram),
        (compute.sm, 0, OPTIMIZER_ACTIVITY.sm, wait.sm),
        (compute.occupancy, 0, OPTIMIZER_ACTIVITY.occupancy, wait.occupancy),
        (0, extra(compute, plan.compute.mhz), extra(OPTIMIZER_ACTIVITY, gpu.max_mhz), extra(wait, gpu.max_mhz)),
    )
    ranks = len(plan.limit_watts)
    return np.stack([np.stack([np.broadcast_to(weight, ranks) for weight in row]) for row in rows])


IO_MODES = ("idle", "iowait", "system", "user")

SYSTEM_SHARE = 0.02


class HostTelemetry:
    """Counters of all nodes."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.cpu_seconds = {mode: np.zeros(job.nodes) for mode in IO_MODES}
        """Over all CPUs of a node."""
        self.stalled_seconds: FloatArray = np.zeros(job.nodes)
        """In which at least one worker waited for a read: I/O pressure, and the time in which the disk was busy."""
        self.read_bytes: FloatArray = np.zeros(job.nodes)
        self.reads: FloatArray = np.zeros(job.nodes)
        self.read_seconds: FloatArray = np.zeros(job.nodes)
        self.cpu_speed: FloatArray = np.ones(job.nodes)
        """By the configured one."""

    def observe(self, params: Params, blocked: FloatArray, batches: FloatArray, window: float) -> None:
        """``blocked``: seconds that loader workers spent in reads; ``batches``: steps' worth of work; both per rank."""
        job, loader = params.job, params.job.loader
        cpus = job.cpus_per_node * window
        self.cpu_speed = params.cpu_speed[:: job.gpus_per_node]
        decoding = self._by_node(batches * loader.decode_seconds / params.cpu_speed)
        blocked, batches = self._by_node(blocked), self._by_node(batches)
        system = SYSTEM_SHARE * cpus
        user = np.minimum(decoding + TRAINING_CPUS_PER_GPU * job.gpus_per_node * window,
                          cpus - system)  # fmt: skip
        iowait = np.minimum(blocked, cpus - system - user)
        self._count(user=user, system=system, iowait=iowait, idle=cpus - system - user - iowait)
        workers = job.gpus_per_node * loader.workers
        stalled = window * (1 - (1 - np.minimum(blocked / (workers * window), 1.0)) ** workers)
        self.stalled_seconds = self.stalled_seconds + stalled
        self.read_seconds = self.read_seconds + blocked
        self.reads = self.reads + batches * (job.tokens_per_gpu / job.model.sequence)
        self.read_bytes = self.read_bytes + batches * job.tokens_per_gpu * loader.bytes_per_token

    def _count(self, **seconds: FloatArray | float) -> None:
        for mode, spent in seconds.items():
            self.cpu_seconds[mode] = self.cpu_seconds[mode] + spent

    def _by_node(self, column: FloatArray) -> FloatArray:
        summed: FloatArray = column.reshape(self.job.nodes, -1).sum(axis=1)
        return summed


class Telemetry:
    """Cuts time into windows, and hands each one to the probes once every rank's timeline covers it."""

    def __init__(self, job: Job, now: float) -> None:
        self.gpus = GpuTelemetry(job)
        self.hosts = HostTelemetry(job)
        self.window_start = now

    @property
    def window_end(self) -> float:
        return self.window_start + WINDOW_SECONDS

    def observe(self, timelines: Iterable[Timeline], plan: Plan, blocked: FloatArray) -> None:
        """Read the window that ends now. ``timelines`` are all that overlap it."""
        start, end = self.window_start, self.window_end
        within = [timeline.within(start, end) for timeline in timelines]
        seconds = within[0] if len(within) == 1 else np.asarray(sum(within))
        self.gpus.observe(seconds, plan, WINDOW_SECONDS)
        self.hosts.observe(plan.params, blocked, self.gpus.backwards, WINDOW_SECONDS)
        self.window_start = end
