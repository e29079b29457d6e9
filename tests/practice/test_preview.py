"""stepsim.practice.preview: it says what the exact engine says, keeps what it has loaded, and leaves nothing behind."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml

from stepsim.practice import exact
from stepsim.practice import preview as engine
from stepsim.practice.data import lab_rules, recording_of
from stepsim.practice.drill import read_drill
from stepsim.practice.exact import EngineError
from stepsim.practice.grade import hear
from stepsim.practice.preview import fire, firing, preview, store_of
from stepsim.practice.preview import prometheus as preview_prometheus
from stepsim.practice.preview.prometheus import Clock
from stepsim.practice.preview.store import Store
from stepsim.practice.rule_file import RuleFileError, load_rules
from stepsim.practice.scenario import draw_scenario, sealed_seeds
from stepsim.serving import free_port, listen

pytestmark = pytest.mark.prometheus

DRILL = """
id: previewed
title: A GPU is lost, another one slows down, and in between the job is restarted
goal: Both engines hear the same
quiet_hours: 1.5
seeds: {sealed: 1}
ranks: 8
incidents:
  - {fault: gpu_lost, lasts: 8m}
  - {fault: straggler, severity: 1.4, ramp: 60s, lasts: 10m}
debrief: None.
reference: [{alert: A, expr: vector(1)}]
tempting: [{why: None., rules: [{alert: A, expr: vector(1)}]}]
"""
SHARE = 'rank:training_phase_share:rate1m{phase="allreduce"}'
RECORDS = {
    "own:compute:rate1m": "rank:training_compute_seconds:per_step_rate1m * 1",
    "own_ratio": "own:compute:rate1m / on (run) group_left () quantile by (run) (0.5, own:compute:rate1m)",
    "own:many": "DCGM_FI_DEV_GPU_UTIL < 50 or on (UUID) DCGM_FI_DEV_GPU_TEMP > 0",
    "own:labels": {"expr": "up == 0", "labels": {"job": "", "of": "mine"}},
    "own:nan": "training_nonfinite_steps_total * 0 / 0",
}
ALERTS = {
    "threshold": {"expr": "rank:training_culprit:share > 0.05"},
    "scraped": {"expr": "DCGM_FI_DEV_GPU_UTIL < 90"},
    "for": {"expr": f"{SHARE} > 0.2", "for": "2m"},
    "for that is no multiple": {"expr": f"{SHARE} > 0.2", "for": "100s"},
    "keep": {"expr": f"{SHARE} > 0.3", "keep_firing_for": "4m"},
    "for and keep": {"expr": f"{SHARE} > 0.2", "for": "1m", "keep_firing_for": "95s"},
    "and": {"expr": f"{SHARE} > 0.2 and on (run) rank:training_culprit:share > 0.05"},
    "unless": {"expr": f"{SHARE} > 0.2 unless on (run) rank:training_culprit:share > 0.05"},
    "or": {"expr": "DCGM_FI_DEV_GPU_UTIL < 50 or rank:training_culprit:share > 0.05 or up == 0"},
    "third level": {"expr": "rank:gpu_xid:last > 0 or rank:gpu_power_capped:ratio or rank:gpu_link:ratio < 1"},
    "own record": {"expr": "own_ratio > 1.15", "for": "30s"},
    "several in one record": {"expr": "own:many"},
    "offset": {"expr": f"{SHARE} > 1.3 * {SHARE} offset 10m"},
    "recorded between evaluations": {"expr": f"{SHARE} offset 10s > 0.2"},
    "scraped between scrapes": {"expr": "DCGM_FI_DEV_GPU_UTIL offset 4s < 90"},
    "subquery": {"expr": f"max_over_time({SHARE}[3m:10s]) > 0.3"},
    "subquery by the evaluation interval": {"expr": "count_over_time(up[10m:]) < 20"},
    "increase": {"expr": "increase(training_steps_total[5m]) < 250"},
    "rate of a restarted counter": {"expr": "rate(training_phase_seconds_total[1m]) > 0.9"},
    "resets": {"expr": "resets(training_steps_total[10m]) > 0"},
    "absent": {"expr": "absent(training_steps_total)"},
    "absent for ever": {"expr": 'absent(no_such_metric{run="none"})', "for": "10m"},
    "NaN is not what it is": {"expr": "own:nan != own:nan"},
    "vanished": {"expr": "DCGM_FI_DEV_GPU_TEMP > 0"},
    "down": {"expr": "up == 0"},
    "labels of an own record": {"expr": 'own:labels{of="mine",job=""} == 0'},
    "missing for a while": {"expr": "max_over_time(up[10m:15s]) unless up == 1"},
    "counted": {"expr": "count by (run) (training_rank_info) < 8"},
    "scalar": {"expr": "time() - 6000"},
    "labels": {"expr": f"{SHARE} > 0.2", "labels": {"who": "{{ $labels.node }}/{{.Labels.rank}}", "x": "{{ $labels.x }}"}},
    "labels override": {"expr": f"{SHARE} > 0.2", "labels": {"phase": "", "run": "mine"}},
    "value": {"expr": 'count by (node) (up{job="training"} == 0)', "labels": {"n": "{{ $value }} of 8"}},
    "large value": {"expr": "floor(max(training_steps_total) / 1000) * 1234567", "labels": {"n": "{{ $value }}"}},
    "round value": {"expr": "floor(max(training_steps_total) / 1000) * 1e6", "labels": {"n": "{{ $value }}"}},
    "huge value": {"expr": "floor(max(training_steps_total) / 1000) * 1e20", "labels": {"n": "{{ $value }}"}},
    "small value": {"expr": "floor(max(training_steps_total) / 1000) / 65536", "labels": {"n": "{{ $value }}"}},
    "negative value": {"expr": "0 - floor(max(training_steps_total) / 1000) * 123456.5", "labels": {"n": "{{ $value }}"}},
    "tiny value": {"expr": "floor(max(training_steps_total) / 1000) / 1e7", "labels": {"n": "{{ $value }}"}},
    "infinite value": {"expr": "max(training_rank_info) / 0", "labels": {"n": "{{ $value }}"}},
    "severity": {"expr": "rank:training_culprit:share > 0.05", "for": "30s", "labels": {"severity": "page"}},
}  # fmt: skip
NEVER = {
    "NaN is below nothing": {"expr": "own:nan < 1"},
    "no such series": {"expr": "no_such_metric > 0"},
    "no such label": {"expr": f"{SHARE} > 0.2 and up == 0"},
}


def rule_file(folder, alerts, records=()):
    """Loaded, as a person wrote it: ``alerts`` by name."""
    rules = [
        {"record": name, **(fields if isinstance(fields, dict) else {"expr": fields})}
        for name, fields in dict(records).items()
    ]
    rules += [{"alert": name, **fields} for name, fields in alerts.items()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}, sort_keys=False), encoding="utf-8")
    return load_rules(path)


@pytest.fixture(scope="module")
def scenario():
    drill = read_drill(DRILL, "test")
    drawn = draw_scenario(drill, sealed_seeds(drill)[0])
    lost, slow = drawn.incidents
    return replace(drawn, restarts=(round((lost.ends + slow.begins) / 2),))


@pytest.fixture(scope="module")
def data(scenario, tmp_path_factory):
    """Where its recording is."""
    folder = tmp_path_factory.mktemp("data")
    recording_of(scenario, folder)
    return folder


@pytest.fixture
def fresh(scenario, data, tmp_path):
    """Where its recording is, and nothing else."""
    (kept,) = data.glob("*.npz")
    shutil.copy(kept, tmp_path)
    return tmp_path


@pytest.fixture(scope="module", params=[30.0, 15.0], ids=["every 30 s", "every 15 s"])
def both(request, scenario, data, tmp_path_factory):
    """What the exact engine and the preview say: firing and pending, by alert."""
    rules = rule_file(tmp_path_factory.mktemp("rules"), ALERTS | NEVER, RECORDS)
    asked = replace(scenario, drill=scenario.drill.model_copy(update={"eval": request.param}))
    true = exact.firing(recording_of(asked, data), rules, every=request.param, lab=lab_rules())
    return [[by_alert(states) for states in engine_] for engine_ in (true, firing(asked, rules, data))]


def by_alert(states):
    found = {}
    for labels, moments in states.items():
        found.setdefault(dict(labels)["alertname"], {})[labels] = moments
    return found


@pytest.mark.parametrize("name", ALERTS)
def test_both_engines_say_the_same(both, name):
    """Each label set fires, and is pending, at the same evaluations."""
    (fired, pending), (fired_here, pending_here) = both
    assert fired_here[name] == fired[name]
    assert pending_here.get(name) == pending.get(name)


@pytest.mark.parametrize("name", NEVER)
def test_what_never_matches_is_heard_by_neither(both, name):
    """A NaN is below nothing, and what is not there matches nothing."""
    assert all(name not in states for engine_ in both for states in engine_)


def test_a_seed_is_heard_as_in_a_grade(scenario, data, tmp_path):
    """Alarms, hits, false alarms and silent alerts are those of the exact engine."""
    alerts = {name: ALERTS[name] for name in ("severity", "for and keep")} | {"silent": NEVER["no such label"]}
    rules = rule_file(tmp_path, alerts)
    heard = preview(scenario, rules, data)
    assert heard.alarms
    assert heard.silent == {"silent"}
    assert heard == hear(scenario, rules, data)


def test_a_series_is_loaded_once(scenario, fresh, tmp_path, monkeypatch):
    """The second preview reads no recording and writes nothing; a third one adds only what is new."""
    rules = rule_file(tmp_path / "one", {"one": ALERTS["threshold"], "two": ALERTS["down"]})
    first = preview(scenario, rules, fresh)
    store, before = store_of(scenario, fresh).folder, tree(store_of(scenario, fresh).folder)
    with monkeypatch.context() as changed:
        changed.setattr(engine, "recording_of", None)
        assert preview(scenario, rules, fresh) == first
    assert tree(store) == before
    preview(scenario, rule_file(tmp_path / "two", {"hot": ALERTS["vanished"]}), fresh)
    assert before.items() - tree(store).items() == {("content.json", before["content.json"])}
    assert json.loads((store / "content.json").read_text())["metrics"].keys() >= {"up", "DCGM_FI_DEV_GPU_TEMP"}


def tree(folder):
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_own_records_are_not_kept(scenario, fresh, tmp_path):
    """A record that was changed counts as it is now."""
    one = rule_file(tmp_path / "one", {"A": {"expr": "mine > 0"}}, {"mine": "up == 1"})
    two = rule_file(tmp_path / "two", {"A": {"expr": "mine > 0"}}, {"mine": "up > 1"})
    assert firing(scenario, one, fresh)[0]
    assert firing(scenario, two, fresh) == ({}, {})
    assert "mine" not in (store_of(scenario, fresh).folder / "content.json").read_text()


def test_a_changed_rule_of_the_lab_is_recorded_anew(scenario, fresh):
    """With all that stands on it, and with nothing of what was recorded before."""
    lab = {"groups": [{"rules": [{"record": "a:x", "expr": "sum(up)"}, {"record": "b:x", "expr": "a:x + 1"}]}]}
    changed = {"groups": [{"rules": [{"record": "a:x", "expr": "sum(up) * 0"}, {"record": "b:x", "expr": "a:x + 1"}]}]}
    assert values_of(scenario, fresh, lab, "max_over_time(b:x[1d])") == 5.0
    assert values_of(scenario, fresh, changed, "max_over_time(b:x[1d])") == 1.0


def values_of(scenario, data, lab, expr):
    """The last value of an expression that gives one series."""
    store = Store(
        folder=store_of(scenario, data).folder, recording=lambda: recording_of(scenario, data), every=30.0, lab=lab
    )
    found = []
    with store.opened([expr]) as session:
        session.ask([expr], lambda number, answers: found.extend(answers))
    return float(found[-1][0][1][-1][1])


def test_previews_at_once_share_a_store(scenario, fresh, tmp_path):
    """Each series is there once, and each preview hears what it would have heard alone."""
    files = [rule_file(tmp_path / name, {name: ALERTS[name]}) for name in ("threshold", "for", "third level")]
    with ThreadPoolExecutor(3) as pool:
        heard = list(pool.map(lambda rules: firing(scenario, rules, fresh), files * 2))
    assert heard[:3] == heard[3:]
    assert heard[:3] == [firing(scenario, rules, fresh) for rules in files]
    store = store_of(scenario, fresh).folder
    content = json.loads((store / "content.json").read_text())
    named = [*content["metrics"].values(), *(kept["blocks"] for kept in content["records"].values())]
    assert sorted(block for blocks in named for block in blocks) == sorted(
        p.name for p in store.iterdir() if p.is_dir()
    )


def test_what_an_ended_process_left_is_removed(scenario, fresh, tmp_path):
    """The next preview that adds something cleans up."""
    store = store_of(scenario, fresh).folder
    (store / ".session-old" / "wal").mkdir(parents=True)
    (store / "01M8NT871R6H4JT6K47B84HV91").mkdir()
    preview(scenario, rule_file(tmp_path / "rules", {"down": ALERTS["down"]}), fresh)
    content = json.loads((store / "content.json").read_text())
    assert {path.name for path in store.iterdir() if path.is_dir()} == set(content["metrics"]["up"])


BROKEN = {
    "many-to-many": ({"A": {"expr": "up * on () up"}}, {}, "A fails when it is evaluated: .*many-to-many"),
    "same labels": ({"A": {"expr": "up", "labels": {"job": "", "instance": "", "node": ""}}}, {}, "A fails .*same labelset"),
    "own record": ({"A": {"expr": "mine"}}, {"mine": "up * on () up"}, "mine fails when it is evaluated: .*many-to-many"),
    "own record's labels": (
        {"A": {"expr": "mine"}}, {"mine": {"expr": "up", "labels": {"job": "", "instance": "", "node": ""}}},
        "mine fails .*same labelset after applying rule",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_fails_is_told_in_prometheus_words(scenario, data, tmp_path, name):
    """With the file, and the rule's name; and no Prometheus is left, nor a folder."""
    alerts, records, words = BROKEN[name]
    with pytest.raises(RuleFileError, match=f"rules.yml: {words}"):
        preview(scenario, rule_file(tmp_path, alerts, records), data)
    assert not [child for child in psutil.Process().children() if child.name() == "prometheus"]
    assert not list(store_of(scenario, data).folder.glob(".[ms]*-*"))


