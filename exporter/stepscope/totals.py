"""Running totals over the steps of one process: what the metric table reads.

``Totals`` names the quantities. ``RankTotals`` keeps them for one rank in plain Python; a simulator keeps the same
names with one numpy column per rank. Columns hold one value per rank of the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stepscope.phases import ALLREDUCE, PHASES
from stepscope.record import Column, Rows, StepRecord

STEP_SECONDS_BOUNDS = (
    0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Upper bounds of the step duration histogram, seconds."""

WINDOW_STEPS = 64
"""Steps over which the all-reduce floor and the MFU gauge look back."""


@dataclass(kw_only=True, slots=True)
class RunTotals:
    """The run's totals, published by rank 0 alone."""

    step: int | None = None
    """Number of the last step."""
    loss: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    clipped: int = 0
    out_of_band: int = 0
    nonfinite: int = 0
    checkpoints: int = 0
    last_checkpoint: float | None = None
    """Seconds since the epoch."""

    def add(self, record: StepRecord, ended: float) -> None:
        self.step = record.step
        if record.checkpointed:
            self.checkpoints += 1
            self.last_checkpoint = ended
        learning = record.learning
        if learning is None:
            return
        self.loss = _known(learning.loss, self.loss)
        self.gradient_norm = _known(learning.gradient_norm, self.gradient_norm)
        self.learning_rate = _known(learning.learning_rate, self.learning_rate)
        self.clipped += learning.clipped
        self.out_of_band += learning.out_of_band
        self.nonfinite += learning.nonfinite


def _added(total: float | None, value: float) -> float | None:
    return (total or 0.0) + value if value else total


def _known(value: float | None, before: float | None) -> float | None:
    return before if value is None else value


class Totals(Protocol):
    """What the metric table reads of the ranks of one process."""

    run: RunTotals
    steps: int
    dropped: int
    tokens: Column
    flops: Column
    """One number for all ranks, or one for each; None where nobody knows."""
    local_gradient_norm: Column | None
    """Of the last step; None where it is not known."""

    @property
    def phase_seconds(self) -> Rows:
        """Seconds by phase since the start."""

    @property
    def collective_seconds(self) -> Mapping[str, Column]:
        """Exposed seconds since the start by collective."""

    @property
    def last_duration(self) -> Column:
        """Seconds of the last step; None before the first one."""

    @property
    def last_ended(self) -> Column:
        """When the last step ended, seconds since the epoch; None before the first one."""

    def floor(self) -> Column | None:
        """Smallest exposed all-reduce of the last ``WINDOW_STEPS`` steps, seconds; None before the first step."""

    def flops_per_second(self) -> Column | None:
        """Model FLOP/s over the last ``WINDOW_STEPS`` steps; None before the first step, and where nobody knows."""

    def duration_counts(self) -> Rows:
        """Steps by duration: one row per bound of ``STEP_SECONDS_BOUNDS`` and one for the rest; not cumulative."""


@dataclass(kw_only=True, slots=True)
class RankTotals:
    """``Totals`` of a process with one rank, without numpy."""

    run: RunTotals = field(default_factory=RunTotals)
    steps: int = 0
    dropped: int = 0
    tokens: float | None = 0.0
    flops: float | None = 0.0
    """None until there are any: nobody knows them."""
    local_gradient_norm: list[float] | None = None
    phase_seconds: list[list[float]] = field(default_factory=lambda: [[0.0] for _ in PHASES])
    collective_seconds: dict[str, list[float]] = field(default_factory=dict)
    last_duration: list[float | None] = field(default_factory=lambda: [None])
    last_ended: list[float | None] = field(default_factory=lambda: [None])
    _window: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    _durations: list[list[int]] = field(default_factory=lambda: [[0] for _ in (*STEP_SECONDS_BOUNDS, None)])

    def add(self, record: StepRecord) -> None:
        seconds = [before[0] + after[0] for before, after in zip(record.before, record.after, strict=True)]
        for total, value in zip(self.phase_seconds, seconds, strict=True):
            total[0] += value
        for kind, exposed in record.collectives.items():
            self.collective_seconds.setdefault(kind, [0.0])[0] += exposed
        duration = sum(seconds)
        self.steps += 1
        self.tokens = _added(self.tokens, record.tokens)
        self.flops = _added(self.flops, record.flops)
        self.local_gradient_norm = record.local_gradient_norm or self.local_gradient_norm
        self.last_duration[0], self.last_ended[0] = duration, record.ended[0]
        self._window.append((seconds[ALLREDUCE], duration, record.flops))
        self._durations[bisect_left(STEP_SECONDS_BOUNDS, duration)][0] += 1
        self.run.add(record, record.ended[0])

    def floor(self) -> list[float] | None:
        return [min(exposed for exposed, _, _ in self._window)] if self._window else None

    def flops_per_second(self) -> list[float] | None:
        wall = sum(duration for _, duration, _ in self._window)
        if self.flops is None:
            return None
        return [sum(flops for _, _, flops in self._window) / wall] if wall > 0 else None

    def duration_counts(self) -> list[list[int]]:
        return self._durations
