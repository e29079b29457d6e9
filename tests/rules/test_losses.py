"""What is lost to a fault, in GPUs: by the recorded series, of runs that a real Prometheus holds."""

import pytest
import requests

from past import EPOCH
from pasts import prometheus_of
from stepsim.job import load_job

pytestmark = pytest.mark.prometheus

RECORDED_EVERY = 15
"""Seconds, in a past that is loaded."""
GPUS, HEALTHY, DURING, AFTER = 8, 600, 300, 300
FAULTS = {
    "stalled": {"fault": "hang", "target": {"rank": 5}},
    "small": {"fault": "small_batch", "severity": 8},
}


@pytest.fixture(scope="module")
def lost(replay, tmp_path_factory):
    """Run, seconds since its start → what a query says."""
    runs = {}
    for name, request in FAULTS.items():
        job = replay(load_job("node", run=name), step=5, everything=True).run(HEALTHY)
        fault = job.engine.board.start(request, now=job.engine.now)
        job.run(DURING)
        job.engine.board.stop(fault.id)
        runs[name] = job.run(AFTER)
    with prometheus_of(runs, tmp_path_factory.mktemp("runs")) as url:

        def ask(query, seconds):
            answer = requests.get(
                f"{url}/api/v1/query", params={"query": query, "time": EPOCH + seconds}, timeout=10
            ).json()
            return {tuple(one["metric"].values()): float(one["value"][1]) for one in answer["data"]["result"]}

        yield ask


def total(lost, run, seconds):
    (value,) = lost(f'sum(run:training_lost_gpus:total{{run="{run}"}})', seconds).values()
    return value


def test_while_no_step_ends_all_gpus_are_lost(lost):
    """Not to a phase, which nobody knows before the lap has ended."""
    during = HEALTHY + DURING - 10
    assert total(lost, "stalled", during) == GPUS
    assert lost('sum by (phase) (run:training_lost_gpus:by_phase{run="stalled"})', during) == {("stalled",): GPUS}


def test_a_job_that_has_just_begun_is_not_stalled(lost):
    """Nobody knows a rate before there are two samples."""
    assert lost('count_over_time(run:training_lost_gpus:by_phase{phase="stalled"}[300s])', 300) == {}


def test_a_stall_costs_its_length(lost):
    """Five minutes of eight GPUs, in the sum over the time before, during and after."""
    end = HEALTHY + DURING + 180
    (gpu_seconds,) = lost(
        f'{RECORDED_EVERY} * sum_over_time(run:training_lost_gpus:total{{run="stalled"}}[540s])', end
    ).values()
    assert gpu_seconds == pytest.approx(GPUS * DURING, rel=0.1)


def test_a_smaller_batch_costs_what_its_tokens_take_longer(lost):
    """Its steps are shorter than ever, and no better for it; the healthy run after it is measured as before."""
    before, after = total(lost, "small", HEALTHY - 5), total(lost, "small", HEALTHY + DURING + AFTER - 5)
    assert total(lost, "small", HEALTHY + DURING - 5) > 0.3 * GPUS
    assert after < 0.06 * GPUS
    assert after == pytest.approx(before, abs=0.03 * GPUS)
