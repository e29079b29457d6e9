"""The lab over a real job: its ranks train in processes of their own; here are the API, the referee and the faults.

The job's ranks announce themselves by discovery files, serve their own pages, and ask ``/faults`` what they should
suffer from: see examples/train_gpt.py. To add a fault: add it to ``REAL_FAULTS``, and do it there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from stepscope.alignment import Alignment
from stepscope.discovery import TRAINING_JOB, sweep
from stepscope.exposition import Page
from stepscope.metrics import Metric
from stepscope.peers import Puller, fetch, file_sd
from stepsim.board import Board
from stepsim.catalogue import catalogue
from stepsim.diagnoser import DIAGNOSIS, Diagnoser
from stepsim.faults import FAULTS, Fault, Severity
from stepsim.pages import target
from stepsim.recent import Lap, Recent, Sample
from stepsim.truth import TRUTH, Truth

log = logging.getLogger("stepsim")

REAL_FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            name="straggler", targets=("rank",),
            description="One rank computes more slowly, forward and backward. On a CPU it sleeps instead, for work would take the "
            "other ranks' cores. A single rank has nobody to hold up.",
            severity=Severity(meaning="factor on the rank's compute time; 1.43 is a GPU at 70 %",
                              neutral=1.0, low=1.0, high=20.0, mild=1.2, plain=1.43, severe=2.5),
        ),
        Fault(
            name="jitter", targets=("run",),
            description="Every rank's forward and backward take longer by a random time, drawn anew for each step. On a CPU a rank "
            "sleeps so long.",
            severity=Severity(meaning="mean of the extra time, which is also its standard deviation, relative to a rank's compute "
                              "time", neutral=0.0, low=0.0, high=5.0, mild=0.1, plain=0.3, severe=1.0),
        ),
        Fault(
            name="data_starvation", targets=("run",),
            description="One sample in 200 stalls in its loader worker, for a heavy-tailed time: the late rank differs from "
            "step to step.",
            severity=FAULTS["data_starvation"].severity,
        ),
        Fault(
            name="gradient_explosion", targets=("run",),
            description="The learning rate is multiplied and clipping is off. Stopping the fault reloads the last healthy "
            "checkpoint.",
            severity=Severity(meaning="factor on the learning rate", neutral=1.0, low=1.0, high=1e6, mild=100.0, plain=1000.0,
                              severe=10000.0),
        ),
        Fault(
            name="loss_plateau", targets=("run",),
            description="Updates no longer reach the weights: after each of them the old weights are put back. The loss stops "
            "falling, at full speed.",
            severity=FAULTS["loss_plateau"].severity,
        ),
        Fault(
            name="checkpoint_stall", targets=("run",),
            description="Rank 0 writes its checkpoints, one in 100 steps, to a slow disk: all others wait for it in the next "
            "all-reduce.",
            severity=Severity(meaning="further seconds per checkpoint", neutral=0.0, low=0.0, high=60.0, mild=1.0, plain=3.0,
                              severe=10.0),
        ),
        Fault(
            name="gc_pause", targets=("run",),
            description="The hosts pause between steps now and then, each rank at other steps.",
            severity=FAULTS["gc_pause"].severity,
        ),
        Fault(
            name="hang", targets=("rank",),
            description="One rank stops before its next step, and all others wait in the all-reduce. Stopping the fault releases "
            "it; after 30 minutes gloo gives up, and the job starts anew.",
            severity=FAULTS["hang"].severity,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class World:
    """The job as faults are held against it. Its node is wherever its ranks are."""

    ranks: int
    nodes: int = 1

    def node_name(self, node: int) -> str:
        return "localhost"


class RealJob:
    """Watches the ranks that announce themselves in ``folder``."""

    def __init__(self, folder: Path, ranks: int, *, clock: Callable[[], float] = time.time) -> None:
        self._world, self._folder, self._clock = World(ranks=ranks), folder, clock
        self.board = Board(self._world, REAL_FAULTS)
        self.practice = None
        """The ranks ask which faults they suffer from: nothing could be kept from anybody."""
        self.puller = Puller(file_sd(folder))
        self.failed = threading.Event()
        self._source = PageSource(self.puller, self.first_rank, clock)
        self.recent = Recent(self._source)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepsim-watch", daemon=True)

    def describe(self) -> dict[str, Any]:
        info = self._source.info
        return {
            "run": self.run(),
            "ranks": self._world.ranks,
            "nodes": max(1, len(set(self._source.nodes()))),
            "accelerator": info.get("device_name", "no rank has announced itself yet"),
            "model": info.get("model", "–"),
            "utilization_of": "rank 0",
        }

    def run(self) -> str | None:
        """None before a rank has announced itself."""
        return self._source.info.get("run")

    def catalogue(self) -> dict[str, Any]:
        return catalogue(self._world, REAL_FAULTS)

    def addresses(self) -> list[str]:
        return list(dict.fromkeys(file_sd(self._folder)()))

    def first_rank(self) -> str | None:
        """Where rank 0 serves, which publishes the run's own figures: the lowest port is that of local rank 0."""
        return min(self.addresses(), key=lambda address: int(address.rpartition(":")[2]), default=None)

    def start(self) -> None:
        self.puller.start()
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self.puller.close()

    def _run(self) -> None:
        while not self._closing.wait(0.5):
            try:
                self.board.expire(self._clock())
                sweep(self._folder)
                self.recent.sample()
            except Exception:  # a rank that dies in the middle of something is what the lab is for
                log.exception("this look at the job failed; the next one follows")


