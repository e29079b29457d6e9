"""Random incidents: how often, how hard and for how long each fault strikes; drawn in order of time, and put on the board.

Every fault has one row in ``RATES``, which docs/incidents.md shows: a new fault needs one, with its source.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log1p
from typing import Any, Literal

import numpy as np

from stepsim.board import ActiveFault, Board, target_label
from stepsim.faults import FAULTS, TargetKind
from stepsim.job import Job

log = logging.getLogger("stepsim")

MINUTE, HOUR = 60.0, 3600.0
LLAMA_GPU_HOURS = 54 * 24 * 16_384
"""Llama 3's pre-training: 54 days on 16,384 H100, with 419 unexpected interruptions (arXiv 2407.21783, table 5)."""
JOB_HOURS = 24.0
"""How long a job of Greyhound (USENIX ATC 2025) or of ByteDance's what-if analysis (arXiv 2505.05713) ran. We know of no
published figure for those jobs: assumed."""
LARGE_RANKS = 512
"""From so many on, a job is one of Greyhound's large ones."""
MOST_AT_ONCE = 3
"""Faults on the board. An incident that would be one more is left out."""


def jobs_struck(struck: int, jobs: int) -> float:
    """Incidents per job-hour, where that share of the jobs had at least one in ``JOB_HOURS``: a Poisson process's."""
    return -log1p(-struck / jobs) / JOB_HOURS


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A fault's row. The severity lies between the catalogue's mild and severe, unless the row has its own range."""

    fault: str
    per_hour: float
    """Of one GPU, of one node, or of the whole job."""
    of: Literal["GPU", "node", "job"]
    mean_seconds: float
    """Of the duration, which is exponentially distributed."""
    source: str
    severities: tuple[float, float] | None = None
    large_mean_seconds: float | None = None
    """In a job of ``LARGE_RANKS`` or more, where that differs."""

    def range(self) -> tuple[float, float]:
        scale = FAULTS[self.fault].severity
        return self.severities or (scale.mild, scale.severe)

    def job_per_hour(self, job: Job) -> float:
        return self.per_hour * {"GPU": job.ranks, "node": job.nodes, "job": 1}[self.of]

    def job_mean_seconds(self, job: Job) -> float:
        return self.large_mean_seconds or self.mean_seconds if job.ranks >= LARGE_RANKS else self.mean_seconds


NO_RATE = "no published rate: assumed"

RATES = (
    Rate(fault="straggler", per_hour=jobs_struck(2, 392) / 4, of="GPU", mean_seconds=10 * MINUTE, severities=(1.1, 1.28),
         source="Greyhound: computation fail-slow in 6 of 392 four-GPU jobs, for 10 min on average, up to −21.6 %; one was "
         "thermal. That two were a slow GPU and three a busy CPU is assumed. The mildest is MegaScale's 10 %"),
    Rate(fault="thermal_throttle", per_hour=jobs_struck(1, 392) / 4, of="GPU", mean_seconds=10 * MINUTE,
         source="Greyhound: one of the 6 of 392 four-GPU jobs, for 10 min on average"),
    Rate(fault="power_cap", per_hour=0.005 / 4, of="node", mean_seconds=4 * HOUR,
         source="MegaScale: at any time 0.5 % of machines are about 10 % slower. That a power limit is why, and that it "
         "stays for 4 h, is assumed"),
    Rate(fault="memory_bound", per_hour=1 / 336, of="job", mean_seconds=HOUR, source=f"{NO_RATE} once in two weeks"),
    Rate(fault="small_batch", per_hour=1 / 336, of="job", mean_seconds=HOUR, source=f"{NO_RATE} once in two weeks"),
    Rate(fault="sequence_imbalance", per_hour=jobs_struck(21, 100), of="job", mean_seconds=HOUR,
         source="ByteDance's what-if analysis: 21 % of jobs. That the data is so for an hour at a time is assumed"),
    Rate(fault="jitter", per_hour=1 / 168, of="job", mean_seconds=30 * MINUTE, source=f"{NO_RATE} once a week"),
    Rate(fault="data_starvation", per_hour=1 / 168, of="job", mean_seconds=20 * MINUTE, source=f"{NO_RATE} once a week"),
    Rate(fault="storage_node_slow", per_hour=1 / 1000, of="node", mean_seconds=20 * MINUTE,
         source=f"{NO_RATE} once in 1,000 hours of a node"),
    Rate(fault="storage_outage", per_hour=1 / 336, of="job", mean_seconds=10 * MINUTE,
         source=f"{NO_RATE} once in two weeks"),
    Rate(fault="cpu_starvation", per_hour=jobs_struck(3, 392), of="node", mean_seconds=10 * MINUTE,
         source="Greyhound: three, it is assumed, of the 6 of 392 four-GPU jobs, each on one node, for 10 min on average"),
    Rate(fault="pcie_downgrade", per_hour=1 / 50_000, of="GPU", mean_seconds=HOUR,
         source=f"{NO_RATE} once in 50,000 hours of a GPU, about as often as Llama 3 was interrupted for any reason"),
    Rate(fault="network_degradation", per_hour=jobs_struck(43, 107) / 4, of="node", mean_seconds=24 * MINUTE,
         large_mean_seconds=72 * MINUTE,
         source="Greyhound: communication fail-slow in 43 of 107 four-node jobs, for 24 min on average; in jobs of 512 GPUs "
         "or more, for 72 min"),
    Rate(fault="nccl_fallback", per_hour=42 / LLAMA_GPU_HOURS, of="GPU", mean_seconds=30 * MINUTE,
         source="Llama 3: 35 interruptions by switches and cables, 7 by NICs. That the job goes on, by a slower way and for "
         "30 min, is assumed; so is the same rate for NVLink"),
    Rate(fault="checkpoint_stall", per_hour=1 / 168, of="job", mean_seconds=HOUR, source=f"{NO_RATE} once a week"),
    Rate(fault="gc_pause", per_hour=1 / 168, of="job", mean_seconds=HOUR, source=f"{NO_RATE} once a week"),
    Rate(fault="hang", per_hour=61 / LLAMA_GPU_HOURS, of="GPU", mean_seconds=10 * MINUTE,
         source="Llama 3: 54 interruptions by software and 7 by NCCL's watchdog. That all of them hang is assumed; 10 min is "
         "PyTorch's default timeout for NCCL"),
    Rate(fault="gpu_lost", per_hour=256 / LLAMA_GPU_HOURS, of="GPU", mean_seconds=10 * MINUTE,
         source="Llama 3: 148 interruptions by GPUs, 72 by HBM, 19 by SRAM, 17 by GPU system processors. MegaScale: it takes "
         "less than 10 min on average to find a failure and to test what failed"),
    Rate(fault="gradient_explosion", per_hour=20 / 1536, of="job", mean_seconds=10 * MINUTE,
         source="PaLM: about 20 spikes of the loss in 1,536 h. That it takes 10 min to restart from a checkpoint is assumed"),
    Rate(fault="loss_plateau", per_hour=1 / 336, of="job", mean_seconds=HOUR, source=f"{NO_RATE} once in two weeks"),
    Rate(fault="silent_corruption", per_hour=6 / LLAMA_GPU_HOURS, of="GPU", mean_seconds=HOUR,
         source="Llama 3: 6 interruptions by silent data corruption. That it takes an hour to find is assumed"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Pace:
    per_hour: float | None
    """Incidents: all rates are multiplied by the one factor that gives so many. None: the rates are as they are."""
    shortest_seconds: float
    longest_seconds: float

    def factor(self, job: Job) -> float:
        return self.per_hour / sum(row.job_per_hour(job) for row in possible(job)) if self.per_hour else 1.0


PACES = {
    # Greyhound: from tens of seconds to nearly ten hours.
    "realistic": Pace(per_hour=None, shortest_seconds=30.0, longest_seconds=10 * HOUR),
    # Long enough for each alert; at six an hour, longer ones would be one heap.
    "accelerated": Pace(per_hour=6.0, shortest_seconds=2 * MINUTE, longest_seconds=15 * MINUTE),
}


class UnknownPace(ValueError):
    """A word that is not in ``PACES``."""


def pace_named(name: str | None) -> Pace | None:
    """None where no incidents are wanted. An empty word is none, too: compose passes one on."""
    if name and name not in PACES:
        raise UnknownPace(f"unknown incidents {name!r}; there are {' and '.join(PACES)}")
    return PACES[name] if name else None


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A fault that will strike by itself."""

    begins_seconds: float
    """After the job's start."""
    fault: str
    target: dict[str, Any]
    severity: float
    duration_seconds: float

    def request(self) -> dict[str, Any]:
        """What the board is asked for."""
        return {
            "fault": self.fault,
            "target": self.target,
            "severity": self.severity,
            "duration": self.duration_seconds,
        }


