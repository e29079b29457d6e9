"""What looks like a fault and is none, and two faults at once: diagnosed by a real Prometheus that holds such runs."""

from types import SimpleNamespace

import pytest

from past import EPOCH
from pasts import prometheus_of
from stepscope.diagnosis import Prometheus, diagnose
from stepsim.job import load_job

pytestmark = pytest.mark.prometheus

PAIRS = {
    "straggler and starved": ({"fault": "straggler", "target": {"rank": 3}}, {"fault": "data_starvation"}),
    "hot and network": (
        {"fault": "thermal_throttle", "target": {"rank": 9}}, {"fault": "network_degradation"},
    ),
    "explosion and straggler": ({"fault": "gradient_explosion"}, {"fault": "straggler", "target": {"rank": 3}}),
    "hot node": ({"fault": "thermal_throttle", "target": {"node": "node-1"}},),
    "capped node": ({"fault": "power_cap", "target": {"node": "node-2"}},),
    "one rail": ({"fault": "network_degradation", "target": {"rank": 6}},),
}  # fmt: skip
BEFORE, DURING = 120, 150


@pytest.fixture(scope="module")
def played(replay):
    """Name of the run → its job; faults begin after ``BEFORE``."""
    runs = {}
    for name, requests in PAIRS.items():
        job = replay(load_job("cluster"), step=5, everything=True).run(BEFORE)
        for request in requests:
            job.engine.board.start(request, now=job.engine.now)
        runs[name] = job.run(DURING)
    runs["lost after a stall"] = _lost_after_a_stall(replay(load_job("cluster"), step=5, everything=True))
    runs["finished"] = replay(load_job("cluster"), step=5, everything=True).run(BEFORE).end_the_job(DURING)
    small = {"preset": "laptop", "run": "cluster"}
    runs["schedule finished"] = replay(
        load_job(**small, optimization={"schedule_steps": 5000}), step=5, everything=True
    ).run(1700)
    return runs


def _lost_after_a_stall(job):
    """The hang's end and the loss lie between two scrapes: what the lost rank's last one shows is a step from before the hang."""
    hang = job.run(BEFORE).engine.board.start({"fault": "hang", "target": {"rank": 5}}, now=job.engine.now)
    job.run(90).engine.board.stop(hang.id)
    job.engine.board.start({"fault": "gpu_lost", "target": {"rank": 9}}, now=job.engine.now + 2)
    return job.run(60)


@pytest.fixture(scope="module")
def diagnosed(played, tmp_path_factory):
    """Name of the run → the report at its end."""
    with prometheus_of(played, tmp_path_factory.mktemp("runs")) as url:
        source = Prometheus(url)
        return {name: diagnose(source, name, EPOCH + (job.scrapes - 1) * job.step - 5) for name, job in played.items()}


def verdicts(report):
    return [(one.fault, one.target) for one in report.verdicts]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("straggler and starved", [("data_starvation", {"run": True}), ("straggler", {"rank": 3})]),
        ("hot and network", [("network_degradation", {"run": True}), ("thermal_throttle", {"rank": 9})]),
        ("explosion and straggler", [("gradient_explosion", {"run": True}), ("straggler", {"rank": 3})]),
    ],
)
def test_two_faults_at_once_are_both_named_the_costlier_first(diagnosed, run, expected):
    """And no third thing."""
    report = diagnosed[run]
    assert verdicts(report) == expected
    costs = [verdict.lost_gpus for verdict in report.verdicts]
    assert costs[0] > costs[1] > 0


@pytest.mark.parametrize(
    ("run", "expected"),
    [("hot node", ("thermal_throttle", "hot node.node-1")), ("capped node", ("power_cap", "capped node.node-2"))],
)
def test_a_fault_of_a_whole_node_is_the_nodes(diagnosed, run, expected):
    """Not that of eight ranks."""
    fault, node = expected
    assert verdicts(diagnosed[run]) == [(fault, {"node": node})]


def test_a_slow_rail_slows_everyone_and_is_nobodys_lateness(diagnosed):
    """One NIC of 32, and every all-reduce takes longer; no rank is accused of being late."""
    assert verdicts(diagnosed["one rail"]) == [("network_degradation", {"run": True})]


def test_a_rank_that_is_lost_just_after_a_stall_is_missed(diagnosed, played):
    """Its last scrape is as much older than its peers' as the stall was long."""
    lost, peer = (last_scraped(played["lost after a stall"], "training_last_step_timestamp", rank) for rank in (9, 10))
    assert peer - lost > 80
    assert verdicts(diagnosed["lost after a stall"]) == [("gpu_lost", {"rank": 9})]


def last_scraped(job, name, rank):
    (values,) = (values for key, values in job.series.items() if key.startswith(name) and f'rank="{rank}"' in key)
    return float([value for value in values if value not in ("_", "stale")][-1])


def test_a_job_that_has_ended_neither_hangs_nor_has_lost_a_gpu(diagnosed, played, tmp_path):
    """Its ranks went together: no alert, and the report says that it has ended."""
    report = diagnosed["finished"]
    assert not report.enough_data
    assert "it has ended" in report.missing[0]
    assert played["finished"].firings(tmp_path) == {}


def test_a_schedule_that_has_ended_is_no_plateau(diagnosed, played, tmp_path):
    """The loss stands still, and so does the learning rate, at 0."""
    (rates,) = (
        values
        for key, values in played["schedule finished"].series.items()
        if key.startswith("training_learning_rate{")
    )
    assert rates[-1] == "0.0"
    assert diagnosed["schedule finished"].healthy
    assert played["schedule finished"].firings(tmp_path) == {}


def test_a_young_run_is_not_judged(tmp_path_factory, replay):
    """Less than a minute old, it is not called healthy."""
    young = {"young": replay(load_job("laptop", run="cluster"), step=5, everything=True).run(45)}
    with prometheus_of(young, tmp_path_factory.mktemp("young")) as url:
        report = diagnose(Prometheus(url), "young", EPOCH + 40)
        gone = diagnose(Prometheus(url), "nobody", EPOCH + 40)
    assert not report.enough_data
    assert not report.healthy
    assert "less than a minute" in report.missing[0]
    assert "no series of this run" in gone.missing[0]


def test_a_prometheus_without_the_rules_judges_nothing():
    """Instead of calling healthy what it cannot see."""
    bare = SimpleNamespace(rules=list, query=lambda expr, at: [({}, 1.0)])
    report = diagnose(bare, "cluster", EPOCH)
    assert not report.enough_data
    assert "load prometheus/rules" in report.missing[0]
