"""The whole line, with the real Prometheus and Alertmanager: fault → series → alert → webhook → resolved."""

import time

import pytest

from dashboard_files import ALTERNATIVES, BY_NAME, EMPTY_IN_HEALTH
from queries import shown

pytestmark = pytest.mark.prometheus


def test_every_part_is_announced_with_its_url(lab):
    """One line each, once it is ready."""
    said = lab.said()
    assert "loaded the past" in said
    for url in (lab.simulator, lab.alertmanager, lab.prometheus):
        assert any(line.startswith("ready") and line.endswith(url) for line in said.splitlines()), said


def test_all_targets_are_up(lab, poll_until):
    """Three per node, the referee, the truth, the diagnosis, the drills, and Prometheus itself."""
    poll_until(lambda: len(lab.query("up == 1")) == 17, "17 targets are up", 30)
    assert lab.query("up == 0") == []


def test_the_past_is_there_with_its_three_incidents(lab):
    """Raw and recorded series, two hours back; the incidents stand out as they should."""

    def over(expr):
        return lab.value(f"{expr}[2h])")

    assert len(lab.query("count_over_time(lab_fault_active[2h])")) == 3
    assert over("count_over_time(training_steps_total{rank='7'}") > 450
    assert over("count_over_time(run:training_mfu:ratio_rate1m") > 450
    assert over("count_over_time(run:training_lost_gpus:total") > 450
    assert over("min_over_time(run:training_mfu:ratio_rate1m") < 0.25
    assert over("min_over_time(run:gpu_utilization:ratio_avg1m") > 0.9
    assert over("max_over_time(training_nonfinite_steps_total") > 100


def test_the_live_job_takes_up_where_the_past_ends(lab, poll_until):
    """No hole of a minute, and no missing label."""
    poll_until(lambda: lab.value("count(run:training_mfu:ratio_rate1m{run='cluster'})") == 1, "MFU is recorded", 30)
    assert lab.value("max(changes(training_steps_total{rank='7'}[5m]))") > 10
    assert lab.value("count(count by (instance, job) (training_steps_total))") == 4


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in EMPTY_IN_HEALTH])
def test_a_panel_has_data_within_the_first_minute(lab, poll_until, name):
    """Live, in a healthy job; what is empty then says so in words, which tests/grafana proves."""
    enough = any if name in ALTERNATIVES else all
    poll_until(lambda: enough(shown(lab.prometheus, BY_NAME[name], time.time(), rank="0")), name, 30)


def settled(lab, poll_until):
    """A healthy minute: nothing fires, and the last minute's MFU is back."""
    poll_until(lambda: not lab.firing(), "no alert is left", 120)
    return poll_until(lambda: (m := lab.value("run:training_mfu:ratio_rate1m")) and m > 0.43 and m, "MFU is back", 120)


def utilization(lab):
    return lab.value("run:gpu_utilization:ratio_avg1m")


CASES = [
    ("TrainingRankStraggling", {"fault": "straggler", "target": {"rank": 17}}, {"rank": "17", "node": "node-2"}, 0.8),
    ("TrainingGradientExploding", {"fault": "gradient_explosion"}, {}, None),
    ("TrainingDataStarved", {"fault": "data_starvation"}, {}, 0.6),
]


@pytest.mark.parametrize(("alert", "request_", "labels", "mfu_falls_to"), CASES, ids=[case[0] for case in CASES])
def test_a_fault_is_seen_alerted_and_resolved(lab, poll_until, alert, request_, labels, mfu_falls_to):
    """Started through the API; the recorded series move, utilization does not; the named alert, and no other, reaches
    Alertmanager and the webhook; once the fault is stopped, it resolves."""
    healthy_mfu, healthy_utilization = settled(lab, poll_until), utilization(lab)
    fault_id = lab.start_fault(**request_)

    fired = poll_until(lambda: lab.firing(), f"{alert} reaches Alertmanager", 120)
    assert fired.keys() == {alert}
    assert fired[alert].items() >= {"cause": request_["fault"], "severity": "page", "run": "cluster", **labels}.items()
    assert lab.query(f"ALERTS{{alertname='{alert}',alertstate='firing'}}")
    poll_until(lambda: lab.received().get(alert) == "firing", "the webhook hears of it", 30)
    if mfu_falls_to:
        poll_until(lambda: lab.value("run:training_mfu:ratio_rate1m") < mfu_falls_to * healthy_mfu, "MFU falls", 60)
    else:
        assert lab.value("run:training_mfu:ratio_rate1m") == pytest.approx(healthy_mfu, rel=0.12)
    assert abs(utilization(lab) - healthy_utilization) < 0.03
    if "rank" in labels:
        (culprit,) = {metric["rank"] for metric, _ in lab.query("rank:training_culprit:share")}
        assert culprit == labels["rank"]
        assert lab.query("bottomk(1, rank:training_wait_seconds:per_step_rate1m)")[0][0]["rank"] == labels["rank"]
    assert lab.firing().keys() == {alert}

    lab.stop_fault(fault_id)
    poll_until(lambda: lab.received().get(alert) == "resolved", f"{alert} resolves", 330)  # some are kept for minutes
    assert "GpuUtilizationLow" not in lab.received()