def possible(job: Job) -> list[Rate]:
    """The rows of the faults that this job can have."""
    return [row for row in RATES if FAULTS[row.fault].need(job) is None]


def incident_rng(seed: int, attempt: int) -> np.random.Generator:
    """A stream of its own, and another one after each restart: else the same incidents would strike again."""
    return np.random.default_rng((seed, attempt, int.from_bytes(b"incidents")))


def draw(job: Job, pace: Pace, rng: np.random.Generator) -> Iterator[Incident]:
    """All incidents to come, without end, in order of time. Each row is a Poisson process with a generator of its own."""
    factor, own = pace.factor(job), dict(zip(RATES, rng.spawn(len(RATES)), strict=True))
    streams = (_strikes(row, HOUR / (factor * row.job_per_hour(job)), job, pace, own[row]) for row in possible(job))
    return heapq.merge(*streams, key=lambda incident: incident.begins_seconds)


def _strikes(row: Rate, mean_gap: float, job: Job, pace: Pace, rng: np.random.Generator) -> Iterator[Incident]:
    begins, kinds = 0.0, FAULTS[row.fault].targets
    while True:
        begins += rng.exponential(mean_gap)
        duration = rng.exponential(row.job_mean_seconds(job))
        yield Incident(
            begins_seconds=begins,
            fault=row.fault,
            target=drawn_target(kinds[int(rng.integers(len(kinds)))], job, rng.random()),
            severity=drawn_severity(*row.range(), rng.random()),
            duration_seconds=float(round(np.clip(duration, pace.shortest_seconds, pace.longest_seconds))),
        )


