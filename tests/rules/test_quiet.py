"""A healthy job fires nothing: simulated hours, evaluated by promtool every 15 s, in overlapping chunks.

``--quiet-hours`` says how many; the soak asks for 24.
"""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.job import load_job
from stepsim.pages import Pages

ROOT = Path(__file__).parents[2]
EPOCH = 1_700_000_000.0
STEP = 15
CHUNK, OVERLAP = 480, 60
"""Scrapes: two hours, and fifteen minutes."""

pytestmark = pytest.mark.prometheus


def rules(name):
    return yaml.safe_load((ROOT / "prometheus/rules" / name).read_text(encoding="utf-8"))


def names_read():
    """Raw series that rules read."""
    text = " ".join(
        rule["expr"]
        for file in ("recording.yml", "alerts.yml")
        for group in rules(file)["groups"]
        for rule in group["rules"]
    )
    return set(re.findall(r"\b(?:training|DCGM)_\w+", re.sub(r"\w+:[\w:]+", "", text)))


def scraped(engine, hours):
    """For every series that rules read, its value at each scrape."""
    names, pages = names_read(), Pages(engine, lambda: engine.now)
    wanted = [name for name in pages.names() if name[0] in ("training", "dcgm", "referee")]
    series = {}
    for number in range(int(hours * 3600 / STEP)):
        engine.advance(EPOCH + (number + 1) * STEP)
        for line in (line for name in wanted for line in pages.text(*name).splitlines()):
            key, _, value = line.rpartition(" ")
            if key.partition("{")[0] in names:
                series.setdefault(key, ["_"] * number).append(value)
    return series


def unit_test(series, first, last):
    """A promtool test file that expects no firing alert at any evaluation."""
    group = {
        "interval": f"{STEP}s",
        "input_series": [{"series": key, "values": " ".join(values[first:last])} for key, values in series.items()],
        "promql_expr_test": [
            {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{STEP * number}s", "exp_samples": []}
            for number in range(last - first)
        ],
    }
    files = [str(ROOT / "prometheus/rules" / name) for name in ("recording.yml", "alerts.yml")]
    return {"rule_files": files, "evaluation_interval": f"{STEP}s", "tests": [group]}


def verdict(series, first, last, folder):
    file = folder / f"chunk-{first}.yml"
    file.write_text(yaml.dump(unit_test(series, first, last), Dumper=yaml.CSafeDumper), encoding="utf-8")
    return subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("preset", ["cluster", "laptop", "node"])
def test_a_healthy_day_fires_nothing(request, tmp_path, preset):
    """Checkpoints, evaluations, jitter and the odd slow read included."""
    job = load_job(preset)
    engine = Engine(job, FaultBoard(job), seed=11, now=EPOCH)
    series = scraped(engine, request.config.getoption("quiet_hours"))
    assert len(series) > 25 * job.ranks
    length = max(len(values) for values in series.values())
    for first in range(0, length, CHUNK - OVERLAP):
        done = verdict(series, first, min(first + CHUNK, length), tmp_path)
        assert done.returncode == 0, f"from scrape {first}: {(done.stdout + done.stderr)[-2000:]}"


def test_the_same_check_sees_a_fault(tmp_path):
    """So that silence means something: with a straggler it does fire."""
    job = load_job("cluster")
    engine = Engine(job, FaultBoard(job), seed=11, now=EPOCH)
    engine.board.start({"fault": "straggler"}, now=EPOCH)
    series = scraped(engine, 0.1)
    done = verdict(series, 0, 24, tmp_path)
    assert done.returncode != 0
    assert "TrainingRankStraggling" in done.stdout + done.stderr
