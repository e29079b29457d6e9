"""stepsim.practice.live.client: one's own rules in a running Prometheus, all of them or none; and clear words when it cannot be."""

import dataclasses
import os
import shutil
import signal
import subprocess
import threading

import pytest
import requests
import typer
import yaml

from running_lab import ROOT, Lab, free_ports, poll_until
from stepsim.practice.live.client import LiveError, clear, install, reveal, start_blind, state
from stepsim.practice.live.rules import EMPTY, LOADED, rendered
from stepsim.practice.rule_file import load_rules

RULES = """\
groups:
  - name: mine
    rules:
      - record: run:mine:ratio
        expr: avg by (run) (run:training_mfu:ratio_rate1m)
      - alert: Slow
        expr: run:mine:ratio < 0.3
        for: 1m30s
        keep_firing_for: 30s
        labels: {severity: page, active: yes, level: 007}
        annotations: {summary: "MFU is {{ $value | humanizePercentage }} — low"}
  - name: others
    rules:
      - alert: Gone
        expr: absent(up{job="training"})
"""


@pytest.fixture
def rules(tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text(RULES, encoding="utf-8")
    return load_rules(file)


@pytest.fixture
def target(tmp_path):
    """The lab's file, in its folder."""
    file = tmp_path / "rules" / "practice.yml"
    file.parent.mkdir()
    file.write_text(EMPTY, encoding="utf-8")
    return file


def test_the_committed_file_is_the_empty_one_and_prometheus_reads_it():
    """So that after clearing nothing is left to commit; a cluster gets no such file."""
    assert (ROOT / "prometheus/rules/practice.yml").read_text(encoding="utf-8") == EMPTY
    config = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    assert "rules/practice.yml" in config["rule_files"]
    assert yaml.safe_load(EMPTY) == {"groups": []}
    for file in (*(ROOT / "deploy").rglob("*.y*ml"), ROOT / "deploy/kubernetes/generate.py"):
        assert "practice.yml" not in file.read_text(encoding="utf-8")


def test_composes_prometheus_looks_for_changed_rules_and_cannot_be_told_by_web_pages():
    """By a feature of Prometheus 3, which 2 warns of; a reload by HTTP would be open to every page in the browser."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["prometheus"]
    assert "--enable-feature=auto-reload-config" in compose["command"]
    assert (
        "./prometheus/rules:/etc/prometheus/rules:ro" in compose["volumes"]
    )  # a folder: a file would keep its old content
    assert not any("lifecycle" in word for word in compose["command"])
    assert "lifecycle" not in (ROOT / "simulator/stepsim/lab.py").read_text(encoding="utf-8")


def test_rules_are_copied_word_by_word_and_labelled(rules):
    """Alerts alone get the label; texts that YAML could take for something else stay texts."""
    mark, mine, others = yaml.safe_load(rendered(rules))["groups"]
    assert mark["rules"][0]["record"] == LOADED
    assert mark["rules"][0]["expr"] == "vector(2)"
    assert mine == {
        "name": "mine",
        "rules": [
            {"record": "run:mine:ratio", "expr": "avg by (run) (run:training_mfu:ratio_rate1m)"},
            {
                "alert": "Slow", "expr": "run:mine:ratio < 0.3", "for": "90000ms", "keep_firing_for": "30000ms",
                "labels": {"severity": "page", "active": "yes", "level": "007", "practice": "yes"},
                "annotations": {"summary": "MFU is {{ $value | humanizePercentage }} — low"},
            },
        ],
    }  # fmt: skip
    assert others["rules"] == [{"alert": "Gone", "expr": 'absent(up{job="training"})', "labels": {"practice": "yes"}}]


class Running:
    """A Prometheus that reads ``target``, and is sent SIGHUP whenever the file changes, as ``stepscope lab`` does."""

    def __init__(self, folder, target):
        [port] = free_ports(1)
        self.url, self.target = f"http://127.0.0.1:{port}", target
        (folder / "prometheus.yml").write_text(f"global: {{evaluation_interval: 1s}}\nrule_files: ['{target}']\n")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"], stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.told = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True)

    def watch(self):
        seen = self.target.read_text(encoding="utf-8")
        while not self.told.wait(0.1):
            if (now := self.target.read_text(encoding="utf-8")) != seen:
                seen = now
                self.process.send_signal(signal.SIGHUP)

    def rules(self):
        groups = requests.get(self.url + "/api/v1/rules", timeout=5).json()["data"]["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}


def answers(url):
    try:
        return requests.get(url + "/-/ready", timeout=1).status_code == 200
    except requests.RequestException:
        return False


@pytest.fixture
def prometheus(tmp_path, target):
    running = Running(tmp_path, target)
    try:
        poll_until(lambda: answers(running.url), "Prometheus is ready", 30)
        running.watcher.start()
        yield running
    finally:
        running.told.set()
        running.process.terminate()
        running.process.wait(10)


@pytest.mark.prometheus
def test_rules_are_loaded_when_install_returns_and_gone_when_clear_does(rules, target, prometheus):
    """With their label; nothing else is left in the folder, and the file is readable for a container's Prometheus."""
    install(rules, target, prometheus.url, 20)
    loaded = prometheus.rules()
    assert loaded.keys() == {LOADED, "run:mine:ratio", "Slow", "Gone"}
    assert loaded["Slow"]["labels"] == {"severity": "page", "active": "yes", "level": "007", "practice": "yes"}
    assert (loaded["Slow"]["duration"], loaded["Slow"]["keepFiringFor"]) == (90, 30)
    assert [file.name for file in target.parent.iterdir()] == ["practice.yml"]
    assert target.stat().st_mode & 0o444 == 0o444
    clear(target, prometheus.url, 20)
    assert prometheus.rules() == {}
    assert target.read_text(encoding="utf-8") == EMPTY


@pytest.mark.prometheus
def test_what_prometheus_refuses_leaves_the_old_rules(rules, target, prometheus, tmp_path, monkeypatch):
    """In the file as in Prometheus, whether promtool is there to refuse it first or not."""
    install(rules, target, prometheus.url, 20)
    before = target.read_text(encoding="utf-8")
    [wrong] = [alert for alert in rules.alerts if alert.name == "Gone"]
    broken = dataclasses.replace(
        rules, text="another", alerts=(dataclasses.replace(wrong, annotations={"summary": "{{ nofunction $value }}"}),)
    )
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LiveError, match=f"refuses the rules.*{target} is what it was"):
        install(broken, target, prometheus.url, 20)
    assert target.read_text(encoding="utf-8") == before
    assert "Slow" in prometheus.rules()
    monkeypatch.undo()
    mended = tmp_path / "later.yml"
    mended.write_text(RULES.replace("Slow", "Slower"), encoding="utf-8")
    install(load_rules(mended), target, prometheus.url, 20)  # and Prometheus still listens
    assert "Slower" in prometheus.rules()


