"""Power and clock of a GPU: how fast a power-capped GPU runs, and what it draws while computing, waiting or idle."""

from __future__ import annotations

from dataclasses import dataclass

from stepsim.accelerators import (
    DRAM_WATTS,
    POWER_EXPONENT,
    REFERENCE_LIMIT_WATTS,
    SM_WATTS,
    TENSOR_WATTS,
    Accelerator,
)
from stepsim.job import Job

NCCL_CHANNELS = 16
"""Channels, one SM each, of a NCCL kernel on NVLink machines (NCCL src/graph/connect.cc)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """Shares of the time in which tensor cores, DRAM and SMs are active, and the SMs' occupancy."""

    tensor: float
    dram: float
    sm: float
    occupancy: float

    def watts(self, gpu: Accelerator, mhz: float) -> float:
        """Power at that clock, without a cap."""
        scale = gpu.power_limit_watts / REFERENCE_LIMIT_WATTS
        dynamic = TENSOR_WATTS * self.tensor + DRAM_WATTS * self.dram + SM_WATTS * self.sm
        return gpu.idle_watts + scale * dynamic * float((mhz / gpu.max_mhz) ** POWER_EXPONENT)


def waiting(gpu: Accelerator) -> Activity:
    """A NCCL kernel that waits: it spins on its channels' SMs, and touches little else."""
    sm = NCCL_CHANNELS / gpu.sms
    return Activity(tensor=0.0, dram=0.02, sm=sm, occupancy=sm / 4)


OPTIMIZER = Activity(tensor=0.0, dram=0.85, sm=1.0, occupancy=0.35)
"""A fused Adam step: memory-bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """Forward and backward of one step on a GPU at its clock."""

    mhz: float
    seconds: float
    activity: Activity


def compute(job: Job) -> Compute:
    """The step's compute at the clock at which it just meets the power cap, or at the highest clock.

    The cap is solved from the activity while computing, never averaged over waiting: otherwise a GPU that waits
    would clock up.
    """
    low, high = 0.2 * job.gpu.max_mhz, job.gpu.max_mhz
    if _over_cap(job, high):
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if _over_cap(job, middle) else (middle, high)
        return _at_clock(job, low)
    return _at_clock(job, high)


def _over_cap(job: Job, mhz: float) -> bool:
    return _at_clock(job, mhz).activity.watts(job.gpu, mhz) > job.gpu.power_limit_watts


def _at_clock(job: Job, mhz: float) -> Compute:
    gpu, kernels, model = job.gpu, job.kernels, job.model
    flops_seconds = job.flops_per_step / gpu.peak_flops
    matmul = flops_seconds / (kernels.matmul_efficiency * mhz / gpu.spec_mhz)
    moved = kernels.hidden_passes * 2 * model.hidden * model.layers * job.tokens_per_gpu
    memory = moved / (gpu.hbm_bytes_per_second * kernels.hbm_efficiency)
    seconds = matmul + memory + kernels.launch_seconds
    activity = Activity(
        tensor=flops_seconds / seconds * gpu.spec_mhz / mhz,
        dram=(memory * kernels.hbm_efficiency + matmul * kernels.matmul_dram) / seconds,
        sm=kernels.sm_active,
        occupancy=kernels.occupancy,
    )
    return Compute(mhz=mhz, seconds=seconds, activity=activity)