def test_a_broken_expression_is_no_crash(scenario, data, tmp_path):
    """One that only Prometheus refuses is refused in its words."""
    rules = rule_file(tmp_path, {"A": {"expr": "up"}})
    broken = replace(rules, alerts=(replace(rules.alerts[0], expr="sum(up"),))
    with pytest.raises(RuleFileError, match=r"A fails when it is evaluated: .*parse error: unclosed left parenthesis"):
        preview(scenario, broken, data)


@pytest.mark.parametrize("expr", ['ALERTS{alertstate="firing"}', "up @ end() == 0", "up @  start ( ) == 0"])
def test_what_it_does_not_know_is_refused(scenario, data, tmp_path, expr):
    """With line and name, and the way out."""
    with pytest.raises(EngineError, match=r"rules.yml:4: the preview knows no .*, which A reads\. A grade does"):
        preview(scenario, rule_file(tmp_path, {"A": {"expr": expr}}), data)


def test_a_record_that_reads_itself_is_refused(scenario, data, tmp_path):
    """What depends on its own past has no level."""
    rules = rule_file(tmp_path, {"A": {"expr": "mine > 0"}}, {"mine": "mine offset 1m or vector(1)"})
    with pytest.raises(EngineError, match="reads its own past: mine"):
        preview(scenario, rules, data)


