"""The physical parameters of a running job: what faults change, and all that the step model reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsim.draws import FloatArray
from stepsim.job import Job


@dataclass(frozen=True, kw_only=True, eq=False)
class Params:
    """Arrays have shape (ranks,)."""

    job: Job
    compute_scale: FloatArray
    """Factor on a rank's forward and backward time; its clock stays as it is."""
    read_scale: FloatArray
    """Factor on the time of a storage read."""
    stall_probability: float
    """Share of reads that stall."""
    stall_seconds: float
    """Scale of a stall: its shortest length. Stalls are Pareto distributed."""
    outage_seconds: float
    """Seconds out of every ``OUTAGE_PERIOD_SECONDS`` in which storage stands still for everyone."""
    host_gap_seconds: FloatArray
    """Host work between two steps: logging, garbage collection."""
    learning_rate_scale: float
    """Factor on the configured learning rate."""
    clip: float | None
    """Gradient norm above which the gradient is scaled down; None never clips."""

    @classmethod
    def healthy(cls, job: Job) -> Params:
        ones = np.ones(job.ranks)
        return cls(
            job=job,
            compute_scale=ones,
            read_scale=ones,
            stall_probability=job.loader.stall_probability,
            stall_seconds=job.loader.stall_seconds,
            outage_seconds=0.0,
            host_gap_seconds=ones * job.host_gap_seconds,
            learning_rate_scale=1.0,
            clip=job.optimization.clip,
        )


OUTAGE_PERIOD_SECONDS = 30.0
