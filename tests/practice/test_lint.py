"""stepsim.practice.lint: each classic mistake is found, its repair is not, and the project's own rules are well."""

from pathlib import Path

import pytest
import yaml

from stepsim.practice.lint import lint
from stepsim.practice.rule_file import load_rules
from stepsim.practice.vocabulary import vocabulary

RULES = Path(__file__).parents[2] / "prometheus/rules"
UTIL = "rank:gpu_utilization:ratio_avg1m"


@pytest.fixture(scope="module")
def known():
    return vocabulary(yaml.safe_load((RULES / "recording.yml").read_text(encoding="utf-8")))


@pytest.fixture
def findings(tmp_path, known):
    """Lints one alert; what is not given is as it should be."""

    def found(expr, records=(), known=known, **fields):
        alert = {"alert": "Slow", "expr": expr, "for": "1m", "labels": {"severity": "page"}, **fields}
        rules = [{"record": name, "expr": recorded} for name, recorded in records]
        alert = {key: value for key, value in alert.items() if value is not None}
        path = tmp_path / "rules.yml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [*rules, alert]}]}), encoding="utf-8")
        return lint(load_rules(path), known)

    return found


MISTAKES = {
    "training_mfu > 0.5": "unknown-metric",
    "lab_fault_active > 0": "unknown-metric",
    "rate(training_step_duration_seconds[5m]) > 2": "unknown-metric",
    "training_mfu_ratio < 0.2 and avg(training_mfu_ratio) > 0.3 and max by (run) (training_learning_rate) > 0":
        "never-matches",
    "training_mfu_ratio < 0.2 and max(training_learning_rate) > 0": "never-matches",
    "training_mfu_ratio < 0.5 * max by (run) (training_mfu_ratio)": "never-matches",
    "training_mfu_ratio < 0.2 unless max by (run) (training_learning_rate) < 1": "never-matches",
    "training_mfu_ratio < 0.2 and on (rank) training_learning_rate > 0": "never-matches",
    "rate(training_late_steps_total[5m]) / rate(training_steps_total[5m]) > 0.5": "never-matches",
    'sum by (run, phase) (rate(training_phase_seconds_total{phase="forward"}[5m]))'
    ' > 2 * sum by (run, phase) (rate(training_phase_seconds_total{phase="backward"}[5m]))': "never-matches",
    "training_mfu_ratio < on (run) 0.5 * max by (run) (training_mfu_ratio)": "many-to-one",
    "max by (run) (training_mfu_ratio) > on (run) training_mfu_ratio": "many-to-one",
    "rank:training_compute_seconds:per_step_rate1m > on (run) rank:training_wait_seconds:per_step_rate1m":
        "many-to-many",
    "training_mfu_ratio < on (run) group_left () training_mfu_ratio": "many-to-many",
    "rate(training_mfu_ratio[5m]) > 0.1": "rate-of-gauge",
    "increase(run:training_mfu:ratio_rate1m[5m]) > 0.1": "rate-of-gauge",
    "delta(training_nonfinite_steps_total[5m]) > 0": "delta-of-counter",
    "rate(sum by (run) (training_steps_total)[5m:15s]) < 1": "rate-of-sum",
    "training_nonfinite_steps_total > 0": "counter-without-rate",
    "max by (run) (max_over_time(training_late_steps_total[5m])) > 100": "counter-without-rate",
    "sum by (run) (training_late_steps_total) / sum by (run) (training_referee_steps_total) > 0.5":
        "counter-without-rate",
    "training_steps_total == 0": "counter-without-rate",
    "training_loss > 10": "nan-defeats-comparison",
    "training_gradient_norm / avg_over_time(training_gradient_norm[1h]) > 5": "nan-defeats-comparison",
    "10 < training_gradient_norm": "nan-defeats-comparison",
    "avg(training_mfu_ratio) < 0.3": "average-hides-rank",
    "avg by (run) (rank:training_compute_seconds:per_step_rate1m) > 1.2": "average-hides-rank",
    "avg by (node) (DCGM_FI_DEV_GPU_TEMP) > 80": "average-hides-rank",
    "training_learning_rate > 0.9 * min_over_time(training_learning_rate[1h])": "always-true",
    "training_learning_rate <= max_over_time(training_learning_rate[1h])": "always-true",
    "1.1 * max_over_time(training_learning_rate[1h]) > training_learning_rate": "always-true",
    "max by (run) (training_mfu_ratio) > 0.5 * max by (run) (min_over_time(training_mfu_ratio[1h]))": "always-true",
    "training_learning_rate > 1.2 * max_over_time(training_learning_rate[1h])": "never-true",
    "training_learning_rate > bool 5": "always-true",
    "training_learning_rate": "always-true",
    "vector(1)": "always-true",
    f"{UTIL} < 0.5": "utilization-counts-waiting",
    "max by (node) (DCGM_FI_DEV_GPU_UTIL) < 50": "utilization-counts-waiting",
    'training_learning_rate{rank="0"} > 1': "label-not-there",
    "max by (run, rnak) (training_mfu_ratio) > 1": "label-not-there",
    "max by (run) (training_mfu_ratio) > on (run, nood) max by (run) (training_learning_rate)": "label-not-there",
    "rate(training_phase_seconds_total[5m]) > 0.5": "many-alerts",
    "DCGM_FI_DEV_GPU_TEMP > 85": "many-alerts",
}  # fmt: skip


