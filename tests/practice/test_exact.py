"""Engine A: promtool is given a recording, and what it says is understood."""

import dataclasses
import re
import subprocess

import numpy as np
import pytest

from stepsim.practice.data import lab_rules
from stepsim.practice.exact import EngineError, evaluate, firing
from stepsim.practice.recording import STALE, Recording
from stepsim.practice.rule_file import RuleFileError, load_rules

pytestmark = pytest.mark.prometheus


def recording_of(**series):
    """Every series under its name, scraped each 15 s; ``None`` is absence."""
    values = np.array([[STALE if value is None else value for value in row] for row in series.values()], dtype=float)
    return Recording(scrape_seconds=15.0, keys=tuple(series), rows=np.arange(len(series), dtype=np.int32), values=values,
                     visible=())  # fmt: skip


def rules_of(folder, *rules):
    text = "\n".join(f"      - {{{rule}}}" for rule in rules)
    (folder / "rules.yml").write_text(f"groups:\n  - name: g\n    rules:\n{text}\n", encoding="utf-8")
    return load_rules(folder / "rules.yml")


def fired(recording, rules, every=15.0):
    found, _ = firing(recording, rules, every=every, lab=lab_rules())
    return {dict(labels)["alertname"]: moments for labels, moments in found.items()}


def test_for_and_keep_firing_for_are_prometheuss_own(tmp_path):
    """Above the bound from 60 to 105 s: for 30 s it must be, and 30 s longer it fires."""
    recording = recording_of(a=[0] * 4 + [1] * 4 + [0] * 8)
    rules = rules_of(tmp_path, "alert: Plain, expr: a > 0", "alert: For, expr: a > 0, for: 30s",
                     "alert: Keep, expr: a > 0, for: 30s, keep_firing_for: 30s")  # fmt: skip
    assert fired(recording, rules) == {
        "Plain": [60, 75, 90, 105], "For": [90, 105], "Keep": [90, 105, 120, 135],
    }  # fmt: skip


def test_rules_are_evaluated_at_the_drills_own_interval(tmp_path):
    """Every 30 s of 15 s scrapes."""
    assert fired(recording_of(a=[0] * 3 + [1] * 5), rules_of(tmp_path, "alert: A, expr: a > 0"), 30.0) == {
        "A": [60, 90]
    }


def test_a_series_that_ends_is_gone_at_once_and_nan_is_a_value(tmp_path):
    """It is marked stale; NaN is not above a bound, and is not itself."""
    recording = recording_of(a=[1, 1, None, None, 1], b=[1, float("nan"), float("inf"), 1, 1])
    rules = rules_of(tmp_path, "alert: There, expr: a > 0", "alert: Above, expr: b > 0", "alert: Nan, expr: b != b")
    assert fired(recording, rules) == {"There": [0, 15, 60], "Above": [0, 30, 45, 60], "Nan": [15]}


def test_pending_alerts_are_told_apart(tmp_path):
    """One that is never long enough true is no dead one."""
    found, pending = firing(
        recording_of(a=[0, 1, 0, 0]), rules_of(tmp_path, "alert: A, expr: a > 0, for: 1m"), every=15.0, lab=lab_rules()
    )
    assert (found, list(pending.values())) == ({}, [[15]])


def test_labels_keep_quotes_and_braces(tmp_path):
    """Whatever a template makes of them."""
    key = 'a{x="b\\"}, {\\\\"}'
    rules = rules_of(tmp_path, 'alert: A, expr: a > 0, labels: {told: "<{{ $labels.x }}>"}')
    ((labels, _),) = firing(recording_of(**{key: [1, 1]}), rules, every=15.0, lab=lab_rules())[0].items()
    assert dict(labels)["told"] == '<b"}, {\\>'


def test_values_and_several_expressions_are_told_apart():
    """A sample per label set and evaluation, in order; after a day, too."""
    recording = recording_of(**{'a{x="1"}': [2.5] * 5800, 'a{x="2"}': [-1e30] * 5800})
    found = evaluate(recording, None, ["a > 0", "count(a)"], every=43_500.0, lab=lab_rules())
    assert found == {
        "a > 0": {frozenset({("x", "1")}): [(0, 2.5), (43_500, 2.5)]},
        "count(a)": {frozenset(): [(0, 2), (43_500, 2)]},
    }


def test_the_labs_recorded_series_are_there_as_far_as_they_are_needed(tmp_path, played):
    """The culprit's, by levels of recording rules; named with its rank."""
    scenario, recording = played
    rules = rules_of(tmp_path, "alert: Slow, expr: 'rank:training_culprit:share{phase=\"backward\"} > 0.08', for: 15s")
    ((labels, moments),) = firing(recording, rules, every=15.0, lab=lab_rules())[0].items()
    (incident,) = scenario.incidents
    assert dict(labels)["rank"] == str(incident.target["rank"])
    assert incident.begins < moments[0] < incident.begins + 120
    assert incident.ends <= moments[-1] < incident.ends + 120


def test_ones_own_recording_rules_come_before_the_alerts(tmp_path):
    """In the order of the file."""
    rules = rules_of(tmp_path, "record: b, expr: a * 2", "alert: A, expr: b > 3")
    assert fired(recording_of(a=[1, 2, 2]), rules) == {"A": [15, 30]}


def test_a_rule_that_fails_at_run_time_is_named(tmp_path):
    """With Prometheus's own words."""
    recording = recording_of(**{'a{x="1"}': [1, 1], 'a{x="2"}': [1, 1]})
    with pytest.raises(RuleFileError, match=r"rules\.yml: Twice fails when it is evaluated: .*many-to-many"):
        firing(recording, rules_of(tmp_path, "alert: Twice, expr: a * on () a"), every=15.0, lab=lab_rules())


def test_without_promtool_it_is_said_where_it_comes_from(monkeypatch):
    """Not on the PATH."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EngineError, match=r"promtool is not on the PATH; .*apt-get install prometheus"):
        evaluate(recording_of(a=[1]), None, ["a"], every=15.0, lab=lab_rules())


def test_words_of_promtool_that_are_not_understood_are_shown(monkeypatch):
    """As from a version whose output is another one."""
    answer = subprocess.CompletedProcess([], 1, "", "  FAILED: something new")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(EngineError, match="something new"):
        evaluate(recording_of(a=[1]), None, ["a"], every=15.0, lab=lab_rules())


def test_the_version_of_promtool_is_one_whose_words_are_known():
    """2 and 3 write alike (promtool's unittest.go); another one must be looked at."""
    said = subprocess.run(["promtool", "--version"], capture_output=True, text=True, check=True)
    assert re.search(r"version (\d+)\.", said.stdout + said.stderr)[1] in ("2", "3")


def test_runs_of_equal_values_are_written_once(tmp_path, played):
    """A recording is as large as what changes in it."""
    _, recording = played
    flat = dataclasses.replace(recording, values=np.ones_like(recording.values))
    assert fired(flat, rules_of(tmp_path, "alert: A, expr: count(up) == 6"), 600.0) == {}
