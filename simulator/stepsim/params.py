"""The physical parameters of a running job: what faults change, and all that the step model reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsim.draws import FloatArray
from stepsim.job import Job

PCIE_LANES = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Params:
    """Arrays have shape (ranks,). What is a matter of the job's configuration is changed in ``job`` itself."""

    job: Job

    compute_scale: FloatArray
    """Factor on a rank's forward and backward time; its clock stays as it is."""
    token_sigma: float
    """Standard deviation of the logarithm of a rank's tokens from step to step."""
    thermal_scale: FloatArray
    """Factor on the thermal resistance between a GPU's die and its coolant."""
    power_limit_watts: FloatArray
    pcie_generation: npt.NDArray[np.int_]
    pcie_lanes: npt.NDArray[np.int_]

    nic_scale: FloatArray
    """Factor on the line rate of a GPU's NIC. A collective goes over all of them: the slowest one decides."""
    fallback_bytes_per_second: float | None
    """None: RDMA between nodes and NVLink inside. Else what the sockets of a node reach, or, in a job of one node, PCIe."""

    read_scale: FloatArray
    """Factor on the time of a storage read."""
    stall_probability: float
    """Share of reads that stall."""
    stall_seconds: float
    """Scale of a stall: its shortest length. Stalls are Pareto distributed."""
    outage_seconds: float
    """Seconds out of every ``OUTAGE_PERIOD_SECONDS`` in which storage stands still for everyone."""
    cpu_speed: FloatArray
    """Of the CPUs of a rank's node, by their configured speed."""

    host_gap_seconds: FloatArray
    """Host work between two steps: logging, garbage collection."""
    pause_probability: float
    """Share of a rank's steps after which its host pauses."""
    pause_seconds: float
    """Mean length of such a pause."""
    stuck: npt.NDArray[np.bool_]
    """Ranks that get no next batch, as long as this holds."""
    lost: npt.NDArray[np.bool_]
    """Ranks whose GPU is gone from the bus, and whose process has died of it."""

    learning_rate_scale: float
    """Factor on the configured learning rate."""
    clip: float | None
    """Gradient norm above which the gradient is scaled down; None never clips."""
    update_share: float
    """Of an update, what reaches the weights: 0 where all that learns is frozen."""
    gradient_scale: FloatArray
    """Factor on a rank's own gradient, before the reduction."""

    @classmethod
    def healthy(cls, job: Job) -> Params:
        ones, none = np.ones(job.ranks), np.zeros(job.ranks, dtype=bool)
        return cls(
            job=job,
            compute_scale=ones,
            token_sigma=0.0,
            thermal_scale=ones,
            power_limit_watts=ones * job.gpu.power_limit_watts,
            pcie_generation=np.full(job.ranks, job.gpu.pcie_generation),
            pcie_lanes=np.full(job.ranks, PCIE_LANES),
            nic_scale=ones,
            fallback_bytes_per_second=None,
            read_scale=ones,
            stall_probability=job.loader.stall_probability,
            stall_seconds=job.loader.stall_seconds,
            outage_seconds=0.0,
            cpu_speed=ones,
            host_gap_seconds=ones * job.host_gap_seconds,
            pause_probability=0.0,
            pause_seconds=0.0,
            stuck=none,
            lost=none,
            learning_rate_scale=1.0,
            clip=job.optimization.clip,
            update_share=1.0,
            gradient_scale=ones,
        )

    def with_job(self, part: str, **changes: Any) -> Params:
        """The same with another configuration of one part of the job, such as ``kernels``."""
        return replace(self, job=self.job.model_copy(update={part: getattr(self.job, part).model_copy(update=changes)}))


OUTAGE_PERIOD_SECONDS = 30.0
