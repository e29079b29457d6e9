"""The timeline of one rank: marks, steps, and what becomes of them."""

from itertools import islice

import pytest

from stepscope.phases import ALLREDUCE, BACKWARD, CHECKPOINT, DATA_WAIT, FORWARD, H2D, OPTIMIZER, OTHER, PHASES
from stepscope.timeline import (
    ALL_GATHER,
    EXIT,
    FLUSH,
    MAX_BACKLOG,
    MAX_BEGINNINGS,
    POP,
    POP_EXIT,
    PUSH,
    Exhausted,
    Limits,
    Recorder,
    Resolver,
)  # fmt: skip


class Ticks:
    """A clock that a test sets. Stamps are passed up to ``device``, as on a GPU that lags behind."""

    def __init__(self, stamps=10**9):
        self.time, self.device, self.left = 0.0, float("inf"), stamps

    def stamp(self):
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

    def release(self, stamp):
        self.left += 1

    def keep(self, value):
        return value

    def number(self, kept):
        return kept


class Loop:
    """A recorder, its clock and its resolver."""

    def __init__(self, stamps=10**9, **options):
        self.ticks = Ticks(stamps)
        self.recorder = Recorder(self.ticks)
        self.resolver = Resolver(self.recorder, **options)

    def play(self, *marks):
        """(mark, seconds): set each and stay so long."""
        for code, seconds in marks:
            self.recorder.mark(code)
            self.ticks.time += seconds

    def done(self, step=None, *said):
        self.recorder.done(step, *said)

    def records(self, flush=True):
        if flush:
            self.recorder.mark(FLUSH)
        return list(self.resolver.records())


@pytest.fixture
def loop():
    return Loop()


STEP = ((DATA_WAIT, 1), (OTHER, 0.5), (FORWARD, 2), (BACKWARD, 4), (ALLREDUCE, 3), (EXIT, 0.25), (OPTIMIZER, 1))


def by_phase(rows):
    return {phase: row[0] for phase, row in zip(PHASES, rows, strict=True) if row[0]}


def test_a_step_is_split_at_the_collectives_exit(loop):
    """What comes before it, and what after; a checkpoint and a pause before the next batch belong to the old step."""
    loop.play(*STEP)
    loop.done(7, 64.0, 2.0)
    loop.play((CHECKPOINT, 5), (OTHER, 0.125), (DATA_WAIT, 1))
    (record,) = loop.records(flush=False)
    assert by_phase(record.before) == {"data_wait": 1, "forward": 2, "backward": 4, "allreduce": 3, "other": 0.5}
    assert by_phase(record.after) == {"optimizer": 1, "checkpoint": 5, "other": 0.375}
    assert (record.step, record.tokens, record.learning.loss) == (7, 64.0, 2.0)
    assert record.collective
    assert record.checkpointed
    assert record.collectives == {"all_reduce": 3}
    assert record.ended == [1000 + 16.875]


def test_a_step_says_which_one_it_follows():
    """By its own numbers, whatever they are; after a step that was lost it follows none."""
    loop = Loop()
    for number, step in enumerate((3, 7, 11, 15, 19)):
        loop.play(*STEP)
        if number == 2:
            loop.recorder.lost(Exhausted())
        loop.done(step)
    assert [(record.step, record.previous) for record in loop.records()] == [(3, -1), (7, 3), (15, 11), (19, 15)]


def test_blocks_may_be_nested(loop):
    """The inner phase has its own time; what was before goes on after it."""
    loop.play((PUSH + FORWARD, 1), (PUSH + ALL_GATHER, 2), (POP, 3), (PUSH + H2D, 4), (POP, 5), (POP, 6))
    loop.done()
    (record,) = loop.records()
    assert by_phase(record.before) == {"forward": 9, "allreduce": 2, "h2d": 4, "other": 6}


def test_a_block_may_end_in_the_collectives_exit(loop):
    """``with phase("allreduce")``, where the loop reduces by itself."""
    loop.play((PUSH + BACKWARD, 1), (POP, 2), (PUSH + ALLREDUCE, 3), (POP_EXIT, 4))
    loop.done()
    (record,) = loop.records()
    assert by_phase(record.before) == {"backward": 1, "allreduce": 3, "other": 2}
    assert by_phase(record.after) == {"other": 4}


def test_steps_follow_each_other_without_a_gap(loop):
    """The end of one is the beginning of the next: phases add up to the time between first and last mark."""
    for _ in range(5):
        loop.play(*STEP)
        loop.done()
    records = loop.records()
    assert [record.step for record in records] == [0, 1, 2, 3, 4]
    assert sum(sum(row[0] for row in (*r.before, *r.after)) for r in records) == loop.ticks.time


def test_of_several_exits_the_last_one_counts(loop):
    """Micro-batches under FSDP may each end in a collective."""
    loop.play((DATA_WAIT, 1), (BACKWARD, 1), (EXIT, 1), (BACKWARD, 1), (EXIT, 2), (OPTIMIZER, 1))
    loop.done()
    (record,) = loop.records()
    assert by_phase(record.before) == {"data_wait": 1, "backward": 2, "other": 1}


