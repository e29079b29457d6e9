"""Who arrived last, what the lap waited for, and who is to blame."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.critical_path import PLAIN, critical_path
from stepscope.phases import ALLREDUCE, BACKWARD, DATA_WAIT, FORWARD, OTHER, PHASES
from stepsim.fleet import ArrayOperations


def lap(ranks, **phases):
    """Rows of seconds; unnamed phases are 0."""
    return [list(map(float, phases.get(phase, [0.0] * ranks))) for phase in PHASES]


def test_the_last_arriver_has_the_shortest_allreduce():
    """Rank 2 computes 3 s longer than the others: its all-reduce is pure transfer, theirs is waiting."""
    laps = lap(4, forward=[1, 1, 2, 1], backward=[2, 2, 4, 2], allreduce=[3.5, 3.5, 0.5, 3.5])
    verdict = critical_path(laps, [0, 0, 1, 1])
    assert verdict.rank.index == 2
    assert verdict.seconds[ALLREDUCE] == 0.5
    assert sum(verdict.seconds) == 6.5
    assert verdict.waits == [3.0, 3.0, 0.0, 3.0]


def test_lateness_is_booked_by_phase_in_proportion_to_the_excess():
    """3 s late, of which one in forward and two in backward."""
    laps = lap(4, forward=[1, 1, 2, 1], backward=[2, 2, 4, 2], allreduce=[3.5, 3.5, 0.5, 3.5])
    late = critical_path(laps, [0, 0, 1, 1]).rank.seconds
    assert (late[FORWARD], late[BACKWARD]) == (1.0, 2.0)
    assert sum(late) == 3.0


def test_one_slow_rank_does_not_accuse_its_node():
    """A node is taken at its median rank."""
    laps = lap(4, backward=[1, 1, 1, 4], allreduce=[3, 3, 3, 0])
    assert sum(critical_path(laps, [0, 0, 1, 1]).node.seconds) == 0.0


def test_a_slow_node_is_named_of_two():
    """All its ranks wait for data; the one that waits less speaks for it."""
    laps = lap(4, data_wait=[0, 0, 2, 2.5], allreduce=[2.5, 2.5, 0.5, 0])
    verdict = critical_path(laps, [0, 0, 1, 1])
    assert verdict.node.index == 1
    assert verdict.node.seconds[DATA_WAIT] == 2.0
    assert sum(verdict.node.seconds) == 2.0


def test_a_single_rank_is_never_late():
    """Without others there is nobody to be later than."""
    verdict = critical_path(lap(1, forward=[1], allreduce=[0]), [0])
    assert sum(verdict.rank.seconds) == 0.0
    assert sum(verdict.node.seconds) == 0.0


def test_of_two_other_ranks_the_earlier_one_is_the_measure():
    """Late by 3 s against the rank that came first, not by 1 s against the one that was late itself."""
    laps = lap(3, forward=[1, 3, 4], allreduce=[3, 1, 0])
    assert critical_path(laps, [0, 0, 0]).rank.seconds[FORWARD] == 3.0


def test_lateness_without_any_excess_is_booked_as_other():
    """Rounding can hide where the time went; it is not lost."""
    laps = lap(3, forward=[1, 1, 1], allreduce=[0.1, 0.3, 0.3])
    assert critical_path(laps, [0, 0, 0]).rank.seconds[OTHER] == 0.3 - 0.1


@st.composite
def shifted_laps(draw):
    """Laps as a real job has them: all ranks leave together, so all-reduce is what remains of the lap."""
    nodes = draw(st.integers(1, 5))
    size = draw(st.integers(1, 6))
    ranks = nodes * size
    row = st.lists(st.floats(0, 10, allow_nan=False, width=32), min_size=ranks, max_size=ranks)
    rows = np.array([draw(row) for _ in PHASES])
    rows[ALLREDUCE] = 0
    rows[ALLREDUCE] = rows.sum(axis=0).max() + draw(st.floats(0, 1, width=32)) - rows.sum(axis=0)
    return rows, size


@given(shifted_laps())
@settings(max_examples=200, deadline=None)
def test_arrays_and_lists_reach_the_same_verdict(laps):
    """The definition stands once; only the order statistics are swapped."""
    rows, size = laps
    nodes = [rank // size for rank in range(rows.shape[1])]
    plain = critical_path(rows.tolist(), nodes, PLAIN)
    fast = critical_path(rows, nodes, ArrayOperations(size))
    assert fast.rank.index == plain.rank.index
    assert fast.node.index == plain.node.index
    np.testing.assert_allclose(fast.seconds, plain.seconds)
    np.testing.assert_allclose(fast.rank.seconds, plain.rank.seconds, atol=1e-12)
    np.testing.assert_allclose(fast.node.seconds, plain.node.seconds, atol=1e-12)
    np.testing.assert_allclose(fast.waits, plain.waits, atol=1e-12)


@given(shifted_laps())
@settings(max_examples=100, deadline=None)
def test_the_path_adds_up_to_the_lap_and_nothing_is_negative(laps):
    """Time accounting closes for the critical path, too."""
    rows, size = laps
    verdict = critical_path(rows, [rank // size for rank in range(rows.shape[1])], ArrayOperations(size))
    np.testing.assert_allclose(sum(verdict.seconds), rows.sum(axis=0)[0])
    assert min(verdict.rank.seconds) >= 0
    assert min(verdict.node.seconds) >= 0
    assert verdict.waits.min() >= 0
