"""The timeline of one rank: marks, steps, and what becomes of them."""

import pytest

from stepscope.phases import ALLREDUCE, BACKWARD, CHECKPOINT, DATA_WAIT, FORWARD, OPTIMIZER, OTHER, PHASES
from stepscope.timeline import ALL_GATHER, EXIT, MAX_MARKS, MAX_PENDING, Done, Exhausted, Limits, Recorder, Resolver


class Ticks:
    """A clock that a test sets. Stamps are passed up to ``device``, as on a GPU that lags behind."""

    def __init__(self, stamps=10**9):
        self.time, self.device, self.left, self.released = 0.0, float("inf"), stamps, []

    def stamp(self, now):
        if not self.left:
            raise Exhausted
        self.left -= 1
        return self.time

    def passed(self, stamp):
        return stamp <= self.device

    def seconds(self, earlier, later):
        return later - earlier

    def epoch(self, stamp):
        return 1000.0 + stamp

    def release(self, stamps):
        self.released.extend(stamps)
        self.left += len(stamps)

    def keep(self, value):
        return value

    def number(self, kept):
        return kept


@pytest.fixture
def ticks():
    return Ticks()


@pytest.fixture
def recorder(ticks):
    return Recorder(ticks)


def play(recorder, ticks, *marks):
    """(phase, seconds): enter each and stay so long."""
    for code, seconds in marks:
        recorder.enter(code)
        ticks.time += seconds


STEP = ((DATA_WAIT, 1), (OTHER, 0.5), (FORWARD, 2), (BACKWARD, 4), (ALLREDUCE, 3), (EXIT, 0.25), (OPTIMIZER, 1))


def records(recorder, ticks, limits=None):
    resolver = Resolver(clock=ticks, attempt=2, limits=limits or Limits())
    return [resolver.record(*step) for step in recorder.finished()]


def by_phase(rows):
    return {phase: row[0] for phase, row in zip(PHASES, rows, strict=True) if row[0]}


def test_a_step_is_split_at_the_collectives_exit(recorder, ticks):
    """What comes before it, and what after; a checkpoint and a pause before the next batch belong to the old step."""
    play(recorder, ticks, *STEP)
    recorder.done(Done(step=7, tokens=64.0, flops=1e9, loss=2.0))
    play(recorder, ticks, (CHECKPOINT, 5), (OTHER, 0.125), (DATA_WAIT, 1))
    (record,) = records(recorder, ticks)
    assert by_phase(record.before) == {"data_wait": 1, "forward": 2, "backward": 4, "allreduce": 3, "other": 0.5}
    assert by_phase(record.after) == {"optimizer": 1, "checkpoint": 5, "other": 0.375}
    assert (record.step, record.attempt, record.tokens, record.collective) == (7, 2, 64.0, True)
    assert record.checkpointed
    assert record.collectives == {"all_reduce": 3}
    assert record.ended == [1000 + 16.875]


def test_steps_follow_each_other_without_a_gap(recorder, ticks):
    """The end of one is the beginning of the next: phases add up to the time between first and last entry."""
    for number in range(5):
        play(recorder, ticks, *STEP)
        recorder.done(Done(step=number))
    recorder.flush()
    total = sum(sum(row[0] for row in (*r.before, *r.after)) for r in records(recorder, ticks))
    assert total == ticks.time


def test_of_several_exits_the_last_one_counts(recorder, ticks):
    """Micro-batches under FSDP may each end in a collective."""
    play(recorder, ticks, (DATA_WAIT, 1), (BACKWARD, 1), (EXIT, 1), (BACKWARD, 1), (EXIT, 2), (OPTIMIZER, 1))
    recorder.done(Done(step=0))
    recorder.flush()
    (record,) = records(recorder, ticks)
    assert by_phase(record.before) == {"data_wait": 1, "backward": 2, "other": 1}


def test_a_step_without_a_collective_says_so(recorder, ticks):
    """It extends the lap."""
    play(recorder, ticks, (DATA_WAIT, 1), (FORWARD, 1), (BACKWARD, 1))
    recorder.done(Done(step=0))
    recorder.flush()
    (record,) = records(recorder, ticks)
    assert not record.collective
    assert by_phase(record.after) == {}


