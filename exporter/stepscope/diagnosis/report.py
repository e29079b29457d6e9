"""What a diagnosis says, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Target: TypeAlias = dict[str, Any]
"""``{"rank": 5}``, ``{"node": "node-2"}`` or ``{"run": True}``: as faults are targeted."""

Unit: TypeAlias = Literal["ratio", "seconds", "watts", "celsius", "hertz", "bytes_per_second", "count", "number"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One number that speaks for a verdict."""

    what: str
    """In words, such as ``rank 5's share of the run's time``."""
    value: float
    unit: Unit
    healthy: str
    """The band in which a healthy run's number lies, in words, such as ``below 8 %``."""
    query: str
    """The PromQL that gives the number."""


@dataclass(frozen=True, kw_only=True)
class RuledOut:
    """A look-alike that it is not: its own alert has no grounds."""

    fault: str
    evidence: Evidence
    """The number that tells."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One of the questions that a slow job is asked in turn."""

    question: str
    wrong: tuple[str, ...]
    """The faults found there."""
    suspected: tuple[str, ...] = ()
    """The faults of which that is not certain yet."""
    evidence: tuple[Evidence, ...]
    """One number for each cause that could be looked at."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One thing that is wrong."""

    fault: str
    """Its class: a name of the fault catalogue."""
    target: Target
    summary: str
    """One plain sentence."""
    confidence: float
    """From 0 to 1: for how much of the last half minute its grounds held, less for every look-alike whose metrics are missing."""
    lost_gpus: float
    """GPU-equivalents that it costs."""
    evidence: tuple[Evidence, ...]
    ruled_out: tuple[RuledOut, ...] = ()
    runbook: str
    """Name of the alert whose runbook applies."""


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """A cause whose grounds hold at that moment, but have not for as long as a verdict needs."""

    fault: str
    target: Target
    held_seconds: float
    needed_seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """The diagnosis of one run at one moment. Verdicts are sorted by what they cost, costliest first."""

    run: str
    at: float
    """Seconds since the epoch."""
    enough_data: bool
    """Whether the run's own series were there to be judged."""
    verdicts: tuple[Verdict, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    """What may become a verdict within seconds: no verdict, and no reason to call the run healthy."""
    missing: tuple[str, ...] = ()
    """What could not be looked at, in words, such as ``no GPU metrics``; without enough data, why."""
    steps: tuple[Step, ...] = ()
    """What was looked at, in order."""

    @property
    def healthy(self) -> bool:
        return self.enough_data and not self.verdicts and not self.suspicions

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"healthy": self.healthy, **asdict(self)}
