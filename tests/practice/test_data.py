"""Data that are kept, and for how long they hold."""

import subprocess
import sys
from pathlib import Path

import pytest

from practice_drills import drill_of
from stepsim.practice import data
from stepsim.practice.scenario import draw_scenario

HARMLESS = {
    "stepsim.practice", "stepsim.practice.drill", "stepsim.practice.scenario",  # what they make is told, not they themselves
    "stepsim.diagnoser", "stepsim.durations", "stepsim.incidents", "stepsim.truth", "stepscope.version",
    "stepscope.alignment", "stepscope.collectives", "stepscope.collectors", "stepscope.discovery", "stepscope.flops",
    "stepscope.identity",
    "stepscope.memory", "stepscope.monitor", "stepscope.peers", "stepscope.publisher", "stepscope.rendezvous", "stepscope.ring",
    "stepscope.server", "stepscope.timeline",
}  # fmt: skip
"""Imported on the way, without a part in any number."""


def test_every_module_that_simulates_is_known():
    """What is imported for a recording is among those whose change makes data anew, or harmless."""
    script = "import sys, stepsim.practice.recording; print(*(m for m in sys.modules if m.startswith(('stepsim.', 'stepscope.'))))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = {module for module in done.stdout.split() if not module.startswith("stepscope.diagnosis")}
    assert modules == set(data.SIMULATES.split()) | HARMLESS


@pytest.fixture
def simulations(monkeypatch, played):
    """How often it is simulated; quickly."""
    seen = []
    monkeypatch.setattr(data, "record", lambda scenario: seen.append(scenario) or played[1])
    return seen


def test_data_are_simulated_once(tmp_path, simulations):
    """The second time they are read."""
    scenario = draw_scenario(drill_of(), 1)
    first, second = (data.recording_of(scenario, tmp_path) for _ in range(2))
    assert len(simulations) == 1
    assert first.keys == second.keys


TICKET = [{"fault": "straggler", "lasts": "10m", "expect": "ticket"}]


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ({"title": "Other"}, 1),
        ({"eval": "30s"}, 1),
        ({"incidents": TICKET}, 1),
        ({"quiet_hours": 2}, 2),
        ({"ranks": 4}, 2),
    ],
)
def test_only_what_data_depend_on_makes_them_anew(tmp_path, simulations, changes, again):
    """Words and the interval of evaluation do not."""
    for drill in (drill_of(), drill_of(**changes)):
        data.recording_of(draw_scenario(drill, 1), tmp_path)
    assert len(simulations) == again


def test_data_of_another_version_make_room(tmp_path, simulations, monkeypatch):
    """With what a preview has kept beside them; other seeds and drills stay."""
    old = data.file_of(draw_scenario(drill_of(), 1), tmp_path)
    for seed, drill in ((1, drill_of()), (2, drill_of()), (1, drill_of(id="small-too"))):
        data.recording_of(draw_scenario(drill, seed), tmp_path)
    Path(old.with_suffix(".tsdb")).mkdir()
    monkeypatch.setattr(data, "_version", lambda: "another")
    data.recording_of(draw_scenario(drill_of(), 1), tmp_path)
    assert not old.exists()
    assert not old.with_suffix(".tsdb").exists()
    assert len(list(tmp_path.iterdir())) == 3
