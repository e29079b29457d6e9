"""The timeline of one rank: stamps taken in the training loop, taken apart into phases later, by another thread.

The loop only appends marks, each a code and a stamp, to one stream; every decision is the resolver's. A phase lasts from
its mark to the next one, so phases add up to the wall time by construction. Stamps come from one clock per rank: on a
CPU they are monotonic seconds, on CUDA they are events on the compute stream, which are resolved when the device has
passed them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, Protocol, TypeAlias

from stepscope.phases import ALLREDUCE, BACKWARD, CHECKPOINT, DATA_WAIT, FORWARD, H2D, OTHER, PHASES
from stepscope.record import Learning, StepRecord

log = logging.getLogger("stepscope")

ALL_GATHER, REDUCE_SCATTER = range(len(PHASES), len(PHASES) + 2)
"""Phases to the loop; in the record they are ``allreduce``, and named as collectives."""
PUSH = 16
"""Added to a phase: it holds until the matching ``POP``, when what was before goes on. Alone, a phase holds until the next."""
POP, POP_EXIT, EXIT, DONE, FLUSH, LOST, NOTE = range(32, 39)
"""``EXIT``: the step's last gradient collective is over. ``POP_EXIT``: both. ``DONE``: what ``step_done`` said. ``FLUSH``:
the loop is over. ``LOST``: marks could not be made. ``NOTE``: nothing."""

_PHASE_OF = (*range(len(PHASES)), ALLREDUCE, ALLREDUCE)
_COLLECTIVE_OF = {ALLREDUCE: "all_reduce", ALL_GATHER: "all_gather", REDUCE_SCATTER: "reduce_scatter"}
_BEGINNERS = (DATA_WAIT, H2D, FORWARD, BACKWARD)
"""With these a step begins. A checkpoint or a pause after ``step_done`` still belongs to the old one."""

MAX_BACKLOG = 100_000
"""Marks that wait to be resolved; the oldest are lost beyond that."""
MAX_BEGINNINGS = 4000
"""Of one step: batches, forwards and backwards of 1,000 micro-batches. A loop that never calls ``step_done`` ends here."""

LARGEST_STEP = 2**53
"""Beyond it a float cannot count."""

SAMPLED = 128
"""In one of so many steps a mark is timed."""

Mark: TypeAlias = tuple[Any, ...]


class Exhausted(RuntimeError):
    """The clock has no more stamps to give: the device is too far behind."""


class Clock(Protocol):
    """Where stamps come from."""

    def stamp(self) -> Any:
        """The present moment of this rank's timeline. Raises ``Exhausted``."""

    def passed(self, stamp: Any) -> bool:
        """Whether the rank has got there. Stamps are passed in the order in which they were taken."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """Between two stamps that were passed."""

    def epoch(self, stamp: Any) -> float:
        """When a passed stamp was passed, seconds since the epoch."""

    def release(self, stamp: Any) -> None:
        """Give a stamp back that nobody will look at again."""

    def keep(self, value: Any) -> Any:
        """A number or a tensor of one element, for ``number`` to read after the step's last stamp was passed; or None."""

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

    stamp = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self._epoch = time.time() - time.perf_counter()

    def passed(self, stamp: float) -> bool:
        return True

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier

    def epoch(self, stamp: float) -> float:
        return self._epoch + stamp

    def release(self, stamp: float) -> None:
        """There are enough."""

    def keep(self, value: Any) -> float | None:
        """Read at once: a tensor may be changed in place."""
        if hasattr(value, "placements"):
            value = local_scalar(value)
        return None if value is None else value.item() if hasattr(value, "item") else float(value)

    def number(self, kept: float | None) -> float | None:
        return kept