@pytest.mark.parametrize("missing", ["prometheus", "promtool"])
def test_a_missing_program_is_named(scenario, fresh, tmp_path, monkeypatch, missing):
    """And what to install."""
    there = tmp_path / "bin"
    there.mkdir()
    for name in {"prometheus", "promtool"} - {missing}:
        (there / name).symlink_to(Path(shutil.which(name)))
    monkeypatch.setenv("PATH", str(there))
    with pytest.raises(EngineError, match=rf"{missing} is not on the PATH; .*apt-get install prometheus"):
        preview(scenario, rule_file(tmp_path / "rules", {"down": ALERTS["down"]}), fresh)


def test_a_taken_port_is_given_up(scenario, data, tmp_path, monkeypatch):
    """Another one is tried, and nobody else's answers are taken for Prometheus's."""
    rules = rule_file(tmp_path, {"down": ALERTS["down"]})
    with listen("127.0.0.1", 0) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(preview_prometheus, "free_port", lambda: next(ports))
        assert firing(scenario, rules, data)[0]


def test_a_copy_does_where_no_link_can_be_made(scenario, data, tmp_path, monkeypatch):
    """Some file systems know no second names."""

    def refuse(source, target):
        raise OSError

    rules = rule_file(tmp_path, {"down": ALERTS["down"]})
    linked = firing(scenario, rules, data)
    monkeypatch.setattr(os, "link", refuse)
    assert firing(scenario, rules, data) == linked


