"""A rank's last step records, as ``/steps`` serves them to the referee.

One row per step: its number and that of the step before it, the seconds of each phase before the exit of the step's last
gradient collective, and those after it. A step without such a collective has one vector only.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator

from stepscope.phases import PHASES
from stepscope.record import StepRecord

CAPACITY = 4096
"""Steps; at three a second a referee may be away for 20 minutes."""


class StepRing:
    """Rows are written once, when a step is added, and joined when somebody asks. Not thread-safe."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._rows: deque[tuple[int, str]] = deque(maxlen=capacity)

    def add(self, record: StepRecord) -> None:
        parts = (record.before, record.after) if record.collective else (_sum(record),)
        values = [round(row[0], 7) for part in parts for row in part]
        self._rows.append((record.step, json.dumps([record.step, record.follows, *values], separators=(",", ":"))))

    def since(self, step: int) -> list[str]:
        """The rows of all later steps, oldest first."""
        return list(self._later(step))[::-1]

    def _later(self, step: int) -> Iterator[str]:
        for number, text in reversed(self._rows):
            if number <= step:
                return
            yield text


def _sum(record: StepRecord) -> list[list[float]]:
    return [[before[0] + after[0]] for before, after in zip(record.before, record.after, strict=True)]


def document(rows: list[str], **head: object) -> str:
    """The page's JSON. ``head`` says whose rows they are: run, rank, node, process, world_size, strategy."""
    start = json.dumps({**head, "phases": PHASES})
    return f'{start[:-1]}, "steps": [{",".join(rows)}]}}'
