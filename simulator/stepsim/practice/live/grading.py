"""What Alertmanager sent during a blind drill, held against what happened."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from stepsim.practice.alarms import Episode, merged
from stepsim.practice.exact import Labels
from stepsim.practice.live.rules import OWN
from stepsim.practice.rule_file import EXHIBIT, kind_of
from stepsim.practice.scenario import Struck
from stepsim.practice.score import Score, SeedResult, judge, total

EVALUATION_SECONDS = 5.0
"""As in prometheus/prometheus.yml."""
COUNTS_AS_HOURS = 24.0
"""A drill of minutes says nothing of false alarms per day: it counts as a healthy day, in which one is allowed."""
MOST_EPISODES = 10_000
"""Kept of one drill: what comes after so many is not told from a storm."""

Key = tuple[Labels, str]


class Heard:
    """Alerts with the times that Prometheus gave them, each once however often it was repeated. Thread-safe."""

    def __init__(self, run: str, began: float) -> None:
        self._run, self._began = run, began
        self._lock = threading.Lock()
        self._ends: dict[Key, str | None] = {}

    def add(self, alerts: Iterable[Mapping[str, Any]]) -> None:
        with self._lock:
            for alert in alerts:
                labels, starts = alert["labels"], alert.get("startsAt", "")
                of_this_run = labels.get("run", self._run) == self._run
                if not of_this_run or EXHIBIT in labels or _seconds(starts) is None:
                    continue
                key: Key = (frozenset(labels.items()), starts)
                if key in self._ends or len(self._ends) < MOST_EPISODES:
                    self._ends[key] = alert.get("endsAt") if alert["status"] == "resolved" else self._ends.get(key)

    def any_own(self) -> bool:
        with self._lock:
            return any(OWN in dict(labels) for labels, _ in self._ends)

    def count(self) -> int:
        """So many that began after the drill."""
        with self._lock:
            return sum((_seconds(starts) or 0.0) >= self._began for _, starts in self._ends)

    def episodes(self, *, own: bool) -> list[Episode]:
        """In order of time, in seconds after the drill's beginning. ``own``: none of the lab's own rules."""
        with self._lock:
            known = list(self._ends.items())
        found = [
            self._episode(labels, starts, ends) for (labels, starts), ends in known if not own or OWN in dict(labels)
        ]
        return sorted(found, key=lambda episode: (episode.begins, sorted(episode.labels)))

    def _episode(self, labels: Labels, starts: str, ends: str | None) -> Episode:
        over = _seconds(ends)
        return Episode(labels=labels, begins=(_seconds(starts) or 0.0) - self._began,
                       ends=None if over is None else over - self._began)  # fmt: skip


def _seconds(moment: Any) -> float | None:
    """Since the epoch; None for what is no time."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True, kw_only=True)
class Told:
    """What came of a drill."""

    judged: SeedResult
    score: Score


def grade(plan: Sequence[Struck], raised: Iterable[Episode], *, seconds: float, severities: bool) -> Told | None:
    """Of a drill that was ended so many seconds after its beginning; None if nothing had begun that wants an alert.

    Without ``severities`` any alert may tell an incident, be it a page or a ticket.
    """
    begun = [replace(one, ends=min(one.ends, seconds)) for one in plan if one.begins < seconds]
    if all(one.expect == "silence" for one in begun):
        return None
    alarms = merged((one for one in raised if one.begins <= seconds), kind_of if severities else lambda labels: "page")
    result = judge(alarms, begun, [one.begins for one in begun], seed=0, every=EVALUATION_SECONDS, seconds=seconds)
    return Told(judged=result, score=total([replace(result, healthy_hours=COUNTS_AS_HOURS)]))
