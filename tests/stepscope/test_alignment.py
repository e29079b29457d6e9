"""Laying the records of all ranks side by side."""

import json

import pytest

from stepscope.alignment import PATIENCE_SECONDS, SILENT_SECONDS, Alignment, MalformedSteps, Steps, parse_steps
from stepscope.phases import BACKWARD, PHASES
from stepscope.record import StepRecord
from stepscope.ring import StepRing, document


def rows(steps, *, slow=False, collective=True, stride=1):
    """Backward takes 1 s, or 1.5 on a slow rank; who is fast waits in all-reduce."""
    seconds = [0.1, 0, 0.5, 1.5 if slow else 1.0, 0.2 if slow else 0.7, 0, 0, 0]
    after = [0, 0, 0, 0, 0, 0.1, 0, 0.05]
    return [[step, step - stride, *seconds, *(after if collective else [])] for step in steps]


def answer(rank, steps, *, start=0, world=2, node="a", strategy="ddp", run="r", **more):
    return Steps(run=run, rank=rank, node=node, process=f"{rank} of start {start}", world_size=world, strategy=strategy,
                 rows=rows(steps, **more))  # fmt: skip


def test_complete_steps_are_judged():
    """The slow rank is late in every lap; the first step only opens one."""
    alignment = Alignment()
    alignment.add(answer(0, range(5)), 0.0)
    alignment.add(answer(1, range(5), slow=True), 0.0)
    referee = alignment.referee
    assert referee.outcomes == {"complete": 4, "incomplete": 0, "dropped": 0, "unsupported": 0}
    assert referee.late_steps == [0, 4]
    assert referee.late_seconds[BACKWARD][1] == pytest.approx(4 * 0.5)


def test_steps_need_not_be_counted_one_by_one():
    """A loop that numbers its steps by micro-batch, and one with two optimizers."""
    alignment = Alignment()
    for rank, slow in ((0, False), (1, True)):
        alignment.add(answer(rank, range(3, 31, 4), slow=slow, stride=4), 0.0)
    assert alignment.referee.outcomes["complete"] == 6
    assert alignment.referee.late_steps == [0, 6]


@pytest.mark.parametrize("lost", [[0], [1], [0, 1]])
def test_a_lap_does_not_span_a_step_that_was_lost(lost):
    """On any rank: what follows only opens a lap."""
    alignment = Alignment()
    for rank in (0, 1):
        alignment.add(answer(rank, range(3)), 0.0)
        gap = rank in lost  # it recorded nothing of step 3, and says so
        alignment.add(answer(rank, [] if gap else [3]), 0.0)
        alignment.add(answer(rank, [4], stride=5 if gap else 1), 0.0)
        alignment.add(answer(rank, [5]), 0.0)
    alignment.settle(PATIENCE_SECONDS + 1)
    assert alignment.referee.outcomes["complete"] == 2 + 1


def test_a_step_waits_for_its_last_rank_and_is_incomplete_then():
    """A rank that died leaves its last steps incomplete."""
    alignment = Alignment()
    alignment.add(answer(0, range(3)), 0.0)
    alignment.add(answer(1, range(3)), 1.0)
    alignment.add(answer(0, [3, 4]), 2.0)
    alignment.settle(2.0 + PATIENCE_SECONDS - 1)
    assert alignment.referee.outcomes["incomplete"] == 0
    alignment.settle(2.0 + PATIENCE_SECONDS + 1)
    assert alignment.referee.outcomes["incomplete"] == 2
    alignment.add(answer(0, [5, 6]), 50.0)
    alignment.add(answer(1, [3, 4, 5, 6]), 50.0)
    assert alignment.referee.outcomes == {"complete": 3, "incomplete": 2, "dropped": 0, "unsupported": 0}


def test_a_rank_that_comes_late_is_waited_for():
    """Its ring still has the first steps."""
    alignment = Alignment()
    alignment.add(answer(0, range(100)), 0.0)
    assert alignment.referee is None
    alignment.add(answer(1, range(100)), 20.0)
    assert alignment.referee.outcomes["complete"] == 99


@pytest.mark.parametrize("first", [8, 0])
def test_a_restart_never_mixes_with_what_was_before(first):
    """Steps are replayed by other processes, from a checkpoint or from 0; what was open is incomplete, and late answers of
    the processes of before are ignored."""
    alignment = Alignment()
    for rank in (0, 1):
        alignment.add(answer(rank, range(10)), 0.0)
    alignment.add(answer(0, [10, 11]), 1.0)
    replayed = range(first, first + 3)
    alignment.add(answer(0, replayed, start=1), 2.0)
    alignment.add(answer(1, [10, 11]), 2.0)
    alignment.add(answer(1, replayed, start=1, slow=True), 2.0)
    assert alignment.referee.outcomes == {"complete": 11, "incomplete": 2, "dropped": 0, "unsupported": 0}
    assert alignment.referee.late_seconds[BACKWARD][1] == pytest.approx(2 * 0.5)
    assert alignment.starts == 2