def drawn_target(kind: TargetKind, job: Job, share: float) -> dict[str, Any]:
    """``share``: from 0 up to, not including, 1."""
    targets: dict[TargetKind, Any] = {
        "rank": int(share * job.ranks),
        "node": job.node_name(int(share * job.nodes)),
        "run": True,
    }
    return {kind: targets[kind]}


def drawn_severity(mild: float, severe: float, share: float) -> float:
    """Log-uniform, or uniform where an end is 0; rounded, because it is a label of the truth."""
    drawn = mild * (severe / mild) ** share if mild * severe > 0 else mild + (severe - mild) * share
    return float(f"{drawn:.3g}")


class Incidents:
    """Starts what was drawn when its time has come. ``told`` hears of each one that was started."""

    def __init__(
        self, drawn: Iterator[Incident], *, begin: float, told: Callable[[ActiveFault], None] | None = None
    ) -> None:
        self._drawn, self._begin, self._told = drawn, begin, told
        self._next = next(drawn)

    def start_due(self, board: Board, until: float) -> None:
        """Start what begins up to that moment, each at its own time, however rarely this is called."""
        while (now := self._begin + self._next.begins_seconds) <= until:
            if _room(board, self._next, now, until):
                started = board.start(self._next.request(), now)
                if self._told:
                    self._told(started)
            self._next = next(self._drawn)

    def shift(self, seconds: float) -> None:
        """The job's time was moved: what is to come moves with it."""
        self._begin += seconds


def _room(board: Board, incident: Incident, now: float, until: float) -> bool:
    """Whether it may strike: nothing that is active is replaced, and not too much strikes at once.

    What starts later than that was left behind by a clock that was set back, and is in nobody's way.
    """
    active = [fault for fault in board.active() if fault.started <= until and not fault.over(now)]
    same = any((fault.fault, fault.target) == (incident.fault, incident.target) for fault in active)
    return not same and len(active) < MOST_AT_ONCE


def log_incident(fault: ActiveFault) -> None:
    minutes = (fault.duration_seconds or 0.0) / MINUTE
    log.info("an incident: %s on %s, severity %g, for %.1f min",
             fault.fault, target_label(fault.target), fault.severity, minutes)  # fmt: skip
