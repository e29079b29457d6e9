"""The fault board: which faults are active, since when and how strongly. The one source of truth, kept across restarts."""

from __future__ import annotations

import json
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from stepsim.durations import parse_duration
from stepsim.faults import FAULTS, Fault, Ranks
from stepsim.job import Job as SimulatedJob
from stepsim.params import Params


class FaultError(ValueError):
    """A request that names no valid fault. ``field`` says which part of it was wrong."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class UnknownFaultId(KeyError):
    """No fault with that id is active."""


@dataclass(frozen=True, kw_only=True)
class ActiveFault:
    id: str
    fault: str
    target: dict[str, Any]
    severity: float
    started: float
    """Seconds since the epoch."""
    ramp_seconds: float = 0.0
    duration_seconds: float | None = None
    """None: until it is stopped."""

    def level(self, now: float, neutral: float) -> float:
        """The severity at that moment: neutral when it starts, and full once the ramp is over."""
        if self.ramp_seconds <= 0:
            return self.severity
        reached = min(1.0, max(0.0, (now - self.started) / self.ramp_seconds))
        return neutral + reached * (self.severity - neutral)

    def over(self, now: float) -> bool:
        return self.duration_seconds is not None and now >= self.started + self.duration_seconds

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def target_label(target: dict[str, Any]) -> str:
    """How a target is written in a label: ``rank 5``, ``node-0`` or ``run``."""
    if "rank" in target:
        return f"rank {target['rank']}"
    return str(target["node"]) if "node" in target else "run"


MOST_ENDED = 100
"""Faults that are remembered after their end."""

_WHOM = {"rank": "one rank", "node": "one node", "run": "the whole run"}
_GIVEN = {"rank": "a rank", "node": "a node", "run": "the whole run"}


class Job(Protocol):
    """What a fault's target is held against."""

    @property
    def ranks(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    def node_name(self, node: int) -> str: ...


def default_target(fault: Fault, job: Job) -> dict[str, Any]:
    """The target that a request gets which names none."""
    targets: dict[str, dict[str, Any]] = {
        "rank": {"rank": min(5, job.ranks - 1)},
        "node": {"node": job.node_name(job.nodes - 1)},
        "run": {"run": True},
    }
    return targets[fault.targets[0]]


class Board:
    """Thread-safe. ``changed`` is called, outside the lock, after a fault was started or stopped."""

    def __init__(self, job: Job, faults: Mapping[str, Fault], active: Sequence[ActiveFault] = ()) -> None:
        self._job, self.faults = job, faults
        self.impossible: Mapping[str, str] = {}
        """Faults that this job cannot have, and why."""
        self.lock = threading.Lock()
        self._active = {fault.id: fault for fault in active}
        self._ended: deque[tuple[ActiveFault, float]] = deque(maxlen=MOST_ENDED)
        self._now = 0.0
        """When the board was last told the time."""
        self.changed: Callable[[], None] = lambda: None
        self.secret: Callable[[], bool] = lambda: False
        """Whether nobody may know, or change, what is active: while a blind drill is on."""
        self.unrevealed: Callable[[], bool] = lambda: False
        """Whether nobody may know what was: until the drill is revealed."""

    def start(self, request: dict[str, Any], now: float) -> ActiveFault:
        """Start what the request describes; raises ``FaultError``, and then changes nothing.

        The same fault on the same target is replaced: starting it twice does not double it.
        """
        return self.start_all([request], now)[0]

    def start_all(self, requests: Iterable[Mapping[str, Any]], now: float) -> list[ActiveFault]:
        """Start them together, or none of them: as ``start``."""
        faults = [self.check(dict(request), now) for request in requests]
        started = {(fault.fault, str(fault.target)) for fault in faults}
        with self.lock:
            self._now = now
            self._end([one for one in self._active.values() if (one.fault, str(one.target)) in started])
            self._active.update((fault.id, fault) for fault in faults)
        self.changed()
        return faults

    def stop(self, fault_id: str) -> None:
        with self.lock:
            if fault_id not in self._active:
                raise UnknownFaultId(fault_id)
            self._end([self._active[fault_id]])
        self.changed()

    def stop_all(self) -> None:
        with self.lock:
            self._end(list(self._active.values()))
        self.changed()

    def _end(self, faults: Iterable[ActiveFault]) -> None:
        for fault in faults:
            del self._active[fault.id]
            self._ended.append((fault, self._now))

    def active(self) -> list[ActiveFault]:
        with self.lock:
            return list(self._active.values())

    def told(self) -> list[ActiveFault]:
        """What may be known of ``active``."""
        return [] if self.secret() else self.active()

    def ended(self, since: float) -> list[tuple[ActiveFault, float]]:
        """What may be known of faults that have ended since then, and when each did, to the last ``expire``."""
        with self.lock:
            return [] if self.unrevealed() else [(fault, end) for fault, end in self._ended if end >= since]

    def expire(self, now: float) -> None:
        """End the faults whose time is over."""
        with self.lock:
            self._now = now
            self._end([fault for fault in self._active.values() if fault.over(now)])

    def check(self, request: dict[str, Any], now: float) -> ActiveFault:
        """The fault that a request describes, validated against this job."""
        unknown = request.keys() - {"fault", "target", "severity", "ramp", "duration"}
        if unknown:
            raise FaultError(min(unknown), f"unknown field {min(unknown)!r}; "
                             "there are fault, target, severity, ramp and duration")  # fmt: skip
        fault = self._named(request)
        duration = _seconds(request, "duration")
        if duration == 0:
            raise FaultError("duration", "duration must be longer than 0; leave it out to run until stopped")
        return ActiveFault(
            id=uuid.uuid4().hex[:8],
            fault=fault.name,
            target=self._target(fault, request.get("target")),
            severity=_severity(fault, request.get("severity")),
            started=now,
            ramp_seconds=_seconds(request, "ramp") or 0.0,
            duration_seconds=duration,
        )

    def _named(self, request: dict[str, Any]) -> Fault:
        name = request.get("fault")
        if isinstance(name, str) and name in self.impossible:
            raise FaultError("fault", f"{name} {self.impossible[name]}")
        if not isinstance(name, str) or name not in self.faults:
            wrong = "`fault` is missing" if name is None else f"unknown fault {name!r}"
            raise FaultError("fault", f"{wrong}; there are {', '.join(self.faults)}")
        return self.faults[name]

    def _target(self, fault: Fault, target: Any) -> dict[str, Any]:
        plain = default_target(fault, self._job)
        if target is None:
            return plain
        if not isinstance(target, dict) or len(target) != 1 or not target.keys() <= _GIVEN.keys():
            raise FaultError("target", f"the target of {fault.name} is written {json.dumps(plain)}; "
                             f"not {json.dumps(target)}")  # fmt: skip
        ((kind, value),) = target.items()
        if kind not in fault.targets:
            raise FaultError("target", self._other_kind(fault, kind))
        known = {"rank": self._is_rank, "node": self._is_node, "run": _is_true}[kind]
        if not known(value):
            allowed = {
                "rank": f"0 to {self._job.ranks - 1}",
                "node": f"node-0 to node-{self._job.nodes - 1}",
                "run": "true",
            }
            raise FaultError("target", f"no {kind} {value!r}; allowed: {allowed[kind]}")
        return target

    def _other_kind(self, fault: Fault, kind: str) -> str:
        """What to say to a target of a kind that the fault does not strike."""
        ways = {
            "rank": f"give a rank (such as {min(5, self._job.ranks - 1)})",
            "node": f"give a node (such as {self._job.node_name(self._job.nodes - 1)})",
            "run": "leave the target out",
        }
        whom, way = (" or ".join(words[one] for one in fault.targets) for words in (_WHOM, ways))
        return f"{fault.name} strikes {whom}: {way}" + ("" if fault.targets == ("run",) else f", not {_GIVEN[kind]}")

    def _is_rank(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < self._job.ranks

    def _is_node(self, value: Any) -> bool:
        return (
            value in {self._job.node_name(node) for node in range(self._job.nodes)} if isinstance(value, str) else False
        )


class FaultBoard(Board):
    """The simulator's: its faults change the job's parameters."""

    def __init__(self, job: SimulatedJob, active: Sequence[ActiveFault] = ()) -> None:
        needs = {name: need for name, fault in FAULTS.items() if (need := fault.need(job))}
        super().__init__(job, {name: fault for name, fault in FAULTS.items() if name not in needs}, active)
        self.impossible = needs
        self._simulated = job
        self._healthy = Params.healthy(job)

    def params(self, now: float) -> Params:
        """The healthy parameters, changed by each active fault in the order in which they started."""
        params = self._healthy
        for active in self.active():
            if active.started <= now and not active.over(now):
                fault = FAULTS[active.fault]
                params = fault.apply(params, self._struck(active.target), active.level(now, fault.severity.neutral))
        return params

    def signature(self, now: float) -> tuple[tuple[str, float], ...]:
        """Equal signatures mean equal parameters."""
        active = [one for one in self.active() if one.started <= now and not one.over(now)]
        return tuple((one.id, one.level(now, FAULTS[one.fault].severity.neutral)) for one in active)

    def _struck(self, target: dict[str, Any]) -> Ranks:
        ranks = np.arange(self._simulated.ranks)
        if "rank" in target:
            struck: Ranks = ranks == target["rank"]
            return struck
        if "node" in target:
            node = ranks // self._simulated.gpus_per_node
            return np.asarray(node == int(str(target["node"]).removeprefix("node-")))
        return np.ones(len(ranks), dtype=bool)


def _is_true(value: Any) -> bool:
    return value is True


def _severity(fault: Fault, value: Any) -> float:
    scale = fault.severity
    if value is None:
        return scale.plain
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not scale.low <= value <= scale.high:
        raise FaultError("severity", f"severity of {fault.name} must be a number from {scale.low:g} to {scale.high:g} "
                         f"({scale.meaning}), not {value!r}")  # fmt: skip
    return float(value)


def _seconds(request: dict[str, Any], field: str) -> float | None:
    value = request.get(field)
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise FaultError(field, f"{field}: {error}") from None