def test_a_step_without_a_collective_says_so(loop):
    """It extends the lap."""
    loop.play((DATA_WAIT, 1), (FORWARD, 1), (BACKWARD, 1))
    loop.done()
    (record,) = loop.records()
    assert not record.collective
    assert by_phase(record.after) == {}


def test_all_gathers_are_all_reduce_and_named_apart(loop):
    """One phase; the collective is told in a family of its own."""
    loop.play((FORWARD, 1), (ALL_GATHER, 2), (FORWARD, 1), (ALLREDUCE, 4), (EXIT, 0))
    loop.done()
    (record,) = loop.records()
    assert by_phase(record.before) == {"forward": 2, "allreduce": 6}
    assert record.collectives == {"all_gather": 2, "all_reduce": 4}


def test_steps_that_nothing_begins_are_recorded_all_the_same(loop):
    """A loop that names the optimizer alone, or nothing."""
    for _ in range(5):
        loop.play((PUSH + OPTIMIZER, 1), (POP, 1))
        loop.done()
    for _ in range(5):
        loop.done()
        loop.ticks.time += 1
    records = loop.records()
    assert [record.step for record in records] == list(range(10))
    assert sum(sum(row[0] for row in (*r.before, *r.after)) for r in records) == loop.ticks.time


def test_after_a_lost_step_the_numbers_still_agree_with_other_ranks(loop):
    """Ranks are matched by them: what is missing is missing, and nothing moves up."""
    for step in range(6):
        loop.play(*STEP)
        if step == 2:
            loop.ticks.left, kept = 0, loop.ticks.left
        loop.done()
        if step == 2:
            loop.ticks.left = kept
    assert [record.step for record in loop.records()] == [0, 1, 4, 5]
    assert loop.resolver.dropped == 2


def test_a_block_that_exits_gives_the_outer_one_back(loop):
    """A collective of one's own within the optimizer."""
    loop.play((PUSH + OPTIMIZER, 1), (PUSH + ALLREDUCE, 2), (POP_EXIT, 4), (POP, 0))
    loop.done()
    (record,) = loop.records()
    assert by_phase(record.before) == {"optimizer": 1, "allreduce": 2}
    assert by_phase(record.after) == {"optimizer": 4}


def test_measuring_a_mark_moves_nothing(loop):
    """``step_done`` within a block: the block goes on, in the step that is measured as in all others."""
    for _ in range(200):
        loop.play((DATA_WAIT, 1), (PUSH + OPTIMIZER, 1))
        loop.done()
        loop.play((POP, 1))
    assert {tuple(by_phase(record.before).items()) for record in loop.records()} == {
        (("data_wait", 2), ("optimizer", 1)),
    }  # fmt: skip


def test_step_numbers_only_grow(loop):
    """A number that does not is replaced: the ranks of a step are found by it."""
    for step in (5, 6, 6, 2, None, 20):
        loop.play(*STEP)
        loop.done(step)
    assert [record.step for record in loop.records()] == [5, 6, 7, 8, 9, 20]


def test_nothing_is_resolved_before_the_device_has_passed_it(loop):
    """On a GPU the host runs ahead; the phase shown is the one that the device is in."""
    loop.play(*STEP)
    loop.done()
    loop.play((DATA_WAIT, 0))
    loop.ticks.device = 5.0
    assert loop.records(flush=False) == []
    assert loop.resolver.current() == (BACKWARD, 1003.5)
    loop.ticks.device = 100.0
    assert len(loop.records(flush=False)) == 1
    assert loop.resolver.current() == (DATA_WAIT, 1011.75)


def test_stamps_are_given_back(loop):
    """All but the newest, which the next phase is measured from."""
    for _ in range(3):
        loop.play(*STEP)
        loop.done()
    loop.records()
    assert loop.ticks.left == 10**9 - 1


def test_without_stamps_a_step_is_dropped_and_the_next_is_whole():
    """The device is too far behind: counted, and nothing half-measured is published."""
    loop = Loop(stamps=5)
    for step in range(6):
        if step == 3:
            loop.ticks.left = 100
        loop.play((DATA_WAIT, 1), (PUSH + FORWARD, 1), (POP, 0), (PUSH + BACKWARD, 1), (POP, 0))
        loop.done()
    kept = loop.records()
    assert loop.resolver.dropped + len(kept) == 6
    assert 2 <= len(kept) <= 4
    assert all(by_phase(record.before) == {"data_wait": 1, "forward": 1, "backward": 1} for record in kept)


def test_steps_that_nobody_resolves_are_bounded(loop):
    """The oldest are lost, and counted as soon as somebody looks."""
    for _ in range(MAX_BACKLOG):
        loop.play((DATA_WAIT, 1))
        loop.done()
    assert len(loop.recorder.stream) == MAX_BACKLOG
    kept = loop.records()
    assert 0.48 * MAX_BACKLOG < len(kept) <= 0.5 * MAX_BACKLOG
    assert loop.resolver.dropped + len(kept) == MAX_BACKLOG