def test_all_gathers_are_all_reduce_and_named_apart(recorder, ticks):
    """One phase; the collective is told in a family of its own."""
    play(recorder, ticks, (FORWARD, 1), (ALL_GATHER, 2), (FORWARD, 1), (ALLREDUCE, 4), (EXIT, 0))
    recorder.done(Done(step=0))
    recorder.flush()
    (record,) = records(recorder, ticks)
    assert by_phase(record.before) == {"forward": 2, "allreduce": 6}
    assert record.collectives == {"all_gather": 2, "all_reduce": 4}


def test_nothing_is_resolved_before_the_device_has_passed_it(recorder, ticks):
    """On a GPU the host runs ahead; the phase shown is the one that the device is in."""
    play(recorder, ticks, *STEP)
    recorder.done(Done(step=0))
    recorder.enter(DATA_WAIT)
    ticks.device = 5.0
    assert records(recorder, ticks) == []
    assert recorder.current() == (BACKWARD, 1003.5)
    ticks.device = 100.0
    assert len(records(recorder, ticks)) == 1
    assert recorder.current() == (DATA_WAIT, 1011.75)


def test_stamps_are_given_back_once(recorder, ticks):
    """All but the newest, which the open step begins with."""
    for number in range(3):
        play(recorder, ticks, *STEP)
        recorder.done(Done(step=number))
    recorder.flush()
    records(recorder, ticks)
    assert len(ticks.released) == 3 * (len(STEP) + 1)  # and what follows step_done
    assert ticks.left == 10**9 - 1


def test_without_stamps_a_step_is_dropped_and_the_next_is_whole():
    """The device is too far behind: counted, and nothing half-measured is published."""
    ticks = Ticks(stamps=5)
    recorder = Recorder(ticks)
    for number in range(3):
        play(recorder, ticks, (DATA_WAIT, 1), (FORWARD, 1), (BACKWARD, 1))
        recorder.done(Done(step=number))
    ticks.left = 100
    for number in range(3, 6):
        play(recorder, ticks, (DATA_WAIT, 1), (FORWARD, 1), (BACKWARD, 1))
        recorder.done(Done(step=number))
    recorder.flush()
    kept = records(recorder, ticks)
    assert recorder.dropped + len(kept) == 6
    assert 1 <= recorder.dropped <= 3
    assert all(by_phase(record.before) == {"data_wait": 1, "forward": 1, "backward": 1} for record in kept)


def test_steps_that_nobody_resolves_are_bounded(recorder, ticks):
    """Dropped and counted; what was kept is the older part."""
    for number in range(MAX_PENDING + 10):
        play(recorder, ticks, (DATA_WAIT, 1))
        recorder.done(Done(step=number))
    recorder.flush()
    assert len(recorder.pending) == MAX_PENDING
    assert recorder.dropped == 10


def test_a_loop_that_never_ends_a_step_holds_no_more_than_so_many_marks(recorder, ticks):
    """It forgot ``step_done``: the marks are let go, and it is said."""
    for _ in range(MAX_MARKS):
        play(recorder, ticks, (FORWARD, 1), (BACKWARD, 1))
    assert recorder.endless
    assert len(ticks.released) >= MAX_MARKS
    assert len(recorder._marks) < MAX_MARKS


@pytest.mark.parametrize(
    ("norm", "clipped", "out_of_band"),
    [(0.5, False, False), (1.5, True, False), (30.0, True, True), (0.01, False, True), (float("nan"), False, True)],
)
def test_norms_are_held_against_the_limits(recorder, ticks, norm, clipped, out_of_band):
    """The clipping threshold, and the band; NaN is in no band."""
    play(recorder, ticks, (DATA_WAIT, 1))
    recorder.done(Done(step=0, gradient_norm=norm))
    recorder.flush()
    (record,) = records(recorder, ticks, Limits(clip_norm=1.0, band=(0.1, 20.0)))
    assert (record.learning.clipped, record.learning.out_of_band) == (clipped, out_of_band)
    assert record.learning.nonfinite == (norm != norm)
