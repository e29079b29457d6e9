"""The timeline of one rank: stamps taken in the training loop, taken apart into phases later, by another thread.

A step is a list of marks, each the phase that begins and a stamp. A phase lasts from its mark to the next one, so the
phases of a step add up to its wall time by construction. Stamps come from one clock per rank: on a CPU they are
monotonic seconds, on CUDA they are events on the compute stream, which are resolved when the device has passed them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

from stepscope.phases import ALLREDUCE, BACKWARD, CHECKPOINT, DATA_WAIT, FORWARD, H2D, OTHER, PHASES
from stepscope.record import Learning, StepRecord

ALL_GATHER, REDUCE_SCATTER, EXIT, END = range(len(PHASES), len(PHASES) + 4)
"""Marks beyond the phases: two further collectives; the exit of the step's last gradient collective; the step's end."""

_PHASE_OF = (*range(len(PHASES)), ALLREDUCE, ALLREDUCE, OTHER)
"""The phase that each mark begins."""
_BEGINNERS = (DATA_WAIT, H2D, FORWARD, BACKWARD)
"""With these a step begins. A checkpoint, an evaluation or a pause after ``step_done`` still belongs to the old one."""
_COLLECTIVE_OF = {ALLREDUCE: "all_reduce", ALL_GATHER: "all_gather", REDUCE_SCATTER: "reduce_scatter"}

MAX_MARKS = 20_000
"""Of one step: as many as 1,000 micro-batches need. A loop that never calls ``step_done`` ends here."""
MAX_PENDING = 2_048
"""Finished steps that wait to be resolved; further ones are dropped and counted."""

Mark: TypeAlias = tuple[int, Any]


class Exhausted(RuntimeError):
    """The clock has no more stamps to give: the device is too far behind."""


class Clock(Protocol):
    """Where stamps come from."""

    def stamp(self, now: float) -> Any:
        """The present moment of this rank's timeline; ``now`` is ``time.perf_counter()``. Raises ``Exhausted``."""

    def passed(self, stamp: Any) -> bool:
        """Whether the rank has got there. Stamps are passed in the order in which they were taken."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """Between two stamps that were passed."""

    def epoch(self, stamp: Any) -> float:
        """When a passed stamp was passed, seconds since the epoch."""

    def release(self, stamps: Sequence[Any]) -> None:
        """Give stamps back that nobody will look at again."""

    def keep(self, value: Any) -> Any:
        """A number or a tensor of one element, for ``number`` to read after the step's last stamp was passed."""

    def number(self, kept: Any) -> float | None:
        """What was kept."""


def local_scalar(value: Any) -> Any:
    """This rank's own number or tensor of one element. None for one that is spread over ranks as partial results, as
    ``clip_grad_norm_`` returns under FSDP: reading it takes a collective, which is for the loop to decide
    (``norm.full_tensor()``)."""
    if any(placement.is_partial() for placement in getattr(value, "placements", ())):
        return None
    local = value.to_local() if hasattr(value, "to_local") else value
    return local.detach() if hasattr(local, "detach") else local


class HostClock:
    """Monotonic seconds of this machine."""

    def __init__(self) -> None:
        self._epoch = time.time() - time.perf_counter()

    def stamp(self, now: float) -> float:
        return now

    def passed(self, stamp: float) -> bool:
        return True

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier

    def epoch(self, stamp: float) -> float:
        return self._epoch + stamp

    def release(self, stamps: Sequence[float]) -> None:
        """There are enough."""

    def keep(self, value: Any) -> float | None:
        local = local_scalar(value)
        return None if local is None else float(local)

    def number(self, kept: float | None) -> float | None:
        return kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What ``step_done`` said about a step. Numbers may be tensors, kept by the clock."""

    step: int
    tokens: float = 0.0
    flops: float = 0.0
    loss: Any = None
    gradient_norm: Any = None
    learning_rate: float | None = None
    clipped: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a gradient norm is held against: the clipping threshold, and the band that it should stay in."""

    clip_norm: float | None = None
    band: tuple[float, float] | None = None


