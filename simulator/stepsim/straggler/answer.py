"""The straggler calculator's equations. Times are in seconds.

    compute_i = C / speed_i · (1 + σ·z_i)      step = L + max_i compute_i + A      efficiency = (L + C + A) / step

A healthy GPU's compute is C, so a slow one of speed ``s`` takes C/s, and all others wait for it in the all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from stepsim.draws import FloatArray
from stepsim.straggler.question import MOST_GPUS, Straggler

HOURS_PER_DAY, DAYS = 24, 30
QUICKEST = 0.25
"""Of a GPU's own mean: a normal distribution has no lower end, and a GPU has."""
MOST_BARS = 128


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The step of one GPU, or of several: then of the last of them to arrive."""

    first: int
    last: int
    slow: bool
    load_seconds: float
    compute_seconds: float
    waiting_seconds: float
    allreduce_seconds: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One draw of a step, and beside it what is expected over many."""

    question: Straggler
    compute_seconds: FloatArray
    """Of each GPU in this draw, shape (gpus,)."""
    slow: npt.NDArray[np.bool_]
    """Which ones are slow, shape (gpus,)."""

    @property
    def ideal_step_seconds(self) -> float:
        """A step in which all GPUs are healthy and alike."""
        return (self.question.load_ms + self.question.compute_ms + self.question.allreduce_ms) / 1000

    @property
    def step_seconds(self) -> float:
        return self._step(float(self.compute_seconds.max()))

    @property
    def efficiency(self) -> float:
        """Of this draw."""
        return self.ideal_step_seconds / self.step_seconds

    @property
    def step_seconds_expected(self) -> float:
        return self._step(self._expected_slowest_seconds)

    @property
    def efficiency_expected(self) -> float:
        """Ideal time over the time that many steps take, per step."""
        return self.ideal_step_seconds / self.step_seconds_expected

    @property
    def useful_compute_share(self) -> float:
        """Share of the step in which a GPU does the work of a healthy one's step."""
        return self.question.compute_ms / 1000 / self.step_seconds

    @property
    def displayed_utilization(self) -> float:
        """What nvidia-smi would show: a kernel is resident all the time but while the batch is loaded, as waiting in the
        all-reduce is a kernel, too."""
        return 1 - self.question.load_ms / 1000 / self.step_seconds

    @property
    def gpu_hours_per_day(self) -> float:
        return float(HOURS_PER_DAY * self.question.gpus)

    @property
    def lost_gpu_hours_per_day(self) -> float:
        return self.gpu_hours_per_day * (1 - self.efficiency)

    @property
    def lost_gpu_hours_per_30_days(self) -> float:
        return DAYS * self.lost_gpu_hours_per_day

    @property
    def lost_gpu_hours_per_day_expected(self) -> float:
        return self.gpu_hours_per_day * (1 - self.efficiency_expected)

    @property
    def lost_gpu_hours_per_30_days_expected(self) -> float:
        return DAYS * self.lost_gpu_hours_per_day_expected

    @cached_property
    def _expected_slowest_seconds(self) -> float:
        return expected_slowest(self.question)

    @cached_property
    def bars(self) -> list[Bar]:
        """In order of GPUs, at most ``MOST_BARS``."""
        gpus = self.question.gpus
        edges = np.linspace(0, gpus, min(MOST_BARS, gpus) + 1).round().astype(int)
        return [self._bar(first, end) for first, end in pairwise(edges.tolist())]

    def _bar(self, first: int, end: int) -> Bar:
        latest = first + int(self.compute_seconds[first:end].argmax())
        own = float(self.compute_seconds[latest])
        return Bar(
            first=first, last=end - 1, slow=bool(self.slow[latest]), load_seconds=self.question.load_ms / 1000,
            compute_seconds=own, waiting_seconds=float(self.compute_seconds.max()) - own,
            allreduce_seconds=self.question.allreduce_ms / 1000,
        )  # fmt: skip

    def _step(self, slowest_seconds: float) -> float:
        return (self.question.load_ms + self.question.allreduce_ms) / 1000 + slowest_seconds

    def to_dict(self) -> dict[str, float]:
        """The numbers; money only with a price."""
        numbers = {name: getattr(self, name) for name in NUMBERS}
        if self.question.price is not None:
            numbers["lost_money_per_day"] = self.question.price * self.lost_gpu_hours_per_day
            numbers["lost_money_per_30_days"] = self.question.price * self.lost_gpu_hours_per_30_days
        return numbers


NUMBERS = (
    "efficiency", "efficiency_expected", "useful_compute_share", "displayed_utilization", "step_seconds",
    "step_seconds_expected", "ideal_step_seconds", "gpu_hours_per_day", "lost_gpu_hours_per_day",
    "lost_gpu_hours_per_day_expected", "lost_gpu_hours_per_30_days", "lost_gpu_hours_per_30_days_expected",
)  # fmt: skip


def solve(question: Straggler) -> Answer:
    """The answer to a question: reproducible, as its draw follows from the seed.

    A GPU keeps its draw when the job grows. Slow ones are spread evenly.
    """
    slow = np.zeros(question.gpus, dtype=bool)
    slow[(2 * np.arange(question.slow_gpus) + 1) * question.gpus // (2 * max(1, question.slow_gpus))] = True
    healthy, slowed = _means(question)
    mean = np.where(slow, slowed, healthy)
    z = np.random.default_rng(question.seed).standard_normal(MOST_GPUS)[: question.gpus]
    return Answer(
        question=question,
        compute_seconds=mean * np.maximum(QUICKEST, 1 + question.variability / 100 * z),
        slow=slow,
    )


def expected_slowest(question: Straggler) -> float:
    """Mean over draws of the slowest GPU's compute, in seconds.

    The largest of independent normals is below x with the chance Π Φ((x − µ_i)/σ_i), and the mean of what is never below m
    is m + ∫ (1 − that) dx from m on.
    """
    groups = [
        (mean, count)
        for mean, count in zip(_means(question), (question.gpus - question.slow_gpus, question.slow_gpus), strict=True)
        if count
    ]
    slowest = max(mean for mean, _ in groups)
    sigma = question.variability / 100
    if not sigma:
        return slowest
    grid = np.linspace(slowest * max(QUICKEST, 1 - FARTHEST * sigma), slowest * (1 + FARTHEST * sigma), POINTS)
    below = np.prod([_below(grid, mean, sigma * mean) ** count for mean, count in groups], axis=0)
    over = 1 - below
    return float(grid[0] + (over[1:] + over[:-1]).sum() / 2 * (grid[1] - grid[0]))


FARTHEST, POINTS = 8.0, 2001
"""Of 16,384 normals the largest is over 8 σ once in 10¹¹ draws."""


def _means(question: Straggler) -> tuple[float, float]:
    """Compute of a healthy GPU and of a slow one, in seconds."""
    return question.compute_ms / 1000, question.compute_ms / 1000 * 100 / question.slow_speed


def _below(grid: FloatArray, mean: float, sigma: float) -> FloatArray:
    normal = NormalDist(mean, sigma)
    return np.array([normal.cdf(x) for x in grid])
