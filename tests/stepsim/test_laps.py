"""Laps as the console draws them."""

import numpy as np
import pytest

from stepscope.phases import ALLREDUCE, PHASES
from stepsim.laps import MOST_ROWS, LapRows
from stepsim.recent import Lap


def lap(allreduce, on, step=1):
    """Every rank's lap is 100 ms; what is not all-reduce is backward. ``on``: each rank's node."""
    seconds = np.zeros((len(PHASES), len(allreduce)))
    seconds[ALLREDUCE] = np.array(allreduce) / 1000
    seconds[PHASES.index("backward")] = 0.1 - seconds[ALLREDUCE]
    return Lap(step=step, seconds=seconds, nodes=tuple(on))


def nodes(count, each=8):
    return [f"node-{node}" for node in range(count) for _ in range(each)]


def test_a_small_job_has_a_row_per_rank():
    """In milliseconds, by phase."""
    rows = LapRows(["a", "a", "b"])
    drawn = rows.drawn(lap([10, 20, 30], "aab", step=7))
    assert rows.names == ["rank 0", "rank 1", "rank 2"]
    assert (drawn["step"], drawn["ranks"]) == (7, [0, 1, 2])
    assert drawn["milliseconds"][ALLREDUCE] == [10, 20, 30]


@pytest.mark.parametrize(("collective", "waited"), [([4, 60], 56), ([60, 4, 24], 38), ([7], 0)])
def test_the_median_wait_is_that_of_the_others(collective, waited):
    """Of two ranks, one comes last and the other waits for all of that: not for half of it."""
    names = ["a"] * len(collective)
    assert LapRows(names).drawn(lap(collective, names))["median_wait_milliseconds"] == waited


def test_a_larger_job_has_a_row_per_node_of_its_last_rank():
    """The one that waits least."""
    waits = np.full(72, 50.0)
    waits[[3, 20, 71]] = 5, 7, 9
    rows = LapRows(nodes(9))
    drawn = rows.drawn(lap(waits, nodes(9)))
    assert drawn["rows"] == rows.names == [f"node-{node}" for node in range(9)]
    assert drawn["median_wait_milliseconds"] == 45  # of all ranks, not of the rows
    assert [drawn["ranks"][row] for row in (0, 2, 8)] == [3, 20, 71]
    assert [drawn["milliseconds"][ALLREDUCE][row] for row in (0, 1, 2, 8)] == [5, 50, 7, 9]


def test_ranks_of_a_node_need_not_be_neighbours():
    """As a scheduler may place them."""
    waits = np.arange(66.0) + 1
    waits[65] = 0.5
    on = [("x", "y", "z")[rank % 3] for rank in range(66)]
    drawn = LapRows(on).drawn(lap(waits, on))
    assert drawn["ranks"] == [0, 1, 65]


@pytest.mark.parametrize("count", [128, 129, 300, 2048])
def test_no_job_has_more_rows_than_can_be_seen(count):
    """Nodes share a row then, and the last of them all is shown."""
    waits = np.full(8 * count, 50.0)
    waits[8 * count - 3] = 1.0
    rows = LapRows(nodes(count))
    drawn = rows.drawn(lap(waits, nodes(count)))
    assert len(rows.names) == len(drawn["ranks"]) <= MOST_ROWS
    assert drawn["ranks"][-1] == 8 * count - 3
    assert rows.names[-1].endswith(f"node-{count - 1}")
