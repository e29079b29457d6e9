"""Every fault fires its own alert, in time and with its culprit, and no other that it does not explain.

Evaluated by promtool at a 5 s scrape: what takes minutes in real time takes seconds here.
"""

import pytest

from stepsim.job import load_job

pytestmark = pytest.mark.prometheus

HEALTHY = 60

CASES = [
    # request, alert, seconds within which it must fire, labels that name the culprit
    ({"fault": "straggler", "target": {"rank": 17}}, "TrainingRankStraggling", 60, {"rank": "17", "node": "node-2"}),
    ({"fault": "straggler", "severity": 1.15}, "TrainingRankStraggling", 60, {"rank": "5", "node": "node-0"}),
    ({"fault": "data_starvation", "severity": 0.3}, "TrainingDataStarved", 120, {}),
    ({"fault": "data_starvation"}, "TrainingDataStarved", 75, {}),
    ({"fault": "data_starvation", "severity": 2}, "TrainingDataStarved", 75, {}),
    ({"fault": "storage_node_slow", "target": {"node": "node-1"}}, "TrainingNodeStorageSlow", 75, {"node": "node-1"}),
    ({"fault": "storage_node_slow", "severity": 6}, "TrainingNodeStorageSlow", 75, {"node": "node-3"}),
    ({"fault": "storage_outage"}, "TrainingStorageOutage", 150, {}),
    ({"fault": "gradient_explosion"}, "TrainingGradientExploding", 15, {}),
]

EXPLAINED = {"storage_outage": {"GpuUtilizationLow"}}
"""The exhibit sees this one, too."""


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize(("request_", "alert", "within", "culprit"), CASES, ids=lambda value: str(value))
def test_a_fault_fires_its_alert_and_no_other(tmp_path, replay, request_, alert, within, culprit, seed):
    """From its start to three minutes after its end: draining queues accuse nobody either."""
    job = replay(load_job("cluster"), step=5, seed=seed).run(HEALTHY)
    fault = job.engine.board.start(request_, now=job.engine.now)
    job.run(180)
    job.engine.board.stop(fault.id)
    firings = job.run(180).firings(tmp_path)
    assert {name for name, _ in firings} - EXPLAINED.get(request_["fault"], set()) == {alert}
    ((labels, seconds),) = [(dict(labels), at) for (name, labels), at in firings.items() if name == alert]
    assert seconds - HEALTHY <= within
    assert labels.items() >= {**culprit, "cause": request_["fault"], "run": "cluster"}.items()