@pytest.mark.parametrize(("expr", "check"), MISTAKES.items())
def test_a_classic_mistake_is_found_and_nothing_else(findings, expr, check):
    """Each mistake gives its own finding, with words and a way out, and no other."""
    found = findings(expr)
    assert {finding.check for finding in found} == {check}
    assert all(finding.message and finding.instead and finding.rule == "Slow" for finding in found)


@pytest.mark.parametrize(
    "expr",
    [
        "training_mfu_ratio < 0.2 and on (run) max by (run) (training_learning_rate) > 0",
        "training_mfu_ratio < on (run) group_left () 0.5 * max by (run) (training_mfu_ratio)",
        "training_mfu_ratio < 0.2 and on () vector(1) == 1",
        "rate(training_late_steps_total[5m]) / on (run, rank) rate(training_steps_total[5m]) > 0.5",
        "delta(training_mfu_ratio[5m]) < -0.1",
        "increase(training_nonfinite_steps_total[5m]) > 0",
        "sum by (run) (rate(training_steps_total[5m])) < 1",
        "count by (run) (training_steps_total) < 16",
        "training_steps_total - training_steps_total offset 5m < 1",
        "resets(training_steps_total[10m]) > 0",
        "resets(training_global_step[10m]) > 0",
        "absent(training_loss)",
        "training_loss > 10 or training_loss != training_loss",
        "training_loss > 10 or increase(training_nonfinite_steps_total[5m]) > 0",
        "training_loss < 2",
        "changes(training_loss[5m]) > 100",
        "max by (run, rank) (training_mfu_ratio) < 0.3",
        "max by (run) (training_mfu_ratio) / avg by (run) (training_mfu_ratio) > 1.3",
        "training_mfu_ratio < on (run) group_left () 0.8 * avg by (run) (training_mfu_ratio)",
        "training_learning_rate > 1.5 * min_over_time(training_learning_rate[1h])",
        "training_learning_rate > max_over_time(training_learning_rate[1h] offset 5m)",
        "training_learning_rate <= min_over_time(training_learning_rate[1h])",
        f"training_mfu_ratio < 0.1 and on (run, rank) {UTIL} > 0.9",
        f"{UTIL} > 0.95 and on (run) run:training_last_step_age_seconds:min > 60",
        'rank:training_culprit:share{phase="forward"} > 0.1',
        "rank:training_missing:last1h",
        'up{job="dcgm"} == 0',
        "up == 0",
        "run:training_stall_seconds:min unless on (run) ALERTS{alertname=\"Other\"}",
        "time() - max by (run) (training_last_step_timestamp_seconds) > 60",
        'label_replace(training_mfu_ratio, "pod", "$1", "node", "(.*)") < 0.2',
        "topk by (run) (1, rank:training_compute_seconds:per_step_rate1m) > 2",
        "rank:gpu_power_limit:ratio < on (run) group_left () 0.9 * max by (run) (rank:gpu_power_limit:ratio)",
        "histogram_quantile(0.9, sum by (run, le) (rate(training_step_duration_seconds_bucket[5m]))) > 3",
        "max by (run, rank, node) (DCGM_FI_DEV_GPU_TEMP * on (UUID) group_left (run, rank, node) gpu:training_rank:info) > 80",
    ],
)  # fmt: skip
def test_the_right_way_is_not_flagged(findings, expr):
    """What resembles a mistake but is none gives no finding."""
    assert findings(expr) == []


