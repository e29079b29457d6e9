"""Evaluates the rules with Prometheus's own engine on series that the simulator made, faster than real time."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.pages import Pages

ROOT = Path(__file__).parents[2]
EPOCH = 1_700_000_000.0
RULE_FILES = [ROOT / "prometheus/rules" / name for name in ("recording.yml", "alerts.yml")]


def names_read():
    """Raw series that rules read."""
    rules = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in RULE_FILES]
    text = " ".join(rule["expr"] for file in rules for group in file["groups"] for rule in group["rules"])
    return set(re.findall(r"\b(?:training|DCGM)_\w+", re.sub(r"\w+:[\w:]+", "", text)))


class Replay:
    """A simulated job, scraped every ``step`` seconds for what the rules read."""

    def __init__(self, job, *, step, seed=11):
        self.step = step
        self.engine = Engine(job, FaultBoard(job), seed=seed, now=EPOCH)
        self.series = {}
        """For every series its value at each scrape."""
        self.scrapes = 0
        pages, names = Pages(self.engine, lambda: self.engine.now), names_read()
        self._texts = [name for name in pages.names() if name[0] in ("training", "dcgm", "referee")]
        self._pages, self._names = pages, names

    def run(self, seconds):
        for _ in range(int(seconds / self.step)):
            self.engine.advance(EPOCH + (self.scrapes + 1) * self.step)
            for line in (line for name in self._texts for line in self._pages.text(*name).splitlines()):
                key, _, value = line.rpartition(" ")
                if key.partition("{")[0] in self._names:
                    self.series.setdefault(key, ["_"] * self.scrapes).append(value)
            self.scrapes += 1
        return self

    def firings(self, folder, first=0, last=None):
        """Alerts that fire between two scrapes: name and labels → seconds after the first of them.

        promtool is told to expect no firing alert at any evaluation, and says what it got instead.
        """
        last = self.scrapes if last is None else last
        group = {
            "interval": f"{self.step}s",
            "input_series": [{"series": key, "values": " ".join(v[first:last])} for key, v in self.series.items()],
            "promql_expr_test": [
                {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{self.step * number}s", "exp_samples": []}
                for number in range(last - first)
            ],
        }
        test = {"rule_files": list(map(str, RULE_FILES)), "evaluation_interval": f"{self.step}s", "tests": [group]}
        file = folder / f"from-{first}.yml"
        file.write_text(yaml.dump(test, Dumper=yaml.CSafeDumper), encoding="utf-8")
        done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        found = {}
        for case in said.split("expr: ")[1:]:
            seconds = _seconds(re.search(r"time: ([\dhms]+)", case).group(1))
            for labels in re.findall(r"\{([^{}]*alertname=[^{}]*)\}", case):
                found.setdefault(frozenset(re.findall(r'(\w+)="([^"]*)"', labels)), seconds)
        assert (done.returncode == 0) == (not found), said[-2000:]
        return {(dict(labels)["alertname"], labels): seconds for labels, seconds in found.items()}


def _seconds(text):
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


@pytest.fixture(scope="session")
def replay():
    """Starts a ``Replay``."""
    return Replay
