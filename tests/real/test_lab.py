"""The lab over a real job: the same Prometheus, rules, alerts and API, and faults that are real."""

import json
import signal
import subprocess
import sys
import time

import pytest
import requests
import yaml

from boards.exporter import NOTHING_SCRAPED
from boards.learning import EMPTY, EMPTY_NOW
from dashboard_files import BY_NAME
from queries import shown
from running_lab import ROOT, Lab, free_ports
from series import NO_REFEREE, NO_STEP, NO_TOKENS

RULES = yaml.safe_load((ROOT / "prometheus/rules/recording.yml").read_text(encoding="utf-8"))
RECORDED = [rule["record"] for group in RULES["groups"] for rule in group["rules"]]
NEED_A_GPU_OR_ITS_HOST = {name for name in RECORDED if ":gpu_" in name} | {
    "run:training_tokens_per_joule:rate1m", "run:training_gap:ratio", "node:node_cpu:share_rate1m",
    "node:training_cpu_user:share_rate1m", "run:training_rdma_bytes_per_second:rate1m",
    "run:training_sockets_bytes_per_second:rate1m", "gpu:training_rank:info",
}  # fmt: skip
EMPTY_WHEN_HEALTHY = {
    "rank:training_culprit:share", "node:training_culprit:share", "rank:training_missing:last1h",
    "run:training_stall_seconds:min",
}  # fmt: skip
NOT_YET = {
    "run:training_learning_progress:5m", "run:training_checkpoint_seconds:per_checkpoint5m",
    "rank:training_gradient_departure:median1m",
}  # fmt: skip
"""In its first minutes, or as the loop does not tell it."""

HAS_DATA = {None, "none", NO_STEP, NO_TOKENS, NO_REFEREE, EMPTY, EMPTY_NOW, NOTHING_SCRAPED}
"""What a panel says where something is missing that this job has."""

pytestmark = pytest.mark.prometheus


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Two ranks that train a small GPT."""
    folder = tmp_path_factory.mktemp("lab")
    base = free_ports(2)[0]
    made = Lab(folder, "--", "--layers", "2", "--checkpoint-every", "50", command="lab-real", RANKS="2",
               STEPSCOPE_METRICS_PORT=str(base))  # fmt: skip
    try:
        made.wait_ready()
        yield made
    finally:
        made.stop(signal.SIGTERM)


def test_all_targets_are_up(lab, poll_until):
    """Two ranks, the referee, the truth, the diagnosis, and Prometheus itself."""
    poll_until(lambda: len(lab.query("up == 1")) == 6, "6 targets are up", 30)


def test_every_recorded_series_of_the_dashboards_exists(lab, poll_until):
    """Those that need a GPU are absent, and not zero."""
    for name in sorted(set(RECORDED) - NEED_A_GPU_OR_ITS_HOST - EMPTY_WHEN_HEALTHY - NOT_YET):
        poll_until(lambda name=name: lab.query(f"{{__name__='{name}'}}"), name, 90)
    for name in NEED_A_GPU_OR_ITS_HOST:
        assert lab.query(f"{{__name__='{name}'}}") == []


@pytest.mark.parametrize("name", [
    name for name, panel in BY_NAME.items()
    if panel["fieldConfig"]["defaults"].get("noValue") in HAS_DATA or name.startswith("exporter: Overhead")
])  # fmt: skip
def test_a_panel_has_data(lab, poll_until, name):
    """All but those that say in words what a job without GPUs, a healthy one, or one without faults lacks."""
    poll_until(lambda: any(shown(lab.prometheus, BY_NAME[name], time.time(), run="gpt")), name, 90)


def test_the_console_reads_like_the_rules(lab, poll_until):
    """MFU against a measured peak, the critical path, no utilization without a GPU."""
    poll_until(lambda: status(lab)["critical_path"], "laps are booked", 30)
    found = status(lab)
    assert found["job"]["model"].startswith("GPT 2")
    assert found["utilization"] is None
    assert 0.01 < found["mfu"] < 1.5
    assert sum(found["critical_path"].values()) == pytest.approx(1.0)
    assert found["loss"] > 0


def status(lab):
    return requests.get(lab.simulator + "/status", timeout=5).json()


def test_only_faults_that_are_real_are_offered(lab):
    """The catalogue is the job's own, and a rank that does not exist is refused."""
    offered = requests.get(lab.simulator + "/faults/catalogue", timeout=5).json()["faults"]
    assert {fault["name"] for fault in offered} == {
        "straggler", "jitter", "data_starvation", "gradient_explosion", "loss_plateau", "checkpoint_stall", "gc_pause", "hang",
    }  # fmt: skip
    wrong = {"fault": "straggler", "target": {"rank": 2}}
    answer = requests.post(lab.simulator + "/faults", json=wrong, headers={"X-Stepscope-Action": "t"}, timeout=5)
    assert answer.status_code == 422
    assert "0 to 1" in json.loads(answer.text)["error"]


def test_a_real_straggler_is_alerted_with_its_rank(lab, poll_until):
    """Extra time in rank 1's forward and backward; the console names it first, then the alert."""
    fault = lab.start_fault(fault="straggler", target={"rank": 1}, severity=3)
    culprit = poll_until(lambda: status(lab)["culprit"], "the console names a culprit", 60)
    assert (culprit["rank"], culprit["phase"]) == (1, "backward")
    fired = poll_until(lab.firing, "an alert fires", 120)
    assert fired.keys() == {"TrainingRankStraggling"}
    assert fired["TrainingRankStraggling"]["rank"] == "1"
    assert lab.query("lab_fault_active{fault='straggler'}")
    lab.stop_fault(fault)


def test_a_real_explosion_ends_in_nonfinite_or_wild_gradients_and_recovers(lab, poll_until):
    """The learning rate changes on all ranks in the same step; after the fault the last healthy checkpoint is reloaded."""
    poll_until(lambda: lab.value("training_checkpoints_total"), "there is a checkpoint", 60)
    fault = lab.start_fault(fault="gradient_explosion")
    poll_until(lambda: "TrainingGradientExploding" in lab.firing(), "the explosion is alerted", 120)
    lab.stop_fault(fault)
    poll_until(lambda: (loss := lab.value("training_loss")) and loss < 6, "the loss is back", 60)
    assert lab.value("training_learning_rate") == pytest.approx(3e-4)


def test_a_real_hang_is_alerted_and_diagnosed_with_its_rank_and_ends(lab, poll_until):
    """Rank 1 stops before a step, and rank 0 waits in the all-reduce; once released, both go on."""
    poll_until(lambda: not lab.query("lab_fault_active"), "the other faults are over", 60)
    fault = lab.start_fault(fault="hang", target={"rank": 1})
    hung = poll_until(lambda: lab.firing().get("TrainingHung"), "the hang is alerted", 240)
    assert hung["rank"] == "1"
    status_code, report = diagnosed(lab)
    assert status_code == 1
    assert ("hang", {"rank": 1}) in [(verdict["fault"], verdict["target"]) for verdict in report["verdicts"]]
    steps = lab.value("min(training_steps_total)")
    lab.stop_fault(fault)
    poll_until(lambda: lab.value("min(training_steps_total)") > steps + 5, "steps go on", 60)
    poll_until(lambda: "TrainingHung" not in lab.firing(), "the alert goes", 240)


def diagnosed(lab):
    """The command's exit status and its report."""
    command = [sys.executable, "-m", "stepsim", "diagnose", "--json", "--prometheus", lab.prometheus]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout)
