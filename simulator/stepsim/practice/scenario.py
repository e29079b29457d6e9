"""What happens in a drill under one seed: which fault strikes whom and when, and when the job is restarted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsim.faults import FAULTS
from stepsim.job import Job
from stepsim.practice.drill import Drill, Flaps, Incident

WARM_UP_SECONDS = 1800.0
"""Healthy, so that what compares with the past has one."""
BETWEEN_SECONDS = 600.0
"""At least, after the alerts of one incident must have ended and before the next begins."""
DOWN_SECONDS = 90.0
"""Of a restart: from the last step to the first."""


@dataclass(frozen=True, kw_only=True)
class Struck:
    """One incident as it happens. Times are seconds after the beginning."""

    fault: str
    target: dict[str, Any]
    severity: float
    ramp_seconds: float
    begins: float
    ends: float
    flaps: Flaps | None
    expect: str
    detect_within: float
    reset_within: float

    def requests(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """When the fault board is asked for what."""
        request = {"fault": self.fault, "target": self.target, "severity": self.severity, "ramp": self.ramp_seconds}
        if self.flaps is None:
            yield self.begins, {**request, "duration": self.ends - self.begins}
            return
        at = self.begins
        while at < self.ends:
            yield at, {**request, "duration": min(self.flaps.lasts, self.ends - at)}
            at += self.flaps.lasts + self.flaps.pause


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One seed of a drill."""

    drill: Drill
    job: Job
    seed: int
    seconds: float
    incidents: tuple[Struck, ...]
    restarts: tuple[float, ...]


def sealed_seeds(drill: Drill) -> list[int]:
    """The same for everyone, so that scores can be compared, and told to nobody. Whoever reads this can compute them."""
    digest = hashlib.sha256(f"sealed/{drill.id}".encode()).digest()
    return [
        int.from_bytes(hashlib.sha256(digest + bytes([number])).digest()[:4]) for number in range(drill.seeds.sealed)
    ]


def draw_scenario(drill: Drill, seed: int) -> Scenario:
    """Incidents in the drill's order, at random times in a healthy span of ``drill.seed_seconds``."""
    job, rng = drill.make_job(), np.random.default_rng((seed, int.from_bytes(b"drill")))
    groups = _together(drill.incidents)
    needed = [_span(group) + group[-1].reset_within + BETWEEN_SECONDS for group in groups]
    healthy = max(drill.seed_seconds - WARM_UP_SECONDS, BETWEEN_SECONDS * (len(groups) + 1))
    gaps = healthy * rng.dirichlet([2.0] * (len(groups) + 1))
    incidents: list[Struck] = []
    windows: list[tuple[float, float]] = []
    at = WARM_UP_SECONDS
    for gap, group, span in zip(gaps, groups, needed, strict=False):
        at += float(gap)
        windows.append((at, at + span))
        incidents.extend(_struck(group, _rounded(at), job, rng))
        at += span
    seconds = WARM_UP_SECONDS + healthy + sum(needed)
    restarts = _restarts(windows, seconds, rng) if "job_restart" in drill.distractors else ()
    return Scenario(
        drill=drill, job=job, seed=seed, seconds=_rounded(seconds), incidents=tuple(incidents), restarts=restarts
    )


def _together(incidents: list[Incident]) -> list[list[Incident]]:
    groups: list[list[Incident]] = []
    for incident in incidents:
        if incident.overlaps:
            groups[-1].append(incident)
        else:
            groups.append([incident])
    return groups


def _offsets(group: list[Incident]) -> list[float]:
    """When each begins, after the first."""
    offsets = [0.0]
    for before in group[:-1]:
        offsets.append(offsets[-1] + before.lasts / 2)
    return offsets


def _span(group: list[Incident]) -> float:
    return max(offset + incident.lasts for offset, incident in zip(_offsets(group), group, strict=True))


def _struck(group: list[Incident], at: float, job: Job, rng: np.random.Generator) -> Iterator[Struck]:
    taken: list[int] = []
    for offset, incident in zip(_offsets(group), group, strict=True):
        fault = FAULTS[incident.fault]
        rank = int(rng.choice([rank for rank in range(job.ranks) if rank not in taken]))
        taken.append(rank)
        targets: dict[str, dict[str, Any]] = {
            "rank": {"rank": rank},
            "node": {"node": job.node_name(rank // job.gpus_per_node)},
            "run": {"run": True},
        }
        yield Struck(
            fault=incident.fault,
            target=targets[incident.target or fault.targets[0]],
            severity=fault.severity.plain if incident.severity is None else incident.severity,
            ramp_seconds=incident.ramp,
            begins=at + offset,
            ends=at + offset + incident.lasts,
            flaps=incident.flaps,
            expect=incident.expect,
            detect_within=incident.detect_within,
            reset_within=incident.reset_within,
        )


def _restarts(windows: list[tuple[float, float]], seconds: float, rng: np.random.Generator) -> tuple[float, ...]:
    """In the middle part of every healthy gap, so that no incident is touched."""
    ends = [WARM_UP_SECONDS / 2, *(end for _, end in windows)]
    begins = [*(begin for begin, _ in windows), seconds]
    gaps = [(end, begin) for end, begin in zip(ends, begins, strict=True) if begin - end > 2 * BETWEEN_SECONDS]
    return tuple(_rounded(end + (begin - end) * rng.uniform(0.3, 0.6)) for end, begin in gaps)


def _rounded(seconds: float) -> float:
    return float(round(seconds))
