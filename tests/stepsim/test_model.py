"""The step model: causal, closed, and vectorised over ranks."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from stepscope.phases import ALLREDUCE, BACKWARD, CHECKPOINT, DATA_WAIT, FORWARD, OTHER, PHASES
from stepscope.record import StepRecord
from stepscope.referee import Referee
from stepsim.draws import Draws
from stepsim.fleet import ArrayOperations
from stepsim.job import load_job
from stepsim.model import State, plan, simulate_step
from stepsim.params import Params


def steps(params, count, *, seed=1, skip=100, change=None):
    """Timelines of so many steps; ``change`` may replace the parameters before each."""
    draws = Draws(seed, params.job.ranks)
    state = State.start(plan(params), draws, now=0.0)
    timelines = []
    for number in range(skip + count):
        now = change(params, number) if change else params
        timelines.append(simulate_step(plan(now), state, draws))
    return timelines[skip:]


def refereed(job, timelines):
    referee = Referee([rank // job.gpus_per_node for rank in range(job.ranks)], ArrayOperations(job.gpus_per_node))
    for timeline in timelines:
        referee.add(
            StepRecord(step=timeline.step, before=timeline.before(), after=timeline.after(), ended=timeline.ends)
        )
    return referee


@pytest.mark.parametrize("preset", ["laptop", "cluster"])
def test_time_accounting_closes(preset):
    """For every rank the phases add up to the wall time, and none is negative, checkpoints and evaluation included."""
    params = Params.healthy(load_job(preset, schedule={"checkpoint_every_steps": 10, "evaluation_every_steps": 7}))
    previous = None
    for timeline in steps(params, 60):
        seconds = timeline.before() + timeline.after()
        assert seconds.min() >= -1e-9
        np.testing.assert_allclose(seconds.sum(axis=0), timeline.edges[-1] - timeline.edges[0], atol=1e-9)
        if previous is not None:
            np.testing.assert_array_equal(timeline.edges[0], previous.ends)
        previous = timeline


def test_every_phase_has_an_equation(cluster):
    """With a checkpoint due, each phase takes time."""
    params = Params.healthy(cluster)
    params = replace(
        params, job=load_job("cluster", schedule={"checkpoint_every_steps": 5}), read_scale=params.read_scale * 10
    )
    total = sum(timeline.before() + timeline.after() for timeline in steps(params, 50))
    assert [phase for phase, seconds in zip(PHASES, total.sum(axis=1), strict=True) if seconds <= 0] == []


def test_laps_are_equally_long_on_all_ranks(cluster):
    """From one collective's exit to the next, while start-to-start durations differ."""
    timelines = steps(Params.healthy(cluster), 20)
    for one, two in itertools.pairwise(timelines):
        laps = (one.after() + two.before()).sum(axis=0)
        np.testing.assert_allclose(laps, two.exit - one.exit, atol=1e-9)


def test_a_slow_gpu_stretches_only_its_own_compute(cluster):
    """Its forward and backward grow by the factor; the others wait by the same seconds; its own all-reduce is the
    shortest of all in every step."""
    healthy = Params.healthy(cluster)
    scale = healthy.compute_scale.copy()
    scale[5] = 1.43
    before, after = steps(healthy, 50), steps(replace(healthy, compute_scale=scale), 50)
    mean = lambda timelines, phase: np.mean([timeline.before()[phase] for timeline in timelines], axis=0)  # noqa: E731
    for phase in (FORWARD, BACKWARD):
        grown = mean(after, phase) / mean(before, phase)
        assert grown[5] == pytest.approx(1.43, rel=0.001)
        np.testing.assert_allclose(np.delete(grown, 5), 1.0, rtol=0.001)
    assert all(timeline.before()[ALLREDUCE].argmin() == 5 for timeline in after)
    extra = mean(after, FORWARD)[5] + mean(after, BACKWARD)[5] - mean(before, FORWARD)[5] - mean(before, BACKWARD)[5]
    waiting = np.median(mean(after, ALLREDUCE) - mean(before, ALLREDUCE))
    assert waiting == pytest.approx(extra, rel=0.08)


