"""The last half minute of a job in numbers, and the last ten of them as a trace, for the console: no Prometheus needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import numpy as np

from stepscope.culprit import Culprit, Window, find_culprit
from stepscope.phases import DATA_WAIT, PHASES
from stepscope.record import Rows
from stepscope.referee import node_indices
from stepsim.draws import FloatArray

WINDOW_SECONDS = 30.0
TRACE_SECONDS = 600.0
STANDSTILL_SECONDS = 3.0
"""Longer than any step of a preset in health: what is missing from the laps is no longer the step that is under way."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A job's totals at one moment. None is what is not known."""

    time: float
    laps: int
    path: FloatArray
    late: FloatArray
    """Seconds, shape (phases, ranks)."""
    late_steps: FloatArray
    """Shape (ranks,)."""
    utilization: float | None = None
    mfu: float | None = None
    """As the job itself says; without it, from the laps and the source's ``ideal_step_seconds``."""
    loss: float | None = None
    gradient_norm: float | None = None
    nonfinite: int = 0


@dataclass(frozen=True, kw_only=True)
class Lap:
    """The latest one, as the referee has it."""

    step: int
    """Which closed it."""
    seconds: Rows
    """Shape (phases, ranks)."""
    nodes: tuple[str, ...]
    """The name of each rank's node."""


class Source(Protocol):
    """A job to take samples of."""

    @property
    def ideal_step_seconds(self) -> float | None:
        """A step's model FLOPs by the device's peak."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def sample(self) -> Sample | None:
        """None while nothing is known."""

    def nodes(self) -> Sequence[str]:
        """The name of each rank's node."""

    def lap(self) -> Lap | None:
        """None before the first one."""


class Recent:
    """Sampled once a second by one thread; read by others."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._samples: deque[Sample] = deque(maxlen=int(WINDOW_SECONDS) + 1)
        self._trace: deque[dict[str, Any]] = deque(maxlen=int(TRACE_SECONDS))
        self._next = source.now()
        self._laps = -1
        self.lap_ended: float | None = None
        """When the number of laps was last seen to change; None before the first one."""

    def sample(self) -> None:
        """Take note once a second, as soon as there is something to know."""
        now = self._source.now()
        if now < self._next or (sample := self._source.sample()) is None:
            return
        self._next = now + 1.0
        if self._samples and sample.laps < self._samples[-1].laps:  # the job began anew
            self._samples.clear()
        if sample.laps != self._laps and sample.laps:
            self.lap_ended = now
        self._laps = sample.laps
        self._samples.append(sample)
        report = self.report()
        self._trace.append({key: report[key] for key in TRACED})

    def report(self) -> dict[str, Any]:
        """Ratios are shares of wall time; values that are not known yet are None."""
        samples = list(self._samples)
        if not samples:
            return dict.fromkeys(_KEYS)
        first, last = samples[0], samples[-1]
        laps, path = last.laps - first.laps, last.path - first.path
        wall = float(path.sum())
        known = laps > 0 and wall > 0
        elapsed = last.time - first.time
        shown = [sample.utilization for sample in samples if sample.utilization is not None]
        return {
            "time": last.time,
            "utilization": float(np.mean(shown)) if shown else None,
            "mfu": self._mfu(last, laps, wall, elapsed),
            "step_seconds": wall / laps if known else None,
            "critical_path": dict(zip(PHASES, (path / wall).tolist(), strict=True)) if known else None,
            "data_wait": float(path[DATA_WAIT] / wall) if known else None,
            "culprit": self._culprit(first, last, laps, wall) if known else None,
            "loss": _finite(last.loss),
            "gradient_norm": _finite(last.gradient_norm),
            "nonfinite_steps": last.nonfinite,
        }

    def trace(self) -> list[dict[str, Any]]:
        """``TRACED`` of the reports of the last ``TRACE_SECONDS``, oldest first."""
        return list(self._trace)

    def lap(self) -> Lap | None:
        return self._source.lap()

    def _mfu(self, last: Sample, laps: int, wall: float, elapsed: float) -> float | None:
        """By the time of the laps; while none ends any more, by the time that goes by."""
        ideal = self._source.ideal_step_seconds
        if ideal is None:
            return last.mfu
        still = elapsed - wall > max(STANDSTILL_SECONDS, 2 * wall / max(laps, 1))
        seconds = elapsed if still else wall
        return ideal * laps / seconds if seconds > 0 else None

    def _culprit(self, first: Sample, last: Sample, laps: int, wall: float) -> dict[str, Any] | None:
        window = Window(
            laps=laps,
            wall_seconds=wall,
            late_seconds=(last.late - first.late).tolist(),
            late_steps=(last.late_steps - first.late_steps).tolist(),
        )
        nodes = self._source.nodes()
        return _named(find_culprit(window, node_indices(nodes)), list(dict.fromkeys(nodes)))


_KEYS = (
    "time", "utilization", "mfu", "step_seconds", "critical_path", "data_wait", "culprit", "loss", "gradient_norm",
    "nonfinite_steps",
)  # fmt: skip
TRACED = ("time", "utilization", "mfu", "data_wait", "critical_path", "gradient_norm", "loss")


def _named(found: Culprit | None, names: Sequence[str]) -> dict[str, Any] | None:
    if found is None:
        return None
    who = {"rank": found.index} if found.kind == "rank" else {"node": names[found.index]}
    return {**who, "phase": found.phase, "share": found.share}


def _finite(value: float | None) -> float | str | None:
    """JSON has no NaN."""
    return value if value is None or abs(value) < inf else {"nan": "NaN"}.get(str(value), str(value))
