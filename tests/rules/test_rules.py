"""The rule files: well-formed, complete, and firing exactly at their edges."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from replays import recorded_for
from stepscope import culprit
from stepscope.diagnosis.causes import CAUSES, EXPLAINS, STEPS
from stepsim.faults import FAULTS
from stepsim.history import rule_levels

ROOT = Path(__file__).parents[2]
ALERTS = [
    rule
    for group in yaml.safe_load((ROOT / "prometheus/rules/alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
INHIBITIONS = yaml.safe_load((ROOT / "alertmanager/alertmanager.yml").read_text(encoding="utf-8"))["inhibit_rules"]
RECORDING = yaml.safe_load((ROOT / "prometheus/rules/recording.yml").read_text(encoding="utf-8"))


def promtool(*arguments):
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "prometheus/rules/recording.yml", "prometheus/rules/alerts.yml"),
        ("check", "config", "prometheus/prometheus.yml"),
    ],
)
def test_promtool_accepts_rules_and_config(arguments):
    """As they are committed."""
    done = promtool(*arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.prometheus
def test_amtool_accepts_the_config_and_routes_every_alert_to_the_lab():
    """Whatever its labels."""
    config = "alertmanager/alertmanager.yml"
    done = subprocess.run(["amtool", "check-config", config], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for alert in ALERTS:
        labels = [f"{name}={value}" for name, value in alert["labels"].items()]
        routed = subprocess.run(
            ["amtool", "config", "routes", "test", f"--config.file={config}", f"alertname={alert['alert']}", *labels],
            capture_output=True, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        assert routed.stdout.strip() == "lab"


@pytest.mark.prometheus
@pytest.mark.parametrize("file", sorted((ROOT / "prometheus/tests").glob("*.yml")), ids=lambda file: file.stem)
def test_alerts_fire_at_their_edge_and_not_before(file):
    """promtool's own unit tests: pairs of quiet and firing."""
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_edge_pairs():
    """Quiet and firing, in some file."""
    text = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "prometheus/tests").glob("*.yml"))
    for alert in ALERTS:
        cases = re.findall(rf"alertname: {alert['alert']}\n\s+exp_alerts:(.*)", text)
        assert any("[]" in case for case in cases), f"{alert['alert']} is never proven quiet"
        assert any("[]" not in case for case in cases), f"{alert['alert']} is never proven firing"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_complete(alert):
    """Cause, severity, words for a human, and a runbook that exists."""
    assert alert["labels"]["cause"] in FAULTS
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert {"summary", "description", "runbook_url"} <= alert["annotations"].keys()
    assert alert["annotations"]["runbook_url"].endswith(f"/runbooks/{alert['alert']}")
    runbook = (ROOT / "docs/runbooks" / f"{alert['alert']}.md").read_text(encoding="utf-8")
    assert runbook.startswith(f"# {alert['alert']}\n")
    assert "## What to do" in runbook


def test_every_fault_is_claimed_by_an_alert():
    """One that is no exhibit."""
    assert {alert["labels"]["cause"] for alert in ALERTS if "exhibit" not in alert["labels"]} == set(FAULTS)


def test_the_diagnosis_knows_every_cause_and_asks_about_each_once():
    """What a fault is called, how it is measured and what it is mistaken for."""
    assert CAUSES.keys() == FAULTS.keys()
    asked = [cause for _, causes in STEPS for cause in causes]
    assert sorted(asked) == sorted(CAUSES)
    for name, cause in CAUSES.items():
        assert set(cause.look_alikes) <= CAUSES.keys() - {name}
        assert cause.told_from.keys() <= set(cause.look_alikes)
        assert len(cause.measures) > 1


def test_every_series_that_the_diagnosis_reads_is_recorded():
    """By the rules as they are."""
    recorded = {rule["record"] for group in RECORDING["groups"] for rule in group["rules"]}
    for cause in CAUSES.values():
        queries = " ".join([cause.lost, *(measure.query for measure in (*cause.measures, cause.telling))])
        assert set(re.findall(r"\b[a-z]+:\w+:\w+", queries)) <= recorded


