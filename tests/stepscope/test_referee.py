"""The referee lays laps side by side."""

import itertools

import numpy as np
import pytest

from stepscope.phases import ALLREDUCE, FORWARD, OTHER, PHASES
from stepscope.record import StepRecord
from stepscope.referee import Referee


def steps(forward, after, *, transfer=0.01, attempt=0, first=0, collective=True):
    """Records of synchronous steps: rows of ``forward`` and ``after`` hold one value per rank, ``after`` as other."""
    ends = np.zeros(len(forward[0]))
    for index, (work, rest) in enumerate(zip(np.array(forward, float), np.array(after, float), strict=True)):
        arrive = ends + work
        leave = arrive.max() + transfer
        before, behind = np.zeros((len(PHASES), len(work))), np.zeros((len(PHASES), len(work)))
        before[FORWARD], before[ALLREDUCE], behind[OTHER] = work, leave - arrive, rest
        ends = leave + rest
        yield StepRecord(step=first + index, attempt=attempt, before=before.tolist(), after=behind.tolist(),
                         ended=ends.tolist(), collective=collective)  # fmt: skip


def feed(referee, records):
    for record in records:
        referee.add(record)
    return referee


def test_a_pause_after_the_step_is_charged_to_the_rank_that_paused():
    """The published signature: the other rank's step grows, and the pause is the culprit's own ``other``."""
    referee = feed(Referee([0, 0]), steps([[0.3, 0.3]] * 41, [[0.05, 0.0]] * 41))
    assert referee.late_steps == [40, 0]
    assert referee.late_seconds[OTHER][0] == pytest.approx(40 * 0.05)
    assert referee.path_seconds[OTHER] == pytest.approx(40 * 0.05)
    assert referee.wait_seconds == [0.0, pytest.approx(40 * 0.05)]


def test_pauses_that_move_from_rank_to_rank_are_not_lost():
    """One of four ranks pauses for a second after each step: all of it is on the critical path."""
    random = np.random.default_rng(0)
    pauses = np.eye(4)[random.integers(0, 4, 41)]
    referee = feed(Referee([0, 0, 1, 1]), steps(0.3 + 0.002 * random.random((41, 4)), pauses))
    assert referee.path_seconds[OTHER] == pytest.approx(40.0, rel=0.01)


def test_the_path_adds_up_to_the_wall_time():
    """From the first collective's exit to the last one's."""
    random = np.random.default_rng(1)
    records = list(steps(0.3 + random.random((60, 6)), random.random((60, 6))))
    referee = feed(Referee([0, 0, 0, 1, 1, 1]), records)
    laps = [np.array(a.after) + np.array(b.before) for a, b in itertools.pairwise(records)]
    wall = sum(lap.sum(axis=0)[0] for lap in laps)
    assert sum(referee.path_seconds) == pytest.approx(wall)
    assert referee.outcomes["complete"] == 59


def test_a_restart_opens_a_new_lap():
    """Replayed steps of another attempt never mix with those of the first."""
    referee = feed(Referee([0, 0]), steps([[0.3, 0.3]] * 5, [[0, 0]] * 5))
    feed(referee, steps([[0.3, 0.3]] * 3, [[0, 0]] * 3, attempt=1, first=2))
    assert referee.outcomes["complete"] == 4 + 2


def test_a_missing_step_breaks_the_lap():
    """What happened in between is not known, so it is not booked."""
    records = list(steps([[0.3, 0.3]] * 5, [[0, 0]] * 5))
    referee = feed(Referee([0, 0]), records[:2] + records[3:])
    assert referee.outcomes["complete"] == 2


def test_only_a_collective_opens_a_lap():
    """What a job does before its first collective is not known to be anybody's lap."""
    referee = Referee([0, 0])
    feed(referee, steps([[5.0, 0.3]], [[0.0, 0.0]], collective=False))
    feed(referee, steps([[0.3, 0.3]] * 2, [[0.0, 0.0]] * 2, first=1))
    assert referee.outcomes["complete"] == 1
    assert sum(referee.path_seconds) == pytest.approx(0.31)


def test_a_step_without_a_collective_extends_the_lap():
    """Two local steps and one with a collective make one lap."""
    local = list(steps([[0.3, 0.4]] * 2, [[0.1, 0.1]] * 2, collective=False))
    referee = Referee([0, 0])
    feed(referee, steps([[0.3, 0.3]], [[0.0, 0.0]], first=0))
    for step, record in enumerate(local, 1):
        before = [list(row) for row in record.before]
        before[ALLREDUCE] = [0.0, 0.0]
        referee.add(StepRecord(step=step, before=before, after=record.after, ended=[0, 0], collective=False))
    last = next(iter(steps([[0.3, 0.1]], [[0, 0]], first=3)))
    referee.add(last)
    assert referee.outcomes["complete"] == 1
    assert referee.late_steps == [1, 0]
    assert referee.path_seconds[FORWARD] == pytest.approx(0.3 + 0.3 + 0.3)
