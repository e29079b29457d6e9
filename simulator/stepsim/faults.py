"""The fault list: each fault is data and one function that changes physical parameters, and nothing else.

To add a fault: add a decorated function. It takes the parameters, the ranks it strikes and the severity, and returns
new parameters; every symptom must follow from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from stepsim.params import OUTAGE_PERIOD_SECONDS, Params

TargetKind = Literal["rank", "node", "run"]
Ranks: TypeAlias = npt.NDArray[np.bool_]
"""Which ranks are struck, shape (ranks,)."""
Apply: TypeAlias = Callable[[Params, Ranks, float], Params]


@dataclass(frozen=True, kw_only=True)
class Severity:
    """What the number means, and how far it may go."""

    meaning: str
    neutral: float
    """The value that changes nothing: where a ramp begins."""
    low: float
    high: float
    mild: float
    plain: float
    severe: float


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What the catalogue says of a fault."""

    name: str
    description: str
    target: TargetKind
    severity: Severity


@dataclass(frozen=True, kw_only=True)
class SimulatedFault(Fault):
    apply: Apply


FAULTS: dict[str, SimulatedFault] = {}


def fault(description: str, *, target: TargetKind, severity: Severity) -> Callable[[Apply], Apply]:
    """Enter a function into the fault list under its own name."""

    def enter(apply: Apply) -> Apply:
        name: str = apply.__name__
        FAULTS[name] = SimulatedFault(name=name, description=description, target=target, severity=severity, apply=apply)
        return apply

    return enter


@fault(
    "One GPU computes more slowly, forward and backward; its clock, limits and throttle bits stay as they were.",
    target="rank",
    severity=Severity(
        meaning="factor on the GPU's compute time; 1.43 is a GPU at 70 %",
        neutral=1.0, low=1.0, high=20.0, mild=1.15, plain=1.43, severe=2.5,
    ),
)  # fmt: skip
def straggler(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, compute_scale=np.where(ranks, params.compute_scale * severity, params.compute_scale))


STALLED_SHARE = 0.04
"""Of reads: the prototype behind docs/physics.md."""


@fault(
    "Storage stalls 4 % of all reads, each for a heavy-tailed time: the late rank differs from step to step.",
    target="run",
    severity=Severity(
        meaning="scale of the stalls in seconds: the shortest one",
        neutral=0.0, low=0.0, high=10.0, mild=0.3, plain=1.0, severe=2.0,
    ),
)  # fmt: skip
def data_starvation(params: Params, ranks: Ranks, severity: float) -> Params:
    if severity == 0:
        return params
    return replace(params, stall_probability=STALLED_SHARE, stall_seconds=severity)


@fault(
    "One node's storage mount reads more slowly: the data wait of its ranks takes over the critical path.",
    target="node",
    severity=Severity(
        meaning="factor on the node's read time",
        neutral=1.0, low=1.0, high=100.0, mild=2.0, plain=3.0, severe=6.0,
    ),
)  # fmt: skip
def storage_node_slow(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, read_scale=np.where(ranks, params.read_scale * severity, params.read_scale))


@fault(
    "Storage stands still for everyone, again and again: the one data fault that utilization shows, in jobs of up to some "
    "dozen GPUs.",
    target="run",
    severity=Severity(
        meaning=f"seconds out of every {OUTAGE_PERIOD_SECONDS:.0f} in which no read starts",
        neutral=0.0, low=0.0, high=25.0, mild=5.0, plain=10.0, severe=20.0,
    ),
)  # fmt: skip
def storage_outage(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, outage_seconds=max(params.outage_seconds, severity))


@fault(
    "The learning rate is multiplied and gradient clipping is off: the loss overflows while all hardware looks well. "
    "Give no ramp: over minutes the network adapts. Stopping the fault reloads the last finite checkpoint.",
    target="run",
    severity=Severity(
        meaning="factor on the learning rate; up to 3 the loss recovers by itself, from 4 on it overflows",
        neutral=1.0, low=1.0, high=1000.0, mild=2.0, plain=10.0, severe=20.0,
    ),
)  # fmt: skip
def gradient_explosion(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, learning_rate_scale=params.learning_rate_scale * severity, clip=None)