def test_a_healthy_band_names_the_alerts_own_bound():
    """The number of each cause's first measure, where the alert, or what is recorded for it, compares the same series with one."""
    bounds = {"8 %": "0.08", "15 %": "0.15", "5 %": "0.0", "70 %": "0.7", "1.5": "1.5", "60 s": "60", "15 s": "15", "90 %": "0.9",
              "0.2 %": "0.002", "10 %": "0.1"}  # fmt: skip
    exprs = {alert["labels"]["cause"]: " ".join([alert["expr"], *(rule["expr"] for rule in recorded_for([alert["expr"]]))])
             for alert in ALERTS if "exhibit" not in alert["labels"]}  # fmt: skip
    checked = 0
    for name, cause in CAUSES.items():
        said = re.search(r"(?:below|above) ([\d.]+(?: %| s)?)", cause.measures[0].healthy)
        if said:
            assert bounds[said[1]] in exprs[name], name
            checked += 1
    assert checked > 12


def test_alertmanager_silences_what_the_diagnosis_leaves_out():
    """The same causes, symptoms and labels in common."""
    silenced = {(frozenset(_causes(rule["source_matchers"])), frozenset(_causes(rule["target_matchers"])),
                 tuple(label for label in rule["equal"] if label != "run")) for rule in INHIBITIONS}  # fmt: skip
    assert silenced == set(EXPLAINS)
    assert all("run" in rule["equal"] for rule in INHIBITIONS)


def test_rules_for_practice_neither_silence_nor_are_silenced():
    """Whatever cause they name."""
    for rule in INHIBITIONS:
        for matchers in (rule["source_matchers"], rule["target_matchers"]):
            assert not any(_match(matchers, {"cause": cause, "practice": "yes"}) for cause in CAUSES)


def test_an_exhibit_silences_nothing():
    """Though its cause would."""
    exhibits = [alert["labels"] for alert in ALERTS if "exhibit" in alert["labels"]]
    assert exhibits
    for labels in exhibits:
        assert not any(_match(rule["source_matchers"], labels) for rule in INHIBITIONS)
        assert any(_match(rule["source_matchers"], {"cause": labels["cause"]}) for rule in INHIBITIONS)


def _causes(matchers):
    """Those whose alerts match, exhibits aside."""
    return {cause for cause in CAUSES if _match(matchers, {"cause": cause})}


def _match(matchers, labels):
    """As Alertmanager does it: a label that is not there is empty."""
    parts = [re.fullmatch(r'(\w+) (=~|!~|=|!=) "(.*)"', matcher).groups() for matcher in matchers]
    return all((labels.get(name, "") in text.split("|")) != operator.startswith("!") for name, operator, text in parts)


def test_the_console_accuses_on_the_same_grounds_as_the_rules():
    """Its thresholds are the recorded culprit's."""
    culprits = [rule["expr"] for group in RECORDING["groups"] for rule in group["rules"] if "culprit" in rule["record"]]
    rank, node = (" ".join(expr.split()) for expr in culprits)
    for expr in (rank, node):
        assert f":training_late_share:rate1m) > {culprit.SHARE}" in expr
        assert f"{culprit.CHANCE} / sqrt(" in expr
    assert f"> on (run) group_left () {culprit.RANK_EXCESS} * (1 - 1 / count by (run)" in rank
    assert f":training_late_steps_excess:rate1m > {culprit.NODE_EXCESS}" in node
    assert f"{culprit.NODE_SECONDS} * sum by (run)" in node


def test_levels_hold_each_rule_once_and_after_what_it_needs():
    """So that a past can be backfilled level by level."""
    levels = rule_levels(RECORDING)
    known = set()
    for level in levels:
        names = {rule["record"] for rule in level["groups"][0]["rules"]}
        for rule in level["groups"][0]["rules"]:
            needed = set(re.findall(r"\w+:[\w:]+", rule["expr"]))
            assert needed <= known, rule["record"]
        known |= names
    assert known == {rule["record"] for group in RECORDING["groups"] for rule in group["rules"]}
    assert len(levels) >= 3
