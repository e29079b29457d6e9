"""The library's totals and operations for a whole fleet at once: one numpy column per rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.critical_path import middle
from stepscope.phases import ALLREDUCE, OTHER, PHASES
from stepscope.record import StepRecord
from stepscope.totals import STEP_SECONDS_BOUNDS, WINDOW_STEPS, RunTotals
from stepsim.draws import FloatArray

_EDGES = (-inf, *STEP_SECONDS_BOUNDS, inf)

EVERY_RANK = slice(None)

FOLD_STEPS = 16
"""Steps whose records are added up at once."""


class FleetTotals:
    """``stepscope.totals.Totals`` of all ranks. Records are added up a few at a time, or when somebody reads."""

    def __init__(self, ranks: int) -> None:
        self.run = RunTotals()
        self.steps = 0
        self.dropped = 0
        self.tokens: FloatArray = np.zeros(ranks)
        self.flops: FloatArray = np.zeros(ranks)
        self.local_gradient_norm: FloatArray | None = None
        self.last_ended: FloatArray = np.full(ranks, np.nan)
        self._unfolded: list[FloatArray] = []
        self._phase_seconds: FloatArray = np.zeros((len(PHASES), ranks))
        self._counts = np.zeros((len(STEP_SECONDS_BOUNDS) + 1, ranks), dtype=np.int64)
        self._exposed = np.full((WINDOW_STEPS, ranks), np.inf)
        self._walls = np.zeros((WINDOW_STEPS, ranks))
        self._flops = np.zeros((WINDOW_STEPS, ranks))
        self._folded = 0

    def add(self, record: StepRecord) -> None:
        self._flops[self.steps % WINDOW_STEPS] = record.flops
        self.steps += 1
        self.tokens += record.tokens
        self.flops += record.flops
        self.local_gradient_norm = record.local_gradient_norm
        self.last_ended = record.ended
        self.run.add(record, float(record.ended[0]))
        self._unfolded.append(record.before + record.after)
        if len(self._unfolded) == FOLD_STEPS:
            self._fold()

    def _fold(self) -> None:
        if not self._unfolded:
            return
        seconds = np.stack(self._unfolded, axis=1)
        self._unfolded.clear()
        steps = np.arange(self._folded, self._folded + seconds.shape[1])
        durations = seconds.sum(axis=0)
        self._phase_seconds += seconds.sum(axis=1)
        self._exposed[steps % WINDOW_STEPS] = seconds[ALLREDUCE]
        self._walls[steps % WINDOW_STEPS] = durations
        shortest, longest = durations.min(), durations.max()
        for counts, (low, high) in zip(self._counts, pairwise(_EDGES), strict=True):
            if longest > low and shortest <= high:
                counts += ((durations > low) & (durations <= high)).sum(axis=0)
        self._folded = self.steps

    @property
    def phase_seconds(self) -> FloatArray:
        self._fold()
        return self._phase_seconds

    @property
    def collective_seconds(self) -> dict[str, FloatArray]:
        return {"all_reduce": self.phase_seconds[ALLREDUCE]}

    @property
    def last_duration(self) -> FloatArray:
        self._fold()
        return self._walls[(self.steps - 1) % WINDOW_STEPS]

    def floor(self, ranks: slice = EVERY_RANK) -> FloatArray | None:
        self._fold()
        return self._exposed[:, ranks].min(axis=0) if self.steps else None

    def flops_per_second(self, ranks: slice = EVERY_RANK) -> FloatArray | None:
        self._fold()
        return self._flops[:, ranks].sum(axis=0) / self._walls[:, ranks].sum(axis=0) if self.steps else None

    def duration_counts(self) -> npt.NDArray[np.int64]:
        self._fold()
        return self._counts


class NodeTotals:
    """A node's share of the fleet's totals: the same names, its ranks alone."""

    def __init__(self, fleet: FleetTotals, ranks: slice) -> None:
        self.run = fleet.run
        self.steps, self.dropped = fleet.steps, fleet.dropped
        self.tokens, self.flops = fleet.tokens[ranks], fleet.flops[ranks]
        norms = fleet.local_gradient_norm
        self.local_gradient_norm = None if norms is None else norms[ranks]
        self.phase_seconds = fleet.phase_seconds[:, ranks]
        self.collective_seconds = {kind: column[ranks] for kind, column in fleet.collective_seconds.items()}
        self.last_duration = fleet.last_duration[ranks] if fleet.steps else [None] * (ranks.stop - ranks.start)
        self.last_ended = fleet.last_ended[ranks] if fleet.steps else [None] * (ranks.stop - ranks.start)
        self._fleet, self._ranks = fleet, ranks

    def floor(self) -> FloatArray | None:
        return self._fleet.floor(self._ranks)

    def flops_per_second(self) -> FloatArray | None:
        return self._fleet.flops_per_second(self._ranks)

    def duration_counts(self) -> Any:
        return self._fleet.duration_counts()[:, self._ranks]


class ArrayOperations:
    """``stepscope.critical_path.Operations`` on numpy arrays, for nodes of ``gpus_per_node`` consecutive ranks."""

    def __init__(self, gpus_per_node: int) -> None:
        self._gpus_per_node = gpus_per_node

    def sum(self, a: Any, b: Any) -> FloatArray:
        total: FloatArray = np.add(a, b)
        return total

    def excess(self, column: FloatArray, floor: float) -> FloatArray:
        return column - floor

    def smallest(self, column: FloatArray) -> int:
        return int(column.argmin())

    def take(self, rows: FloatArray, index: int) -> list[float]:
        values: list[float] = rows[:, index].tolist()
        return values

    def medians_without(self, rows: FloatArray, index: int) -> list[float]:
        """The k-th smallest of the others is the k-th of all, or the next one where the left-out value is below it."""
        count = rows.shape[1] - 1
        ordered = rows.copy()
        ordered.partition(_wanted(count, 1), axis=1)
        here, following = _medians(ordered, count).tolist(), _medians(ordered, count, 1).tolist()
        own = rows[:, index].tolist()
        return [after if mine <= at else at for mine, at, after in zip(own, here, following, strict=True)]

    def by_node(self, rows: FloatArray, nodes: Sequence[int]) -> FloatArray:
        size = self._gpus_per_node
        ordered = rows.reshape(len(rows), -1, size).copy()
        ordered.partition(_wanted(size, 0), axis=2)
        return _medians(ordered, size)


def _medians(ordered: FloatArray, count: int, further: int = 0) -> FloatArray:
    """Each row's median among so many sorted values along the last axis, or the value so much further on."""
    lower, upper = middle(OTHER, count) + further, middle(ALLREDUCE, count) + further
    medians = ordered[..., lower]
    if upper != lower:
        medians = medians.copy()
        medians[ALLREDUCE] = ordered[ALLREDUCE, ..., upper]
    return medians


@cache
def _wanted(count: int, further: int) -> tuple[int, ...]:
    """The indices that ``_medians`` takes, and so many after them."""
    middles = {middle(OTHER, count), middle(ALLREDUCE, count)}
    return tuple(sorted({index + more for index in middles for more in range(further + 1)}))
