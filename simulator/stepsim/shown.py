"""What the console shows of a job, simulated or real: its state, and its latest lap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

from stepscope.diagnosis.wording import with_texts
from stepscope.phases import PHASES
from stepsim.alerts import AlertLog
from stepsim.board import Board, target_label
from stepsim.diagnoser import Diagnoser
from stepsim.laps import LapRows
from stepsim.practice.live.blind import Blind
from stepsim.practice.live.routes import PracticeRoutes
from stepsim.recent import TRACE_SECONDS, Lap, Recent

NO_PROMETHEUS = "nothing is diagnosed: no Prometheus was given, by --prometheus or STEPSCOPE_PROMETHEUS"


class Watched(Protocol):
    """A job, simulated or real, as the API shows it."""

    @property
    def board(self) -> Board: ...
    @property
    def recent(self) -> Recent: ...
    @property
    def practice(self) -> Blind | None:
        """Blind drills, where the job can have them."""

    @property
    def failed(self) -> threading.Event:
        """Set when it died: the process ends then."""

    def describe(self) -> dict[str, Any]:
        """Run, nodes, ranks, accelerator and model."""

    def catalogue(self) -> dict[str, Any]:
        """The faults that it can have."""

    def start(self) -> None: ...
    def close(self) -> None: ...


class Shown:
    """``links`` are the ports of the lab's other pages, by name. ``blind`` hides which faults are active."""

    def __init__(
        self,
        live: Watched,
        alerts: AlertLog,
        practice: PracticeRoutes,
        diagnoser: Diagnoser | None,
        clock: Callable[[], float],
        *,
        blind: bool,
        links: Mapping[str, int],
    ) -> None:
        self._live, self._alerts, self._practice = live, alerts, practice
        self._diagnoser, self._clock, self._blind, self._links = diagnoser, clock, blind, dict(links)
        self._rows = lru_cache(2)(LapRows)
        self._last_lap: tuple[int, int] | None = None

    @property
    def diagnoses(self) -> bool:
        return self._diagnoser is not None

    def state(self) -> dict[str, Any]:
        now, diagnosis = self._clock(), self.diagnosis()
        return {
            "now": now,
            "job": self._live.describe(),
            **self._live.recent.report(),
            "diagnosis": diagnosis,
            "undiagnosed": None if diagnosis else self.undiagnosed(),
            "faults": self.faults(),
            "ended_faults": self._ended_faults(now - TRACE_SECONDS),
            "lap_ended": self._live.recent.lap_ended,
            "blind": self._blind,
            "practice": self._practice.state(),
            "alerts": self._alerts.firing(),
        }

    def opening(self) -> dict[str, Any]:
        """The state, and all that somebody who begins to watch has missed."""
        return {
            **self.state(),
            "trace": self._live.recent.trace(),
            "phases": PHASES,
            "lap": self._drawn(self._live.recent.lap()),
            "links": self._links,
        }

    def new_lap(self) -> dict[str, Any] | None:
        """None where the latest one was told already."""
        lap = self._live.recent.lap()
        seen = (lap.step, id(lap.seconds)) if lap else None
        if seen == self._last_lap:
            return None
        self._last_lap = seen
        return self._drawn(lap)

    def diagnosis(self) -> dict[str, Any] | None:
        """With its numbers as text beside."""
        report = self._diagnoser.report() if self._diagnoser else None
        return with_texts(report) if report else None

    def undiagnosed(self) -> str:
        """Why there is no diagnosis."""
        return self._diagnoser.trouble() if self._diagnoser else NO_PROMETHEUS

    def faults(self) -> list[dict[str, Any]]:
        """The active ones, as far as they may be known."""
        return [] if self._blind else [fault.to_dict() for fault in self._live.board.told()]

    def there(self) -> str:
        """The same in words."""
        if self._blind:
            return "this lab is blind, and tells nobody which faults are active"
        active = ", ".join(f"{one['id']} ({one['fault']} on {target_label(one['target'])})" for one in self.faults())
        return f"active are {active}" if active else "no fault is active"

    def _ended_faults(self, since: float) -> list[dict[str, Any]]:
        ended = [] if self._blind else self._live.board.ended(since)
        return [{**fault.to_dict(), "ended": end} for fault, end in ended]

    def _drawn(self, lap: Lap | None) -> dict[str, Any] | None:
        return self._rows(lap.nodes).drawn(lap) if lap else None