def test_pauses_on_random_ranks_appear_on_the_critical_path(cluster):
    """One rank pauses for a second after each step: within one percent."""
    random = np.random.default_rng(5)

    def pausing(params, number):
        pauses = params.host_gap_seconds.copy()
        pauses[random.integers(len(pauses))] += 1.0
        return replace(params, host_gap_seconds=pauses)

    healthy = Params.healthy(load_job("cluster", schedule={"checkpoint_every_steps": 0, "evaluation_every_steps": 0}))
    quiet = refereed(healthy.job, steps(healthy, 201)).path_seconds[OTHER]
    paused = refereed(healthy.job, steps(healthy, 201, change=pausing)).path_seconds[OTHER]
    assert paused - quiet == pytest.approx(200.0, rel=0.01)


def test_a_checkpoint_on_rank_0_alone_appears_on_the_critical_path(cluster):
    """Its lap is the one that all others wait for. The tenth falls into a lap that is not finished."""
    job = load_job("cluster", schedule={"checkpoint_every_steps": 20, "evaluation_every_steps": 0})
    referee = refereed(job, steps(Params.healthy(job), 200))
    written = 9 * plan(Params.healthy(job)).checkpoint_seconds[0]
    assert referee.path_seconds[CHECKPOINT] == pytest.approx(written, rel=0.01)
    assert referee.late_seconds[CHECKPOINT][0] == pytest.approx(written, rel=0.02)


def test_hidden_communication_needs_no_second_look(cluster):
    """Where the shortcut is taken, the full bucket schedule gives the same exit."""
    params = Params.healthy(cluster)
    planned = plan(params)
    for timeline in steps(params, 50):
        begin, end = timeline.edges[BACKWARD], timeline.edges[ALLREDUCE]
        ready = (begin + planned.bucket_ready * (end - begin)).max(axis=1)
        assert timeline.exit == pytest.approx((ready + planned.bucket_tail).max(), abs=1e-12)


@pytest.mark.parametrize(("slower", "least", "most"), [(1, 0.0, 0.003), (8, 0.003, 0.015), (16, 0.02, 0.1)])
def test_a_network_must_be_much_slower_before_the_step_notices(slower, least, most):
    """Communication hides under the backward until about a tenth of the bandwidth is left."""
    job = load_job("cluster", network={"nic_bytes_per_second": 50e9 / slower})
    floor = min(timeline.before()[ALLREDUCE].min() for timeline in steps(Params.healthy(job), 20))
    assert least < floor < most


@pytest.mark.parametrize(
    "settings",
    [
        {"nodes": 2, "network": {"nic_bytes_per_second": 0.25e9}},
        {"nodes": 1, "accelerator": "L40S", "tokens_per_gpu": 4096},
    ],
    ids=["network", "one node"],
)
def test_a_fallback_is_never_the_quicker_way(settings):
    """Where what it falls back from is as slow already."""
    healthy = Params.healthy(load_job("cluster", **settings))
    fallen = replace(healthy, fallback_bytes_per_second=50e9)
    assert (plan(fallen).bucket_tail >= plan(healthy).bucket_tail).all()


def test_gradients_of_a_single_bucket_are_reduced():
    """A tiny model fills not even the first bucket."""
    tiny = load_job("cluster", model={"parameters": 1e6}, network={"gradient_bytes": 0.5})
    assert len(plan(Params.healthy(tiny)).bucket_tail) == 1
    assert min(timeline.before()[ALLREDUCE].min() for timeline in steps(Params.healthy(tiny), 5)) > 0


def test_an_h100_node_needs_no_network():
    """One GPU alone has nothing to reduce."""
    alone = load_job("node", gpus_per_node=1)
    assert max(t.before()[ALLREDUCE].max() for t in steps(Params.healthy(alone), 5)) == pytest.approx(0, abs=1e-9)


def test_the_loader_queue_delays_a_storage_fault(cluster):
    """Finished batches are taken first: a fault is felt only after the queue has drained."""
    healthy = Params.healthy(cluster)
    slow = replace(healthy, read_scale=healthy.read_scale * 30)
    timelines = steps(healthy, 20, change=lambda params, number: slow if number >= 100 else params)
    waited = [timeline.before()[DATA_WAIT].max() > 0.1 for timeline in timelines]
    assert waited.index(True) >= 6