@pytest.mark.prometheus
def test_a_prometheus_that_does_not_notice_is_told_of_by_name(rules, target, prometheus):
    """With the command that wakes it; the rules are in place for then."""
    prometheus.told.set()
    prometheus.watcher.join()
    with pytest.raises(LiveError, match="docker compose kill -s HUP prometheus"):
        install(rules, target, prometheus.url, 1)
    assert "Slow" in target.read_text(encoding="utf-8")


@pytest.mark.prometheus
def test_the_lab_tells_its_prometheus_of_changed_rules(rules, tmp_path):
    """Within a second or two, without a restart."""
    root = tmp_path / "project"
    for folder in ("prometheus", "alertmanager"):
        shutil.copytree(ROOT / folder, root / folder)
    lab = Lab(tmp_path, "--root", str(root), "--no-history", "--preset", "laptop")
    try:
        lab.wait_ready()
        installed = root / "prometheus/rules/practice.yml"
        install(rules, installed, lab.prometheus, 15)
        poll_until(lambda: lab.value(LOADED) == 2, "the mark is recorded", 20)
        clear(installed, lab.prometheus, 15)
    finally:
        assert lab.stop(signal.SIGTERM) == 0


def test_without_a_prometheus_nothing_is_written(rules, target):
    """And the error says how to start one."""
    with pytest.raises(LiveError, match=r"no Prometheus answers at http://127\.0\.0\.1:1: start the lab"):
        install(rules, target, "127.0.0.1:1")
    assert target.read_text(encoding="utf-8") == EMPTY


def test_another_folder_than_a_labs_is_refused(rules, tmp_path):
    """Nothing is written where no Prometheus would look."""
    with pytest.raises(LiveError, match="run this in the project's folder"):
        install(rules, tmp_path / "practice.yml", "127.0.0.1:1")
    assert os.listdir(tmp_path) == ["mine.yml"]


@pytest.mark.parametrize("ask", [lambda url: start_blind(url, None), state, reveal])
def test_without_a_lab_blind_drills_say_how_to_start_one(ask, capsys):
    """Exit status 1."""
    with pytest.raises(typer.Exit) as raised:
        ask("http://127.0.0.1:1")
    assert raised.value.exit_code == 1
    assert "no lab answers at http://127.0.0.1:1" in capsys.readouterr().err
