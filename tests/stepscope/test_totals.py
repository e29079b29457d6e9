"""Running totals of one rank."""

import pytest

from stepscope.phases import ALLREDUCE, FORWARD, OPTIMIZER, PHASES
from stepscope.record import Learning, StepRecord
from stepscope.totals import STEP_SECONDS_BOUNDS, RankTotals


def record(step, *, allreduce=0.1, forward=0.3, optimizer=0.05, **more):
    """A step of one rank."""
    before = [[0.0] for _ in PHASES]
    after = [[0.0] for _ in PHASES]
    before[FORWARD], before[ALLREDUCE], after[OPTIMIZER] = [forward], [allreduce], [optimizer]
    return StepRecord(step=step, before=before, after=after, ended=[float(step)], tokens=10, flops=1e12, **more)


def test_phases_add_up_to_the_durations():
    """Before and after the collective's exit both count."""
    totals = RankTotals()
    for step in range(10):
        totals.add(record(step))
    assert sum(total[0] for total in totals.phase_seconds) == pytest.approx(4.5)
    assert totals.last_duration == [pytest.approx(0.45)]
    assert (totals.steps, totals.tokens, totals.flops) == (10, 100, 1e13)


def test_floor_is_the_smallest_allreduce_of_the_last_64_steps():
    """An old small one is forgotten."""
    totals = RankTotals()
    assert totals.floor() is None
    totals.add(record(0, allreduce=0.01))
    for step in range(1, 64):
        totals.add(record(step, allreduce=0.2 + step / 1000))
    assert totals.floor() == [0.01]
    totals.add(record(64, allreduce=0.3))
    assert totals.floor() == [0.201]


def test_flops_per_second_is_taken_over_wall_time():
    """1 TFLOP in 0.45 s."""
    totals = RankTotals()
    assert totals.flops_per_second() is None
    totals.add(record(0))
    assert totals.flops_per_second() == [pytest.approx(1e12 / 0.45)]


def test_durations_fall_into_their_buckets():
    """A bound belongs to the bucket below it, as Prometheus's le means."""
    totals = RankTotals()
    totals.add(record(0, forward=0.25, allreduce=0.0, optimizer=0.0))
    totals.add(record(1, forward=99.0))
    counts = [row[0] for row in totals.duration_counts()]
    assert counts[STEP_SECONDS_BOUNDS.index(0.25)] == 1
    assert counts[-1] == 1
    assert sum(counts) == 2


def test_learning_is_counted_even_when_it_is_not_a_number():
    """The gauge shows NaN, the counter rises."""
    totals = RankTotals()
    totals.add(record(0, learning=Learning(loss=2.0, gradient_norm=0.3, learning_rate=1e-3)))
    nan = float("nan")
    totals.add(record(1, learning=Learning(loss=nan, gradient_norm=nan, learning_rate=1e-3, out_of_band=True)))
    totals.add(record(2, checkpointed=True))
    assert totals.run.nonfinite == 1
    assert totals.run.out_of_band == 1
    assert totals.run.checkpoints == 1
    assert totals.run.last_checkpoint == 2.0
    assert totals.run.loss != totals.run.loss


@pytest.mark.parametrize(("loss", "norm"), [(float("inf"), 1.0), (1.0, float("nan")), (float("nan"), 1.0)])
def test_either_value_makes_a_step_nonfinite(loss, norm):
    """Infinite counts as well as NaN."""
    assert Learning(loss=loss, gradient_norm=norm, learning_rate=1.0).nonfinite
    assert not Learning(loss=1.0, gradient_norm=1.0, learning_rate=1.0).nonfinite
