"""Lays the step records of all ranks side by side, step by step, and hands complete steps to the referee.

Records come over HTTP, late, in pieces, and not from all. A step waits for its last rank for a while, and is counted
as incomplete then. When another process answers for a rank, the job was started again, and all its ranks with it: what
was left of before is incomplete, and answers of the processes of before are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepscope.phases import PHASES
from stepscope.record import StepRecord
from stepscope.referee import Referee, node_indices

log = logging.getLogger("stepscope")

SILENT_SECONDS = 60.0
"""So long nobody of a run answers before the next run is judged, where none was chosen."""
PATIENCE_SECONDS = 30.0
"""How long a step waits for its last rank."""
HEAD = 2
"""Numbers of a row before its seconds."""
LARGEST_BACKLOG = 200_000
"""Records held while their steps are incomplete: some 100 MB."""
SUPPORTED = {"ddp", "fsdp", "single"}
"""Strategies under which all ranks do the same work and leave their collectives together."""


class MalformedSteps(ValueError):
    """An answer that is not what ``/steps`` serves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """One rank's answer."""

    run: str
    rank: int
    node: str
    process: str
    """Which process answered: each has an id of its own."""
    world_size: int
    strategy: str
    rows: Sequence[Sequence[float]]
    """Each: step, the one before it, then 8 seconds before the exit and 8 after it, or 8 without an exit."""

    @property
    def last(self) -> int | None:
        """The newest step."""
        return int(self.rows[-1][0]) if self.rows else None


def parse_steps(document: Any) -> list[Steps]:
    """One rank's document, or a node's list of them. Raises ``MalformedSteps``."""
    documents = document if isinstance(document, list) else [document]
    try:
        return [_parse(one) for one in documents]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MalformedSteps(f"this is no answer of /steps: {error!r}") from None


def _parse(document: Mapping[str, Any]) -> Steps:
    if tuple(document["phases"]) != PHASES:
        raise ValueError(f"its phases are {document['phases']}: another version of Stepscope")
    widths = {HEAD + len(PHASES), HEAD + 2 * len(PHASES)}
    rows = document["steps"]
    if not {len(row) for row in rows} <= widths:
        raise ValueError(f"a row must hold one of {sorted(widths)} numbers")
    steps = Steps(
        run=str(document["run"]), rank=int(document["rank"]), node=str(document["node"]),
        process=str(document["process"]), world_size=int(document["world_size"]), strategy=str(document["strategy"]),
        rows=rows,
    )  # fmt: skip
    if not 0 <= steps.rank < steps.world_size:
        raise ValueError(f"rank {steps.rank} of {steps.world_size}")
    return steps


@dataclass(slots=True)
class _Waiting:
    since: float
    rows: dict[int, Sequence[float]] = field(default_factory=dict)


class Alignment:
    """Not thread-safe. ``referee`` is None until all ranks were seen once."""

    def __init__(self, run: str | None = None) -> None:
        """``run`` is the only one that is judged; without it, the first one, and the next one when that is silent."""
        self.run = run
        self._chosen = run is not None
        self._heard = 0.0
        self.nodes: dict[int, str] = {}
        self.referee: Referee | None = None
        self.world_size = 0
        self.starts = 0
        """How often the job was started, as far as was seen."""
        self._processes: dict[int, str] = {}
        self._gone: set[str] = set()
        self._strategies: dict[int, str] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._held = 0
        self._settled = -1

    def add(self, steps: Steps, now: float) -> None:
        """Take one rank's answer; ``now`` is any monotonic time in seconds."""
        if steps.process in self._gone or not self._is_judged(steps.run, now):
            return
        self._heard = now
        another = self._processes.get(steps.rank, steps.process) != steps.process
        if another or steps.world_size != self.world_size:
            self._restart(steps)
        self._processes[steps.rank] = steps.process
        self._strategies[steps.rank] = steps.strategy
        if self.nodes.get(steps.rank) != steps.node:
            self._see(steps)
        for row in steps.rows:
            step = int(row[0])
            if step > self._settled:
                waiting = self._waiting.setdefault(step, _Waiting(now))
                self._held += steps.rank not in waiting.rows
                waiting.rows[steps.rank] = row
        self.settle(now)

    def _is_judged(self, run: str, now: float) -> bool:
        if self.run in (None, run):
            return True
        if self._chosen or now - self._heard <= SILENT_SECONDS:
            return False
        log.info("nobody of the run %s has answered for %.0f s: now %s is judged", self.run, SILENT_SECONDS, run)
        self._restart_with(None, 0)
        self.nodes, self.referee = {}, None
        return True

    def settle(self, now: float) -> None:
        """Book the steps that are complete, in order, and give up those that waited too long."""
        for step in sorted(self._waiting):
            waiting = self._waiting[step]
            if self.referee is not None and len(waiting.rows) == self.world_size:
                self._close(step, "complete")
            elif now - waiting.since > PATIENCE_SECONDS:
                self._close(step, "incomplete")
            elif self._held > LARGEST_BACKLOG:
                self._close(step, "dropped")
            else:
                return

    def _close(self, step: int, outcome: str) -> None:
        rows = self._waiting.pop(step).rows
        self._held -= len(rows)
        self._settled = step
        if self.referee is None:
            return
        if outcome == "complete" and not set(self._strategies.values()) <= SUPPORTED:
            outcome = "unsupported"
        if outcome == "complete":
            self.referee.add(self._record(step, [rows[rank] for rank in range(self.world_size)]))
        else:
            self.referee.outcomes[outcome] += 1

    def _record(self, step: int, rows: list[Sequence[float]]) -> StepRecord:
        width = HEAD + 2 * len(PHASES)
        collective = all(len(row) == width for row in rows)
        columns = [list(column) for column in zip(*(_padded(row, width) for row in rows), strict=True)]
        before, after = columns[HEAD : HEAD + len(PHASES)], columns[HEAD + len(PHASES) :]
        agreed = len(set(columns[1])) == 1  # else some rank lost a step
        previous = int(columns[1][0]) if agreed else -1
        return StepRecord(
            step=step,
            previous=previous,
            attempt=self.starts,
            before=before,
            after=after,
            ended=[],
            collective=collective,
        )

    def _restart(self, steps: Steps) -> None:
        self._restart_with(steps.run, steps.world_size)
        self.starts += 1
        if self.referee is not None and len(self.referee.nodes) != self.world_size:
            self.nodes, self.referee = {}, None

    def _restart_with(self, run: str | None, world_size: int) -> None:
        for step in sorted(self._waiting):
            self._close(step, "incomplete")
        self.run, self.world_size = run, world_size
        self._gone.update(self._processes.values())
        self._processes.clear()
        self._settled = -1
        self._strategies.clear()

    def _see(self, steps: Steps) -> None:
        """A rank is new, or has moved to another node: then the referee's labels change, and it begins anew."""
        self.nodes[steps.rank] = steps.node
        if len(self.nodes) == self.world_size:
            self.referee = Referee(node_indices([self.nodes[rank] for rank in range(self.world_size)]))

    def node_names(self) -> list[str]:
        """In the order of the ranks."""
        return list(dict.fromkeys(self.nodes[rank] for rank in sorted(self.nodes)))


def _padded(row: Sequence[float], width: int) -> list[float]:
    return [*row, *[0.0] * (width - len(row))]
