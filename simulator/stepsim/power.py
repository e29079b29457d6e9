"""Power and clock of a GPU: how fast a power-capped GPU runs, and what it draws while computing, waiting or idle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepsim.accelerators import (
    DRAM_WATTS,
    INLET_CELSIUS,
    POWER_EXPONENT,
    REFERENCE_LIMIT_WATTS,
    SM_WATTS,
    TENSOR_WATTS,
    THERMAL_SECONDS,
    THROTTLE_CELSIUS,
    Accelerator,
)
from stepsim.draws import FloatArray
from stepsim.job import Job

NCCL_CHANNELS = 16
"""Channels, one SM each, of a NCCL kernel on NVLink machines (NCCL src/graph/connect.cc)."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Activity:
    """Shares of the time in which tensor cores, DRAM and SMs are active, and the SMs' occupancy; per rank, or of any."""

    tensor: FloatArray | float
    dram: FloatArray | float
    sm: float
    occupancy: float

    def watts(self, gpu: Accelerator, mhz: FloatArray | float) -> FloatArray:
        """Power at that clock, without a cap."""
        scale = gpu.power_limit_watts / REFERENCE_LIMIT_WATTS
        dynamic = TENSOR_WATTS * self.tensor + DRAM_WATTS * self.dram + SM_WATTS * self.sm
        return np.asarray(gpu.idle_watts + scale * dynamic * (mhz / gpu.max_mhz) ** POWER_EXPONENT)


def waiting(gpu: Accelerator) -> Activity:
    """A NCCL kernel that waits: it spins on its channels' SMs, and touches little else."""
    sm = NCCL_CHANNELS / gpu.sms
    return Activity(tensor=0.0, dram=0.02, sm=sm, occupancy=sm / 4)


OPTIMIZER = Activity(tensor=0.0, dram=0.85, sm=1.0, occupancy=0.35)
"""A fused Adam step: memory-bound."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Compute:
    """Forward and backward of one step on each rank's GPU, at its clock. Arrays have shape (ranks,)."""

    mhz: FloatArray
    seconds: FloatArray
    activity: Activity


def compute(job: Job, limit_watts: FloatArray) -> Compute:
    """The step's compute at the clocks at which it just meets the power limits, or at the highest clock.

    The clock is solved from the activity while computing, never averaged over waiting: otherwise a GPU that waits
    would clock up. ``limit_watts`` has shape (ranks,).
    """
    limits, rank_of = np.unique(limit_watts, return_inverse=True)
    low, high = np.full(len(limits), LOWEST_CLOCK * job.gpu.max_mhz), np.full(len(limits), job.gpu.max_mhz)
    free = ~_over(job, high, limits)
    for _ in range(0 if free.all() else 40):
        middle = (low + high) / 2
        over = _over(job, middle, limits)
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return _at_clock(job, np.where(free, job.gpu.max_mhz, low)[rank_of])


LOWEST_CLOCK = 0.1
"""Of the highest one: about where an H100's clocks end (210 of 1,980 MHz, nvidia-smi -q -d SUPPORTED_CLOCKS)."""


def thermal_limit(job: Job, thermal_scale: FloatArray, celsius: FloatArray) -> FloatArray:
    """Watts that a GPU's driver allows so that its die settles at ``THROTTLE_CELSIUS``, and never passes it.

    A die heats by dT/dt = (T_in + R·P − T)/τ. The driver is taken to let what is left to the limit shrink by 1/e every
    ``GOVERNOR_SECONDS``. Far below the limit this allows more than any GPU draws. Arrays have shape (ranks,).
    """
    left = THROTTLE_CELSIUS - celsius
    rise = THROTTLE_CELSIUS - INLET_CELSIUS + left * (THERMAL_SECONDS / GOVERNOR_SECONDS - 1)
    allowed: FloatArray = np.rint(rise / (job.gpu.thermal_resistance * thermal_scale))
    return np.maximum(allowed, job.gpu.idle_watts)


GOVERNOR_SECONDS = 4.0
"""How quickly the driver's control acts: well within the die's own time constant, else it would overshoot."""


def _over(job: Job, mhz: FloatArray, limits: FloatArray) -> npt.NDArray[np.bool_]:
    return np.asarray(_at_clock(job, mhz).activity.watts(job.gpu, mhz) > limits)


def _at_clock(job: Job, mhz: FloatArray) -> Compute:
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
