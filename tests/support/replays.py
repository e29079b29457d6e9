"""Evaluates the rules with Prometheus's own engine on series that the simulator made, faster than real time."""

import re
import subprocess

import yaml

from running_lab import ROOT
from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.pages import Pages
from stepsim.practice import needed

MATRIX = ROOT / "build" / "fault-matrix.txt"
"""Where the outcome of tests/rules/test_matrix.py is kept."""


def _rules(name):
    text = (ROOT / "prometheus/rules" / name).read_text(encoding="utf-8")
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def recorded_for(exprs):
    """The recording rules that expressions need, in their order; the dashboards' own cost time and fire nothing."""
    return needed.recorded_for(exprs, {"groups": [{"rules": _rules("recording.yml")}]})


ALERTS = [rule["expr"] for rule in _rules("alerts.yml")]
RECORDED = recorded_for(ALERTS)


def names_read(exprs):
    """Raw series that expressions read."""
    text = re.sub(r"\w+:[\w:]+", "", " ".join(exprs))
    return set(re.findall(r"\b(?:training|DCGM|node)_\w+", text))


class Replay:
    """A simulated job, scraped every ``step`` seconds for what the rules read. Its time is promtool's, which begins at 0."""

    def __init__(self, job, *, step, seed=11, everything=False):
        """``everything``: not only what alerts need."""
        self.step = step
        self.engine = Engine(job, FaultBoard(job), seed=seed, now=-float(step))
        self.series = {}
        """For every series its value at each scrape: ``stale`` where it has just ended, ``_`` where there is none."""
        self.scrapes = self.forgotten = 0
        self._pages = Pages(self.engine, lambda: self.engine.now, labelled_targets=True)
        self._names = names_read(self._exprs(everything))
        self._texts = [name for name in self._pages.names() if name[0] in ("training", "dcgm", "referee", "node")]

    def _exprs(self, everything):
        return ALERTS + [rule["expr"] for rule in (_rules("recording.yml") if everything else RECORDED)]

    def run(self, seconds):
        for _ in range(int(seconds / self.step)):
            self.engine.advance((self.forgotten + self.scrapes) * self.step)
            self._scraped(line for name in self._texts for line in self._pages.text(*name).splitlines())
        return self

    def end_the_job(self, seconds):
        """Its processes are gone; the exporters of GPUs and hosts are still there, and have nothing to do."""
        for _ in range(int(seconds / self.step)):
            self._scraped(())
        return self

    def forget(self, scrapes):
        """Drop the oldest ones: a week would not fit into memory."""
        self.series = {key: values[scrapes:] for key, values in self.series.items()}
        self.scrapes -= scrapes
        self.forgotten += scrapes

    def _scraped(self, lines):
        for line in lines:
            key, _, value = line.rpartition(" ")
            if key.partition("{")[0] in self._names:
                self.series.setdefault(key, ["_"] * self.scrapes).append(value)
        self.scrapes += 1
        for values in self.series.values():
            if len(values) < self.scrapes:
                values.append("_" if values[-1] in ("_", "stale") else "stale")

    def firings(self, folder, first=0, last=None):
        """Alerts that fire between two scrapes: name and labels → when, in seconds after the first of them.

        promtool is told to expect no firing alert at any evaluation, and says what it got instead.
        """
        last = self.scrapes if last is None else last
        group = {
            "interval": f"{self.step}s",
            "input_series": [
                {"series": key, "values": " ".join(self._since(key, values[first:last], first))}
                for key, values in self.series.items()
            ],
            "promql_expr_test": [
                {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{self.step * number}s", "exp_samples": []}
                for number in range(last - first)
            ],
        }
        recording = folder / "recording.yml"
        recording.write_text(yaml.safe_dump({"groups": [{"name": "needed", "rules": RECORDED}]}), encoding="utf-8")
        files = [str(recording), str(ROOT / "prometheus/rules/alerts.yml")]
        test = {"rule_files": files, "evaluation_interval": f"{self.step}s", "tests": [group]}
        file = folder / f"from-{first}.yml"
        file.write_text(yaml.dump(test, Dumper=yaml.CSafeDumper), encoding="utf-8")
        done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        found = {}
        for case in said.split("expr: ")[1:]:
            seconds = _seconds(re.search(r"time: ([\dhms]+)", case).group(1))
            for labels in re.findall(r"\{([^{}]*alertname=[^{}]*)\}", case):
                found.setdefault(frozenset(re.findall(r'(\w+)="([^"]*)"', labels)), []).append(seconds)
        assert (done.returncode == 0) == (not found), said[-2000:]
        return {(dict(labels)["alertname"], labels): sorted(seconds) for labels, seconds in found.items()}

    def _since(self, key, values, first):
        """Times are promtool's, which begins anew at each part."""
        began = (self.forgotten + first) * self.step
        if not began or "_timestamp_seconds" not in key:
            return values
        return [value if value in ("_", "stale") else repr(float(value) - began) for value in values]


def _seconds(text):
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", text))
