"""Runs a real training loop under torchrun, and reads what its ranks publish."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

import pytest

from monitor_page import samples, total
from running_lab import free_ports
from stepscope.alignment import Alignment, parse_steps
from stepscope.culprit import Window, find_culprit
from stepscope.phases import PHASES

WORKER = Path(__file__).with_name("worker.py")


class Run:
    """A finished loop whose ranks still answer."""

    def __init__(self, folder, ranks, port, worker, **plan):
        self.ranks, self.port, self.plan = ranks, port, plan
        self.stop_file = folder / "stop"
        self.log = folder / "log.txt"
        env = {
            **os.environ, "WORKER": json.dumps(plan), "WORKER_STOP": str(self.stop_file), "OMP_NUM_THREADS": "1",
            "STEPSCOPE_METRICS_PORT": str(port), "STEPSCOPE_RUN": "test", "STEPSCOPE_NODE": "host", **plan.pop("env", {}),
        }  # fmt: skip
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
            str(worker),
        ]  # fmt: skip
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=folder)

    def stop(self):
        self.stop_file.touch()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return self.process.returncode

    def get(self, rank, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port + rank}{path}", timeout=5) as answer:
            return answer.read().decode()

    def series(self, rank):
        """All samples of a rank's page: (name, labels) → value."""
        return samples(self.get(rank, "/metrics"))

    def value(self, name, page=0, **labels):
        """The sum of the samples on one rank's page that carry these labels; None without any."""
        return total(self.series(page), name, labels)

    def phases(self, rank):
        found = self.series(rank)
        return {phase: total(found, "training_phase_seconds_total", {"phase": phase}) for phase in PHASES}

    def steps(self, rank):
        return parse_steps(json.loads(self.get(rank, "/steps")))[0]

    def stamps(self):
        """The loop's own stamps by rank: entry to each step, and the end."""
        return self._said("stamps")

    def _said(self, what):
        lines = [line for line in self.log.read_text(encoding="utf-8").splitlines() if line.startswith('{"rank"')]
        return {one["rank"]: one[what] for one in map(json.loads, lines)}

    def wait(self, steps, seconds=150):
        """Until all ranks have published so many steps, or, with None, have said that they are done."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if self._done(steps):
                    return self
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass
            time.sleep(0.2)
        pytest.fail(f"the loop did not finish:\n{self.log.read_text(encoding='utf-8')[-3000:]}")

    def _done(self, steps):
        if steps is None:
            return len(self.stamps()) == self.ranks
        return all(self.value("training_steps_total", rank) == steps for rank in range(self.ranks))

    def wait_for_referee(self, laps, seconds=15):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.value("training_referee_steps_total", outcome="complete") == laps:
                return
            time.sleep(0.2)
        pytest.fail(
            f"the referee booked {self.value('training_referee_steps_total', outcome='complete')} of {laps} laps"
        )

    def verdicts(self, window, stride=None):
        """Who is accused in each window of so many laps, from the recorded steps of all ranks."""
        seen = self._seen()
        return [
            find_culprit(_between(seen[start], seen[start + window]), [0] * self.ranks)
            for start in range(0, len(seen) - window, stride or window)
        ]

    def accused_wrongly(self, window, stride):
        """Who is accused, in windows of so many laps or in the whole run, and had no more to run for than the others.

        A rank whose core something else takes is late indeed, and may be accused: then it was runnable for longer, by most
        of what it was late.
        """
        seen, runnable = self._seen(), self._said("runnable")
        starts = range(0, len(seen) - window, stride)
        spans = [(seen[start], seen[start + window]) for start in starts] + [(seen[0], seen[-1])]
        wrong = []
        for first, last in spans:
            judged = _between(first, last)
            if culprit := find_culprit(judged, [0] * self.ranks):
                late = sum(seconds[culprit.index] for seconds in judged.late_seconds)
                steps = range(first.step + 1, last.step + 1)
                if _longer_runnable(runnable, culprit.index, steps) < 0.7 * late:
                    wrong.append((culprit, late, steps))
        return wrong

    def _seen(self, skip=10):
        """The referee's counters after each lap but the first ones."""
        alignment, seen = Alignment(), []
        rows = [self.steps(rank) for rank in range(self.ranks)]
        for number in range(len(rows[0].rows)):
            for one in rows:
                alignment.add(_only(one, number), 0.0)
            referee = alignment.referee
            seen.append(
                Seen(int(rows[0].rows[number][0]), referee.outcomes["complete"], sum(referee.path_seconds),
                     [list(r) for r in referee.late_seconds], list(referee.late_steps))
            )  # fmt: skip
        return seen[skip:]


class Seen(NamedTuple):
    """The referee's counters after a step."""

    step: int
    laps: int
    wall_seconds: float
    late_seconds: list[list[float]]
    late_steps: list[int]


def _longer_runnable(runnable, rank, steps):
    """By how many seconds this rank was runnable for longer than the others' median, summed over the steps in which it was."""
    mine, others = runnable[rank], [stamps for other, stamps in runnable.items() if other != rank]
    return sum(
        max(0.0, mine[step + 1] - mine[step] - median_low(other[step + 1] - other[step] for other in others))
        for step in steps
        if step + 1 < len(mine)
    )


def _only(steps, number):
    return type(steps)(**{**{name: getattr(steps, name) for name in steps.__slots__}, "rows": [steps.rows[number]]})


def _between(first, last):
    late = [
        [b - a for a, b in zip(*rows, strict=True)] for rows in zip(first.late_seconds, last.late_seconds, strict=True)
    ]
    return Window(
        laps=last.laps - first.laps,
        wall_seconds=last.wall_seconds - first.wall_seconds,
        late_seconds=late,
        late_steps=[b - a for a, b in zip(first.late_steps, last.late_steps, strict=True)],
    )


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Start a loop, and wait for its last step; it is ended when the module's tests are over."""
    started = []

    def start(ranks=2, *, finish=True, seconds=150, worker=WORKER, port=None, **plan):
        plan.setdefault("steps", 60)
        run = Run(tmp_path_factory.mktemp("run"), ranks, port or free_ports(ranks)[0], worker, **plan)
        started.append(run)
        return run.wait(plan["steps"], seconds) if finish else run

    yield start
    for run in started:
        run.stop()