class PageSource:
    """A real job's totals: the referee's, and what rank 0 publishes of the run."""

    ideal_step_seconds = None

    def __init__(self, puller: Puller, first_rank: Callable[[], str | None], clock: Callable[[], float]) -> None:
        self._puller, self._first_rank = puller, first_rank
        self.now = clock
        self.info: dict[str, str] = {}
        """Labels of the run and of rank 0, as published."""

    def nodes(self) -> tuple[str, ...]:
        nodes: tuple[str, ...] = self._puller.view(_nodes)
        return nodes

    def lap(self) -> Lap | None:
        taken: Lap | None = self._puller.view(_lap)
        return taken

    def sample(self) -> Sample | None:
        published = dict(self._published())
        taken: dict[str, Any] | None = self._puller.view(_totals)
        if taken is None:
            return None
        used = published.get("DCGM_FI_DEV_GPU_UTIL")
        return Sample(
            time=self.now(),
            **taken,
            utilization=None if used is None else used / 100,
            mfu=published.get("training_mfu_ratio"),
            loss=published.get("training_loss"),
            gradient_norm=published.get("training_gradient_norm"),
            nonfinite=int(published.get("training_nonfinite_steps_total", 0)),
        )

    def _published(self) -> Iterator[tuple[str, float]]:
        """Rank 0's samples by name. A rank that does not answer publishes nothing."""
        address = self._first_rank()
        try:
            text = fetch(address, "/metrics").decode() if address else ""
            families = list(text_string_to_metric_families(text))
        except (OSError, ValueError):
            return
        for family in families:
            for sample in family.samples:
                if sample.name in ("training_rank_info", "training_run_info"):
                    self.info |= sample.labels
                yield sample.name, sample.value


def _nodes(alignment: Alignment) -> tuple[str, ...]:
    return tuple(alignment.nodes.get(rank, "?") for rank in range(alignment.world_size))


def _lap(alignment: Alignment) -> Lap | None:
    """None while the ranks' nodes are not those of the lap: they come and go."""
    lap, nodes = alignment.referee.lap if alignment.referee else None, _nodes(alignment)
    if lap is None or len(lap[1][0]) != len(nodes):
        return None
    return Lap(step=lap[0], seconds=lap[1], nodes=nodes)


def _totals(alignment: Alignment) -> dict[str, Any] | None:
    referee = alignment.referee
    if referee is None:
        return None
    return {
        "laps": referee.outcomes["complete"],
        "path": np.array(referee.path_seconds),
        "late": np.array(referee.late_seconds),
        "late_steps": np.array(referee.late_steps, dtype=float),
    }


class RealPages:
    """What is served here of a real job: the referee's page, the truth's and the diagnosis's. The ranks' pages are their own
    targets."""

    def __init__(self, job: RealJob, *, diagnoser: Diagnoser | None = None) -> None:
        self._job = job
        truth, true = Truth(job.board), Page(TRUTH, {"run": [{}]})
        self._texts: dict[tuple[str, str], Callable[[], str]] = {
            ("referee", ""): job.puller.text, ("truth", ""): lambda: true.text(truth)
        }  # fmt: skip
        if diagnoser:
            diagnosed, diagnosis = diagnoser.report, Page(DIAGNOSIS, {"run": [{}]})
            self._texts["diagnosis", ""] = lambda: diagnosis.text(diagnosed())

    def names(self) -> list[tuple[str, str]]:
        return list(self._texts)

    def text(self, source: str, node: str = "") -> str:
        """Raises ``KeyError`` for a page that does not exist."""
        return self._texts[source, node]()

    def add(self, source: str, table: tuple[Metric, ...], read: Any) -> None:
        """A page of the lab's own, whose values are read from ``read``."""
        page = Page(table, {"run": [{}]})
        self._texts[source, ""] = lambda: page.text(read)

    def targets(self, host: str) -> list[dict[str, Any]]:
        ranks = [
            {"targets": [address], "labels": {"job": TRAINING_JOB, "instance": address, "__metrics_path__": "/metrics"}}
            for address in self._job.addresses()
        ]
        return ranks + [target(host, *name) for name in self.names()]
