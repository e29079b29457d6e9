"""Real loops under torchrun: every flavour of DDP and FSDP, and what happens when a rank dies."""

import os
import signal
import time

import psutil
import pytest

from stepscope.peers import Puller
from stepscope.phases import PHASES

FLAVOURS = {
    "plain": {},
    "a user's own communication hook": {"user_hook": True},
    "unused parameters": {"unused": True, "ddp": {"find_unused_parameters": True}},
    "static graph": {"ddp": {"static_graph": True}},
    "gradient accumulation": {"micro_batches": 3},
}


@pytest.fixture(scope="module", params=FLAVOURS.values(), ids=FLAVOURS.keys())
def flavour(request, train):
    """80 ms of extra work in rank 1's backward."""
    return train(2, steps=30, slow_rank=1, where="backward", milliseconds=80, **request.param)


def test_backward_is_told_from_waiting_in_every_flavour(flavour):
    """The slow rank's own work is its backward; the other's is short, and it waits. The user's hook stays in place."""
    backwards = flavour.plan.get("micro_batches", 1) * 30 * 0.08
    slow, fast = flavour.phases(1), flavour.phases(0)
    assert slow["backward"] > backwards
    assert fast["backward"] < 0.5 * backwards
    assert fast["allreduce"] > 0.9 * backwards > 3 * slow["allreduce"]
    assert flavour.value("stepscope_errors_total") == 0
    assert flavour.value("training_collective_seconds_total", collective="all_reduce") == fast["allreduce"]


def test_the_phases_are_the_wall_time(flavour):
    """Against the loop's own stamps, within 0.1 %; nothing is negative, and little is left over."""
    for rank in (0, 1):
        found, stamps = flavour.phases(rank), flavour.stamps()[rank]
        wall = sum(found.values())
        assert wall == pytest.approx(stamps[-1] - stamps[0], rel=1e-3)
        assert min(found.values()) >= 0
        assert found["other"] < 0.02 * wall
        assert flavour.value("training_steps_total", rank) == 30


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def memory(request, train):
    run = train(2, steps=12, strategy=request.param, width=256)
    return request.param, run


def test_memory_is_4p_under_ddp_and_half_of_it_on_each_of_two_ranks_under_fsdp(memory):
    """Weights, gradients and Adam's two states: counted on each rank from what it holds itself."""
    strategy, run = memory
    parameters = 6 * (256 * 256 + 256)
    whole = {"parameters": 4 * parameters, "gradients": 4 * parameters, "optimizer": 8 * parameters}
    share = 1 if strategy == "ddp" else 0.5
    for rank in (0, 1):
        held = {kind: run.value("training_memory_bytes", rank, kind=kind) for kind in whole}
        assert held == {kind: pytest.approx(share * size, rel=0.01) for kind, size in whole.items()}


def test_fsdps_collectives_are_named(memory):
    """All-gathers in forward and backward, reduce-scatters in backward; together they are the phase."""
    strategy, run = memory
    kinds = {"ddp": {"all_reduce"}, "fsdp": {"all_gather", "reduce_scatter"}}[strategy]
    found = {
        sample.labels["collective"]: sample.value
        for sample in run.series(0)
        if sample.name == "training_collective_seconds_total"
    }
    assert found.keys() == kinds
    assert min(found.values()) > 0
    assert sum(found.values()) == pytest.approx(run.phases(0)["allreduce"])
    assert run.value("training_rank_info", strategy=strategy, backend="gloo", device_name="cpu") == 1


def test_a_checkpoint_on_rank_0_alone_is_its_own(train):
    """The others wait for it in the next all-reduce; it is on the critical path as a checkpoint."""
    run = train(2, steps=30, checkpoint_every=10, milliseconds=150)
    run.wait_for_referee(29)
    assert 0.45 <= run.phases(0)["checkpoint"] < 0.6
    assert run.phases(1)["checkpoint"] == 0
    path = run.value("training_critical_path_seconds_total", phase="checkpoint")
    assert path > 0.28  # the third one comes after the last lap
    assert run.value("training_checkpoints_total") == 3


def test_a_rank_that_is_killed_is_missed_and_comes_back(train):
    """SIGKILL half-way, and the job is started again. A referee outside goes on with the new processes."""
    plan = {"steps": 120, "width": 256, "milliseconds": 20, "slow_rank": 0, "where": "other"}
    first = train(2, finish=False, **plan)
    puller = Puller(lambda: [f"127.0.0.1:{first.port + rank}" for rank in range(2)])
    until(puller, lambda alignment: alignment.referee and alignment.referee.outcomes["complete"] > 10)
    assert puller.view(lambda alignment: alignment.starts) == 1
    os.kill(worker_pid(first, rank=1), signal.SIGKILL)
    assert first.process.wait(60) != 0
    before = puller.view(lambda alignment: alignment.referee.outcomes["complete"])

    again = train(2, port=first.port, **plan)
    until(puller, lambda alignment: alignment.referee.outcomes["complete"] == before + 119)
    assert puller.view(lambda alignment: alignment.starts) == 2
    assert puller.view(lambda alignment: alignment.referee.late_steps[0]) > 90
    assert again.value("training_steps_total") == 120
    puller.close()


def until(puller, condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not puller.view(condition):
        assert time.monotonic() < deadline, str(
            puller.view(lambda alignment: vars(alignment) | vars(alignment.referee))
        )[:3000]
        time.sleep(0.3)
        puller.sweep()


def worker_pid(run, rank):
    for child in psutil.Process(run.process.pid).children(recursive=True):
        if child.environ().get("RANK") == str(rank):
            return child.pid
    raise AssertionError("no such rank")


def test_a_loop_that_does_not_wrap_its_model_is_told_so(train):
    """Without the split, steps are unsupported and nobody is accused; the phases are there all the same."""
    run = train(2, steps=20, wrap=False)
    assert "no gradient collective in 16 steps of 2 ranks" in run.log.read_text(encoding="utf-8")
    deadline = time.monotonic() + 15
    while run.value("training_referee_steps_total", outcome="unsupported") != 20:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert sum(run.phases(0)[phase] for phase in PHASES) > 0
    assert run.value("training_late_seconds_total") == 0
