"""Simulated data, kept between grades: one file per drill, seed and version of the simulator."""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

import stepscope
from stepsim.practice.recording import Recording, load, record
from stepsim.practice.scenario import Scenario

SIMULATES = """
stepscope.critical_path stepscope.exposition stepscope.metrics stepscope.mfu stepscope.phases stepscope.record
stepscope.referee stepscope.totals
stepsim.accelerators stepsim.board stepsim.collectives stepsim.draws stepsim.engine stepsim.faults stepsim.fleet
stepsim.job stepsim.learning stepsim.loader stepsim.model stepsim.pages stepsim.params stepsim.power stepsim.probes
stepsim.telemetry stepsim.timeline
stepsim.practice.recording
"""
"""The modules that data depend on."""


@cache
def lab_rules() -> dict[str, Any]:
    """The content of the lab's recording.yml, from the package or from the project's folder."""
    installed = Path(str(files("stepsim"))) / "rules" / "recording.yml"
    file = installed if installed.is_file() else Path(__file__).parents[3] / "prometheus" / "rules" / "recording.yml"
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


def recording_of(scenario: Scenario, folder: Path) -> Recording:
    """From the folder, or simulated and put there, in the place of what other versions have left."""
    file = file_of(scenario, folder)
    if file.is_file():
        return load(file)
    made = record(scenario)
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.glob(f"{_prefix(scenario)}*"):
        if not other.name.startswith(file.stem):
            shutil.rmtree(other) if other.is_dir() else other.unlink(missing_ok=True)
    made.save(file)
    return made


def file_of(scenario: Scenario, folder: Path) -> Path:
    """Where its recording is kept: a change of what happens has another place, a change of what is asked has not."""
    happens = [list(incident.requests()) for incident in scenario.incidents]
    told = [scenario.job.model_dump(mode="json"), scenario.seed, scenario.drill.scrape, scenario.seconds, happens,
            scenario.restarts, _version()]  # fmt: skip
    return folder / f"{_prefix(scenario)}{_digest(told)}.npz"


def _prefix(scenario: Scenario) -> str:
    return f"{scenario.drill.id}-{_digest([scenario.drill.id, scenario.seed])[:6]}-"


def _digest(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


@cache
def _version() -> str:
    """Of what simulates: the same sources give the same data."""
    packages = {"stepscope": Path(stepscope.__path__[0]), "stepsim": Path(__file__).parents[1]}
    digest = hashlib.sha256()
    for module in SIMULATES.split():
        package, _, name = module.partition(".")
        digest.update((packages[package] / f"{name.replace('.', '/')}.py").read_bytes())
    return digest.hexdigest()