def test_another_world_size_begins_anew():
    """Elastic training: the referee has one column per rank."""
    alignment = Alignment()
    for rank in range(2):
        alignment.add(answer(rank, range(5)), 0.0)
    for rank in range(3):
        alignment.add(answer(rank, range(5, 9), start=1, world=3), 1.0)
    assert len(alignment.referee.nodes) == 3
    assert alignment.referee.outcomes["complete"] == 3


def test_nodes_are_told_apart_by_name():
    """In the order of their ranks."""
    alignment = Alignment()
    for rank, node in ((3, "b"), (0, "a"), (1, "a"), (2, "b")):
        alignment.add(answer(rank, range(3), world=4, node=node), 0.0)
    assert alignment.node_names() == ["a", "b"]
    assert alignment.referee.nodes == [0, 0, 1, 1]


def test_a_step_without_a_collective_extends_the_lap():
    """Two steps, one lap: 1.5 s late in each."""
    alignment = Alignment()
    for rank, slow in ((0, False), (1, True)):
        alignment.add(answer(rank, [0], slow=slow), 0.0)
        alignment.add(answer(rank, [1], slow=slow, collective=False), 0.0)
        alignment.add(answer(rank, [2], slow=slow), 0.0)
    assert alignment.referee.outcomes["complete"] == 1
    assert alignment.referee.late_seconds[BACKWARD][1] == pytest.approx(2 * 0.5)


@pytest.mark.parametrize("strategy", ["none", "hsdp", "pipeline"])
def test_what_is_not_data_parallel_names_no_culprit(strategy):
    """Its steps are counted as unsupported."""
    alignment = Alignment()
    for rank in (0, 1):
        alignment.add(answer(rank, range(5), strategy=strategy, slow=rank == 1), 0.0)
    assert alignment.referee.outcomes["unsupported"] == 5
    assert sum(map(sum, alignment.referee.late_seconds)) == 0


def test_another_runs_answers_are_ignored():
    """A stale entry in the discovery folder."""
    alignment = Alignment()
    alignment.add(answer(0, range(3)), 0.0)
    alignment.add(answer(1, range(3), run="other", start=5), 0.0)
    assert (alignment.run, alignment.referee) == ("r", None)
    named = Alignment(run="other")
    named.add(answer(0, range(3)), 0.0)
    assert named.nodes == {}


def test_the_next_run_is_judged_when_nobody_of_the_first_one_answers():
    """Where none was chosen: each launch may have a name of its own. As long as ranks answer, their run is judged."""
    alignment, chosen = Alignment(), Alignment(run="r")
    for one in (alignment, chosen):
        for now in (0.0, 50.0):
            for rank in (0, 1):
                one.add(answer(rank, range(3)), now)
        for now, steps in ((100.0, range(4)), (50.0 + SILENT_SECONDS + 1, range(8))):
            for rank in (0, 1):
                one.add(answer(rank, steps, run="next", start=7, slow=rank == 1), now)
    assert (alignment.run, alignment.referee.outcomes["complete"]) == ("next", 7)
    assert alignment.referee.late_steps == [0, 7]
    assert (chosen.run, chosen.referee.outcomes["complete"]) == ("r", 2)


def record(step, collective=True):
    return StepRecord(step=step, before=[[0.125]] * 8, after=[[0.25]] * 8, ended=[0.0], collective=collective)


def test_a_ring_serves_what_is_new():
    """Oldest first, whole rows; of a step without a collective the sum."""
    ring = StepRing(capacity=5)
    for step in range(8):
        ring.add(record(step, collective=step != 6))
    head = {"run": "r", "rank": 1, "node": "a", "process": "p", "world_size": 2, "strategy": "ddp"}
    (steps,) = parse_steps(json.loads(document(ring.since(4), **head)))
    assert (steps.rank, steps.process, steps.last) == (1, "p", 7)
    assert [list(row) for row in steps.rows] == [
        [5, 4, *[0.125] * 8, *[0.25] * 8], [6, 5, *[0.375] * 8], [7, 6, *[0.125] * 8, *[0.25] * 8],
    ]  # fmt: skip
    assert [json.loads(row)[0] for row in ring.since(-1)] == [3, 4, 5, 6, 7]
    assert ring.since(7) == []


GOOD = json.loads(
    document([json.dumps(rows([1])[0])], run="r", rank=0, node="a", process="p", world_size=2, strategy="ddp")
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"phases": list(PHASES[:-1])}, {"steps": [[1, 2.0]]}, {"steps": [1]}, {"rank": 2}, {"rank": None}, {"steps": None},
        {"world_size": "many"}, "run",
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_answer_of_steps_is_refused(wrong):
    """Another version's phases, another width, a rank that cannot be, a missing key."""
    bad = {**GOOD, **wrong} if isinstance(wrong, dict) else {k: v for k, v in GOOD.items() if k != wrong}
    assert parse_steps(GOOD)[0].rank == 0
    with pytest.raises(MalformedSteps):
        parse_steps(bad)
    with pytest.raises(MalformedSteps):
        parse_steps("nothing")
