"""How much of their peak an accelerator's tensor cores give in training, where a job does not say it."""

from __future__ import annotations

from collections.abc import Mapping

from stepsim.accelerators import POWER_EXPONENT, Accelerator
from stepsim.job import Kernels
from stepsim.power import Activity

BEST_MATMUL: Mapping[str, float] = {"A100 SXM": 0.869, "H100 SXM": 0.803, "H200 SXM": 0.803, "B200": 0.776}
"""The best that a matmul of any shape reached, by the peak (measured: stas00/ml-engineering, accelerators)."""
SHAPE = 0.80
"""Of that, what the shapes of a training step reach: fitted, one number for all, to the A100 times in
docs/planner_cases.yml."""


def matmul_efficiency(gpu: Accelerator, kernels: Kernels) -> float:
    """Of the peak at the actual clock; the kernels' own where no matmul was measured.

    The simulator lowers the clock to meet the power limit, and more than the measured best allows for some: that is undone here.
    """
    if gpu.name not in BEST_MATMUL:
        return kernels.matmul_efficiency
    return min(1.0, SHAPE * BEST_MATMUL[gpu.name] / _capped_clock(gpu, kernels))


def _capped_clock(gpu: Accelerator, kernels: Kernels) -> float:
    """By the specified one, of nothing but perfect matmuls, in the simulator's power model."""
    matmul = Activity(tensor=1.0, dram=kernels.matmul_dram, sm=kernels.sm_active, occupancy=kernels.occupancy)
    dynamic = float(matmul.watts(gpu, gpu.max_mhz)) - gpu.idle_watts
    share = min(1.0, ((gpu.power_limit_watts - gpu.idle_watts) / dynamic) ** (1 / POWER_EXPONENT))
    return share * gpu.max_mhz / gpu.spec_mhz
