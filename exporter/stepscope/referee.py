"""The referee: lays the records of all ranks side by side, lap by lap, and keeps the totals of the critical path.

A lap runs from one collective's exit to the next one's: ``after`` of the previous step, then ``before`` of this one.
Losing the referee loses attribution, never training and never a rank's own metrics.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.critical_path import PLAIN, Lateness, Operations, critical_path
from stepscope.phases import PHASES
from stepscope.record import Rows, StepRecord

OUTCOMES = ("complete", "incomplete", "dropped", "unsupported")


def node_indices(nodes: Sequence[str]) -> list[int]:
    """Each rank's node by number, in the order of first appearance; ``nodes`` names each rank's node."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(nodes))}
    return [numbers[name] for name in nodes]


class Referee:
    """Totals over laps. ``nodes`` holds the index of each rank's node; columns hold one value per rank or node."""

    def __init__(self, nodes: Sequence[int], operations: Operations = PLAIN) -> None:
        self.nodes = nodes
        self._operations = operations
        self._carried: Rows | None = None
        self._last: tuple[int, int] | None = None
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.path_seconds = [0.0 for _ in PHASES]
        self.late_steps = [0 for _ in nodes]
        self.late_seconds = [[0.0 for _ in nodes] for _ in PHASES]
        self.late_node_seconds = [[0.0] * (max(nodes) + 1) for _ in PHASES]
        self.wait_seconds: Rows = [0.0 for _ in nodes]
        self.lap: tuple[int, Rows] | None = None
        """The latest one: the step that closed it, and seconds by phase and rank."""

    def add(self, record: StepRecord) -> None:
        """Book the step of all ranks: columns of ``record`` are the ranks.

        The first collective of an attempt, and the first after a gap, only opens the lap: what went before is unknown.
        """
        follows = self._last == (record.attempt, record.follows)
        self._last = (record.attempt, record.step)
        lap = self._operations.sum(self._carried, record.before) if follows and self._carried is not None else None
        if record.collective:
            self._carried = record.after
            if lap is not None:
                self.lap = (record.step, lap)
                self._book(lap)
        else:
            self._carried = None if lap is None else self._operations.sum(lap, record.after)

    def _book(self, lap: Rows) -> None:
        verdict = critical_path(lap, self.nodes, self._operations)
        self.outcomes["complete"] += 1
        self.late_steps[verdict.rank.index] += 1
        self.path_seconds = PLAIN.sum(self.path_seconds, verdict.seconds)
        _book_lateness(self.late_seconds, verdict.rank)
        _book_lateness(self.late_node_seconds, verdict.node)
        self.wait_seconds = self._operations.sum(self.wait_seconds, verdict.waits)


def _book_lateness(totals: list[list[float]], lateness: Lateness) -> None:
    for total, seconds in zip(totals, lateness.seconds, strict=True):
        if seconds:
            total[lateness.index] += seconds