@pytest.mark.parametrize(
    ("fields", "check", "level"),
    [
        ({"for": None}, "missing-for", "advice"),
        ({"labels": None}, "no-severity", "warning"),
        ({"labels": {"severity": "page", "v": "{{ $value }}"}}, "value-in-labels", "error"),
        ({"annotations": {"summary": "{{ $labels.gpu }} is slow"}}, "label-not-there", "warning"),
    ],
)
def test_what_surrounds_the_expression_is_checked_too(findings, fields, check, level):
    """A missing `for` or severity, a value among the labels and a label that the result lacks are found."""
    found = findings("training_mfu_ratio < 0.2", **fields)
    assert [(finding.check, finding.level) for finding in found] == [(check, level)]


def test_a_window_or_a_recorded_window_stands_for_a_for(findings):
    """An expression that looks back a minute, itself or where it is recorded, needs no `for`."""
    for expr in ("avg_over_time(training_mfu_ratio[1m]) < 0.2", "rank:training_mfu:ratio_rate1m < 0.2"):
        assert findings(expr, **{"for": None}) == []


def test_an_unknown_metric_is_answered_with_the_closest(findings):
    """A misspelt name is answered with the one that exists."""
    (finding,) = findings("training_mfu_ration < 0.2")
    assert "training_mfu_ratio" in finding.instead


def test_the_repair_of_a_match_that_never_is_is_promql_without_that_finding(findings):
    """What never-matches proposes parses, and has no finding any more."""
    (finding,) = findings("training_mfu_ratio < 0.5 * max by (run) (training_mfu_ratio)")
    assert finding.instead == "training_mfu_ratio < on (run) group_left () (0.5 * max by (run) (training_mfu_ratio))"
    assert findings(finding.instead) == []


def test_the_message_names_both_sides_labels(findings):
    """Who is told that two sides never match reads the labels of each."""
    (finding,) = findings("rate(training_late_steps_total[5m]) / rate(training_steps_total[5m]) > 0.5")
    assert 'job="referee"' in finding.message
    assert 'job="training"' in finding.message


@pytest.mark.parametrize(
    ("recorded", "expr", "checks"),
    [
        ("avg by (run) (training_mfu_ratio)", "my:record < 0.2", {"average-hides-rank"}),
        ("training_loss * 2", "my:record > 20", {"nan-defeats-comparison"}),
        ("max by (run) (training_late_steps_total)", "my:record > 20", {"counter-without-rate"}),
        (
            "max by (run) (training_mfu_ratio)",
            "my:record < 0.2 and my:record == training_learning_rate",
            {"never-matches"},
        ),
        ("max by (run) (training_mfu_ratio)", "my:record < 0.2", set()),
        ("my:record", "my:record < 0.2", set()),
    ],
)
def test_a_files_own_records_are_looked_into(findings, recorded, expr, checks):
    """A mistake is found as well when half of it is in a recording rule of the same file."""
    assert {finding.check for finding in findings(expr, records=[("my:record", recorded)])} == checks


def test_a_recording_rule_of_the_file_is_linted_itself(findings):
    """A finding in a recording rule bears that rule's name and line."""
    found = findings("my:record > 1", records=[("my:record", "rate(training_mfu_ratio[5m])")])
    assert [(f.rule, f.check, f.line) for f in found] == [("my:record", "rate-of-gauge", 4)]


def test_the_projects_own_alerts_are_well(known):
    """Of the project's alerts, only the exhibit of a naive one is found fault with, and for what it exhibits."""
    found = lint(load_rules(RULES / "alerts.yml"), known)
    assert [(f.level, f.rule, f.check) for f in found] == [
        ("warning", "GpuUtilizationLow", "utilization-counts-waiting")
    ]


def test_the_projects_own_records_are_well(tmp_path):
    """Recording rules and alerts in one file, with nothing known but what is scraped, have no error."""
    alerts = (RULES / "alerts.yml").read_text(encoding="utf-8").partition("groups:\n")[2]
    path = tmp_path / "both.yml"
    path.write_text((RULES / "recording.yml").read_text(encoding="utf-8") + alerts, encoding="utf-8")
    found = lint(load_rules(path), vocabulary(None))
    assert [f for f in found if f.level == "error"] == []
    assert {f.check for f in found} == {"average-hides-rank", "utilization-counts-waiting"}