def test_a_week_is_asked_for_in_parts():
    """There are as many evaluations as the exact engine makes."""
    assert Clock(every=30.0, scrape=15.0, last=604800.0).count == 20161
    assert Clock(every=30.0, scrape=15.0, last=604785.0).count == 20160


@pytest.mark.parametrize(
    ("numbers", "hold", "keep", "fired", "pending"),
    [
        ([0, 1, 2], 0, 0, [0, 1, 2], []),
        ([1, 2, 3], 2, 0, [3], [1, 2]),
        ([1, 2, 5, 6, 7], 2, 0, [7], [1, 2, 5, 6]),
        ([1, 2, 5], 1, 2, [2, 3, 4, 5, 6, 7], [1]),
        ([1, 2, 6], 1, 2, [2, 3, 4], [1, 6]),
        ([1, 2, 4], 1, 3, [2, 3, 4, 5, 6, 7], [1]),
        ([1, 9], 0, 5, [1, 2, 3, 4, 5, 6, 9], []),
        ([], 1, 1, [], []),
    ],
)
def test_when_an_alert_fires(numbers, hold, keep, fired, pending):
    """After so many evaluations of an unbroken run, and for so many after it, but for no longer than the recording."""
    assert fire(numbers, hold=hold, keep=keep, count=10) == (fired, pending)