class Recorder:
    """The training loop's side. Nothing here waits, and nothing grows: what does not fit is dropped and counted."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._marks: list[Mark] = []
        self._done: Done | None = None
        self._spoiled = False
        self.pending: deque[tuple[Done, list[Mark]]] = deque()
        self.dropped = 0
        self.endless = False
        """A step took more marks than any can: nobody calls ``step_done``."""
        self.overhead_seconds = 0.0
        self.phase = OTHER
        """The mark that was set last."""

    def mark(self, code: int) -> None:
        """From now on it is this phase."""
        began = time.perf_counter()
        self.phase = code
        try:
            self._marks.append((code, self.clock.stamp(began)))
        except Exhausted:
            self._spoiled = True
        if len(self._marks) >= MAX_MARKS:
            self.endless = True
            self._forget()
        self.overhead_seconds += time.perf_counter() - began

    def enter(self, code: int) -> None:
        """As ``mark``; but a step that is done ends where the next one begins."""
        if self._done is not None and code in _BEGINNERS:
            self._end_step(code)
        elif code != OTHER or _PHASE_OF[self.phase] != OTHER:
            self.mark(code)

    def done(self, done: Done) -> None:
        """The step is done; it lasts until the next one begins."""
        if self._done is not None:  # two in a row, and nothing between them
            self._end_step(OTHER)
        self._done = done
        self.enter(OTHER)

    def flush(self) -> None:
        """End the last step of the loop."""
        if self._done is not None:
            self._end_step(OTHER)

    def _end_step(self, code: int) -> None:
        began = time.perf_counter()
        self.phase = code
        done, self._done = self._done, None
        try:
            stamp = self.clock.stamp(began)
        except Exhausted:
            self._forget()
            self.dropped += 1
            return
        self._marks.append((END, stamp))
        if done is None or self._spoiled or len(self.pending) >= MAX_PENDING:
            self._forget(keep=1)
            self.dropped += 1
        else:
            self.pending.append((done, self._marks))
        self._marks, self._spoiled = [(code, stamp)], False
        self.overhead_seconds += time.perf_counter() - began

    def _forget(self, keep: int = 0) -> None:
        """Of the open step's marks, all but the last ``keep``; what follows is no whole step."""
        marks = self._marks
        self.clock.release([stamp for _, stamp in marks[: len(marks) - keep]])
        self._marks, self._spoiled = [], True

    def finished(self) -> Iterator[tuple[Done, list[Mark]]]:
        """The steps that the rank has passed, oldest first; called by one thread at a time."""
        while self.pending and self.clock.passed(self.pending[0][1][-1][1]):
            yield self.pending.popleft()

    def current(self) -> tuple[int, float] | None:
        """The phase that the rank is in, and since when (seconds since the epoch); None before the first mark."""
        unresolved = [mark for _, marks in list(self.pending) for mark in marks] + list(self._marks)
        passed = None
        for code, stamp in unresolved:
            if not self.clock.passed(stamp):
                break
            if code != END:
                passed = code, stamp
        return None if passed is None else (_PHASE_OF[passed[0]], self.clock.epoch(passed[1]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolver:
    """Turns marks into records, off the training loop."""

    clock: Clock
    attempt: int
    limits: Limits

    def record(self, done: Done, marks: list[Mark]) -> StepRecord:
        """The step's record; the marks' stamps are given back."""
        leave = max((index for index, (code, _) in enumerate(marks) if code == EXIT), default=None)
        before, after = [[0.0] for _ in PHASES], [[0.0] for _ in PHASES]
        collectives: dict[str, float] = {}
        for index, ((code, began), (_, ended)) in enumerate(pairwise(marks)):
            seconds = self.clock.seconds(began, ended)
            rows = before if leave is None or index < leave else after
            rows[_PHASE_OF[code]][0] += seconds
            if kind := _COLLECTIVE_OF.get(code):
                collectives[kind] = collectives.get(kind, 0.0) + seconds
        ended = self.clock.epoch(marks[-1][1])
        self.clock.release([stamp for _, stamp in marks[:-1]])
        return StepRecord(
            step=done.step,
            attempt=self.attempt,
            before=before,
            after=after,
            ended=[ended],
            tokens=done.tokens,
            flops=done.flops,
            collective=leave is not None,
            collectives=collectives,
            learning=self._learning(done),
            checkpointed=any(code == CHECKPOINT for code, _ in marks),
        )

    def _learning(self, done: Done) -> Learning | None:
        loss, norm = self.clock.number(done.loss), self.clock.number(done.gradient_norm)
        if loss is None and norm is None and done.learning_rate is None:
            return None
        limits = self.limits
        clipped = done.clipped
        if clipped is None:
            clipped = norm is not None and limits.clip_norm is not None and norm > limits.clip_norm
        return Learning(
            loss=loss,
            gradient_norm=norm,
            learning_rate=done.learning_rate,
            clipped=clipped,
            out_of_band=norm is not None and limits.band is not None and not limits.band[0] <= norm <= limits.band[1],
        )
