"""What will strike in a blind drill: drawn from a seed that nobody knows, and whose hash is told first."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, repeat
from math import inf
from typing import Any

import numpy as np

from stepsim.faults import FAULTS, Fault
from stepsim.incidents import Incident, drawn_severity, drawn_target
from stepsim.job import Job
from stepsim.practice.drill import Incident as Wanted
from stepsim.practice.scenario import Struck

WARM_UP_SECONDS = 120.0
"""At least, before the first incident: what went before leaves the rates of a minute, and its alerts end."""
SHORTEST_SECONDS, LONGEST_SECONDS = 120.0, 300.0
"""Of an incident."""
GAP_SECONDS = 90.0
"""At least, after each incident, the last one too: its alerts must end."""
SECRET_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A seed, and a salt without which nobody could guess it from the hash."""

    seed: str
    salt: str

    @classmethod
    def drawn(cls) -> Secret:
        return cls(seed=secrets.token_hex(SECRET_BYTES), salt=secrets.token_hex(SECRET_BYTES))

    @property
    def commitment(self) -> str:
        return hashlib.sha256((self.salt + self.seed).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Strike(Incident):
    """A fault as the board is asked for it."""

    ramp_seconds: float

    def request(self) -> dict[str, Any]:
        return {**super().request(), "ramp": self.ramp_seconds}


def room(seconds: float) -> int:
    """How many incidents fit into so long a drill."""
    return max(0, int((seconds - WARM_UP_SECONDS) // (SHORTEST_SECONDS + GAP_SECONDS)))


def any_fault(faults: Mapping[str, Fault]) -> list[Wanted]:
    """Every fault that the job can have, each as a drill's incident."""
    return [Wanted(fault=name) for name in faults]


def draw_plan(seed: str, job: Job, wanted: Sequence[Wanted], *, seconds: float, incidents: int) -> tuple[Struck, ...]:
    """So many incidents of those that are wanted, one after the other. The same seed gives the same ones.

    ``incidents`` must be ``room`` at most; one of ``wanted`` must expect an alert.
    """
    rng = np.random.default_rng(int(seed, 16))
    chosen = _chosen(wanted, incidents, rng)
    spare = seconds - WARM_UP_SECONDS - incidents * (SHORTEST_SECONDS + GAP_SECONDS)
    longer = rng.uniform(0.0, LONGEST_SECONDS - SHORTEST_SECONDS, incidents)
    longer *= min(1.0, spare / longer.sum())
    pauses = (spare - longer.sum()) * rng.dirichlet([1.0] * (incidents + 1))
    plan, at = [], WARM_UP_SECONDS
    for one, more, pause in zip(chosen, longer.tolist(), pauses.tolist(), strict=False):
        at += pause
        plan.append(_struck(one, job, begins=at, lasts=SHORTEST_SECONDS + more, rng=rng))
        at = plan[-1].ends + GAP_SECONDS
    return tuple(plan)


def _chosen(wanted: Sequence[Wanted], incidents: int, rng: np.random.Generator) -> list[Wanted]:
    """All before any twice, in random order; at least one expects an alert."""
    while True:
        shuffled = (wanted[index] for _ in count() for index in rng.permutation(len(wanted)))
        chosen = [next(shuffled) for _ in range(incidents)]
        if any(one.expect != "silence" for one in chosen):
            return chosen


def _struck(wanted: Wanted, job: Job, *, begins: float, lasts: float, rng: np.random.Generator) -> Struck:
    fault = FAULTS[wanted.fault]
    kinds = [wanted.target] if wanted.target else list(fault.targets)
    kind, share, hardness = kinds[int(rng.integers(len(kinds)))], rng.random(), rng.random()
    scale = fault.severity
    return Struck(
        fault=wanted.fault,
        target=drawn_target(kind, job, share),
        severity=drawn_severity(scale.plain, scale.severe, hardness) if wanted.severity is None else wanted.severity,
        ramp_seconds=min(wanted.ramp, lasts / 2),
        begins=begins,
        ends=begins + lasts,
        flaps=wanted.flaps,
        expect=wanted.expect,
        detect_within=wanted.detect_within,
        reset_within=wanted.reset_within,
    )


def strikes(plan: Iterable[Struck]) -> Iterator[Strike]:
    """When the board is asked for what; it never ends, and what comes last never begins."""
    asked = (
        Strike(
            begins_seconds=moment,
            fault=one.fault,
            target=one.target,
            severity=one.severity,
            ramp_seconds=one.ramp_seconds,
            duration_seconds=request["duration"],
        )
        for one in plan
        for moment, request in one.requests()
    )
    never = Strike(begins_seconds=inf, fault="", target={}, severity=0.0, ramp_seconds=0.0, duration_seconds=0.0)
    return chain(asked, repeat(never))