class Done(NamedTuple):
    """What ``step_done`` said about a step. Numbers may be tensors, kept by the clock; None is what it did not say."""

    number: int
    """Of the steps done so far: a gap tells how many were lost."""
    step: Any = None
    tokens: Any = None
    loss: Any = None
    gradient_norm: Any = None
    learning_rate: Any = None
    clipped: bool | None = None
    local_gradient_norm: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a gradient norm is held against: the clipping threshold, and the band that it should stay in."""

    clip_norm: float | None = None
    band: tuple[float, float] | None = None


class Recorder:
    """The training loop's side. Nothing here waits, raises or grows, and nothing is decided here: costs are a stamp and an
    append. A clock that fails is told to ``failed`` once, and recording ends.
    """

    __slots__ = ("_failed", "_number", "_samples", "alive", "append", "clock", "mark_seconds", "stamp", "stream")

    def __init__(self, clock: Clock, failed: Callable[[Exception], None] = lambda error: None) -> None:
        self.clock = clock
        self.alive = True
        self.stream: deque[Mark] = deque(maxlen=MAX_BACKLOG)
        self.append, self.stamp = self.stream.append, clock.stamp
        self.mark_seconds = 0.0
        """That a mark takes; measured in one step of so many."""
        self._samples: deque[float] = deque(maxlen=9)
        self._failed = failed
        self._number = 0

    def use(self, clock: Clock) -> None:
        """Take stamps from another clock: before the first one only."""
        self.clock, self.stamp = clock, clock.stamp

    def mark(self, code: int) -> None:
        """From now on it is this phase; or another of the marks."""
        try:
            self.append((code, self.stamp()))
        except Exception as error:
            self.lost(error)

    def done(self, *said: Any) -> None:
        """The step is done; it lasts until the next one begins. ``said`` is what ``Done`` holds beside the number."""
        self._number = number = self._number + 1
        try:
            self.append((DONE, self.stamp(), number, *said))
        except Exception as error:
            self.lost(error)
        if number % SAMPLED == 1:
            self._measure()

    def _measure(self) -> None:
        """What a mark takes, here and now, with the loop's caches: a mark that says nothing, timed."""
        began = time.perf_counter()
        self.mark(NOTE)
        self._samples.append(time.perf_counter() - began)
        self.mark_seconds = median(self._samples)  # one of them may have been interrupted

    def lost(self, error: Exception) -> None:
        """A mark could not be made: the step that it belongs to is dropped. All others are, too, if the clock has failed."""
        if not self.stream or self.stream[-1][0] != LOST:
            self.append((LOST, None))
        if not isinstance(error, Exhausted):
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Record nothing any more."""
        if self.alive:
            self.alive = False
            self.append, self.stamp = _nowhere, _never
            self._failed(error)

    def close(self) -> None:
        """Forget what nobody will resolve, and what comes."""
        self.append, self.stamp = _nowhere, _never
        self.stream.clear()


def _nowhere(mark: Mark) -> None:
    """Where the marks of a closed recorder go."""


def _never() -> None:
    """Its stamps."""


@dataclass(kw_only=True, slots=True)
class _Open:
    """The step that is being resolved."""

    before: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))
    after: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))
    collectives: dict[str, float] = field(default_factory=dict)
    beginnings: int = 0
    exited: bool = False
    checkpointed: bool = False
    spoiled: bool = False
    done: Done | None = None


class Resolver:
    """Turns the stream of marks into step records, off the training loop. One thread at a time."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        limits: Limits | None = None,
        tokens: float = 0.0,
        flops: Callable[[float], float] = lambda tokens: 0.0,
        learning_rate: Callable[[], float | None] = lambda: None,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """``tokens`` are those of a step that does not say its own, ``flops`` a step's by its tokens, and
        ``learning_rate`` that of this moment."""
        self._recorder = recorder
        self._limits = limits or Limits()
        self._tokens, self._flops, self._learning_rate = tokens, flops, learning_rate
        self._failed = failed
        self._open = _Open()
        self._stack: list[int] = []
        self._phase = OTHER
        self._since: Any = None
        self._step = self._previous = -1
        self._counted = 0
        self._renumbered = False
        self.dropped = 0
        """Steps that were done and not recorded."""
        self.endless = False
        """A step had more micro-batches than any can: nobody calls ``step_done``."""
        self.overhead_seconds = 0.0
        """That recording took in the loop: all marks, each as long as those that were measured lately."""

    @property
    def _clock(self) -> Clock:
        return self._recorder.clock

    def records(self) -> Iterator[StepRecord]:
        """The steps that the rank has passed since the last call, oldest first."""
        stream = self._recorder.stream
        if len(stream) == MAX_BACKLOG:
            self._open.spoiled = True
        while stream and (stream[0][1] is None or self._clock.passed(stream[0][1])):
            record = self._take(*stream.popleft())
            if record:
                yield record

    def use(self, make: Callable[[], Clock]) -> bool:
        """Take the clock that is made. False once something was recorded: stamps of two clocks cannot be compared."""
        untouched = self._since is None and not self._recorder.stream
        if untouched:
            self._recorder.use(make())
        return untouched

    def current(self) -> tuple[int, float] | None:
        """The phase that the rank is in, and since when (seconds since the epoch); None before the first mark."""
        return None if self._since is None else (_PHASE_OF[self._phase], self._clock.epoch(self._since))

    def _take(self, code: int, stamp: Any, *said: Any) -> StepRecord | None:
        if code == LOST:
            self._open.spoiled = True
            return None
        record = None
        self._charge(stamp)
        entered = code & ~PUSH if code < POP else None
        if self._open.done and (code == FLUSH or entered in _BEGINNERS):
            record = self._end()
        if entered is not None:
            if code & PUSH:
                self._stack.append(self._phase)
            self._phase = entered
            self._open.checkpointed |= entered == CHECKPOINT
            self._open.beginnings += entered in _BEGINNERS
            if self._open.beginnings > MAX_BEGINNINGS and not self._open.spoiled:
                self._open.spoiled = self.endless = True
        elif code == DONE:
            record = self._finish(Done(*said))
        elif code in (POP, POP_EXIT):
            self._phase = self._stack.pop() if self._stack else OTHER
        elif code == EXIT:
            self._phase = OTHER
        if code in (EXIT, POP_EXIT):
            self._exit()
        return record

    def _charge(self, stamp: Any) -> None:
        """The time since the last mark goes to the phase that it began."""
        step = self._open
        if self._since is not None:
            seconds = self._clock.seconds(self._since, stamp)
            step.after[_PHASE_OF[self._phase]] += seconds
            if kind := _COLLECTIVE_OF.get(self._phase):
                step.collectives[kind] = step.collectives.get(kind, 0.0) + seconds
            self._clock.release(self._since)
        self._since = stamp
        self.overhead_seconds += self._recorder.mark_seconds

    def _exit(self) -> None:
        """Everything up to here was before the collective's exit; the last one of a step counts."""
        step = self._open
        step.before = [a + b for a, b in zip(step.before, step.after, strict=True)]
        step.after = [0.0] * len(PHASES)
        step.exited = True

    def _finish(self, done: Done) -> StepRecord | None:
        record = self._end() if self._open.done else None  # nothing began a step between two that are done
        self._open.done = done
        self._phase = OTHER if not self._stack else self._phase
        return record

    def _end(self) -> StepRecord | None:
        """Close the open step where the next one begins. None for one that is not whole."""
        step, self._open = self._open, _Open()
        self._stack.clear()  # lost marks may have left something there
        self._phase = OTHER
        done = step.done
        assert done is not None
        further = done.number - self._counted
        self.dropped += further - 1 + step.spoiled
        self._counted = done.number
        before, said = self._step, self._number(done.step)
        if said is not None and said <= before and not self._renumbered:
            self._renumbered = True
            log.warning("step_done(step=%.0f) after step %d: steps must grow, over epochs as well, and are counted on from there",
                        said, before)  # fmt: skip
        self._step = int(said) if said is not None and before < said < LARGEST_STEP else before + further
        self._previous = before if further == 1 else -1
        return None if step.spoiled else self._record(step, done)

    def _record(self, step: _Open, done: Done) -> StepRecord:
        before, after = (step.before, step.after) if step.exited else (step.after, [0.0] * len(PHASES))
        tokens, local_norm = self._number(done.tokens), self._number(done.local_gradient_norm)
        tokens = self._tokens if tokens is None else tokens
        return StepRecord(
            step=self._step,
            previous=self._previous,
            before=[[seconds] for seconds in before],
            after=[[seconds] for seconds in after],
            ended=[self._clock.epoch(self._since)],
            tokens=tokens,
            flops=self._flops(tokens),
            collective=step.exited,
            collectives=step.collectives,
            learning=self._learning(done),
            local_gradient_norm=None if local_norm is None else [local_norm],
            checkpointed=step.checkpointed,
        )

    def _number(self, kept: Any) -> float | None:
        try:
            return None if kept is None else self._clock.number(kept)
        except Exception as error:
            self._failed(error)
            return None

    def _learning(self, done: Done) -> Learning | None:
        loss, norm = self._number(done.loss), self._number(done.gradient_norm)
        rate = self._number(done.learning_rate)
        rate = self._learning_rate() if rate is None else rate
        if loss is None and norm is None and rate is None:
            return None
        limits = self._limits
        clipped = done.clipped
        if clipped is None:
            clipped = norm is not None and limits.clip_norm is not None and norm > limits.clip_norm
        return Learning(
            loss=loss,
            gradient_norm=norm,
            learning_rate=rate,
            clipped=clipped,
            out_of_band=norm is not None and limits.band is not None and not limits.band[0] <= norm <= limits.band[1],
        )