def test_a_loop_that_never_ends_a_step_is_said_to_be_endless(loop):
    """It forgot ``step_done``. A step that long is no step."""
    assert not loop.resolver.endless
    for _ in range(MAX_BEGINNINGS):
        loop.play((FORWARD, 1), (BACKWARD, 1))
        if len(loop.recorder.stream) > 1000:
            assert loop.records(flush=False) == []
    assert loop.resolver.endless
    loop.done()
    loop.play(*STEP)
    loop.done()
    assert len(loop.records()) == 1
    assert loop.resolver.dropped == 1


def test_a_step_may_wait_in_any_number_of_collectives(loop):
    """A large FSDP model gathers parameters thousands of times in a step of many micro-batches."""
    loop.play((DATA_WAIT, 1), (FORWARD, 1))
    for _ in range(40_000):
        loop.play((PUSH + ALL_GATHER, 0.5), (POP, 0.5))
        if len(loop.recorder.stream) > 1000:
            assert loop.records(flush=False) == []
    loop.done()
    (record,) = loop.records()
    assert by_phase(record.before) == {"data_wait": 1, "forward": 20_001, "allreduce": 20_000}
    assert not loop.resolver.endless


def test_a_clock_that_fails_ends_the_recording():
    """It is told once, and nothing is raised; what was whole before is kept."""
    said = []
    ticks = Ticks()
    recorder = Recorder(ticks, said.append)
    resolver = Resolver(recorder)
    loop = Loop()
    loop.ticks, loop.recorder, loop.resolver = ticks, recorder, resolver
    loop.play(*STEP)
    loop.done()
    loop.play((DATA_WAIT, 1))
    recorder.stamp = lambda: 1 / 0
    for _ in range(3):
        loop.play(*STEP)
        loop.done()
    assert [type(error) for error in said] == [ZeroDivisionError]
    assert not recorder.alive
    assert len(loop.records()) == 1


@pytest.mark.parametrize(
    ("norm", "clipped", "out_of_band"),
    [(0.5, False, False), (1.5, True, False), (30.0, True, True), (0.01, False, True), (float("nan"), False, True)],
)
def test_norms_are_held_against_the_limits(norm, clipped, out_of_band):
    """The clipping threshold, and the band; NaN is in no band."""
    loop = Loop(limits=Limits(clip_norm=1.0, band=(0.1, 20.0)))
    loop.play((DATA_WAIT, 1))
    loop.done(None, None, None, norm)
    (record,) = loop.records()
    assert (record.learning.clipped, record.learning.out_of_band) == (clipped, out_of_band)
    assert record.learning.nonfinite == (norm != norm)


@pytest.mark.parametrize(("said", "kept"), [((), None), ((0.0,), [0.0]), ((2.5,), [2.5])])
def test_the_ranks_own_gradient_norm_is_a_column_of_one(loop, said, kept):
    """None where the loop does not say it; it is the rank's, and says nothing about the run's learning."""
    loop.play(*STEP)
    loop.done(*[None] * 6, *said)
    (record,) = loop.records()
    assert record.local_gradient_norm == kept
    assert record.learning is None


def test_a_gradient_norm_that_cannot_be_read_is_absent_and_counted():
    """The step is recorded all the same."""
    failed = []
    loop = Loop(failed=failed.append)
    loop.ticks.number = lambda kept: None if kept is None else kept.item()
    loop.play(*STEP)
    loop.done(*[None] * 6, "large")
    (record,) = loop.records()
    assert record.local_gradient_norm is None
    assert [type(error) for error in failed] == [AttributeError]


def test_what_a_step_does_not_say_is_filled_in():
    """Tokens, FLOPs and the learning rate of the moment."""
    loop = Loop(tokens=8.0, flops=lambda tokens: 10 * tokens, learning_rate=lambda: 0.5)
    loop.play(*STEP)
    loop.done()
    loop.play(*STEP)
    loop.done(None, 4.0, None, None, 0.25)
    first, second = loop.records()
    assert (first.tokens, first.flops, first.learning.learning_rate) == (8.0, 80.0, 0.5)
    assert (second.tokens, second.flops, second.learning.learning_rate) == (4.0, 40.0, 0.25)


def test_what_recording_costs_is_counted(loop, monkeypatch):
    """As many marks as there were, each as long as those that are timed; one that was interrupted does not count."""
    watch = iter(1e-6 * number for number in range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: next(watch))
    for number in range(2000):
        if number == 1024:
            next(islice(watch, 5000, 5000), None)
        loop.play(*STEP)
        loop.done()
    loop.records()
    assert loop.resolver.overhead_seconds == pytest.approx(2000 * (len(STEP) + 1) * 1e-6, rel=0.02)
