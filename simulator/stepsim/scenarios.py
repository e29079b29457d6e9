"""Scenarios: faults that come together in real clusters, started at once. To add one: add a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stepsim.board import FaultError


class UnknownScenario(FaultError):
    """A request that names no scenario."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    title: str
    description: str
    requests: tuple[Mapping[str, Any], ...]
    """As to ``POST /faults``."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "faults": [dict(request) for request in self.requests],
        }


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="thermal_night", title="One thermal GPU at night",
            description="A fan slows down over three minutes. One GPU gets hot, its clock goes down, and everyone waits for it.",
            requests=({"fault": "thermal_throttle", "ramp": "3m", "duration": "15m"},),
        ),
        Scenario(
            name="peak_hours", title="Storage at peak hours",
            description="Other jobs read, too. One node's mount gets three times slower in two minutes, and reads stall.",
            requests=({"fault": "storage_node_slow", "ramp": "2m", "duration": "12m"},
                      {"fault": "data_starvation", "severity": 0.3, "ramp": "2m", "duration": "12m"}),
        ),
        Scenario(
            name="the_loud_one", title="The loud one hides the other",
            description="A straggler costs most, and is found at once. Beneath it the network is slow: mend the first, look again.",
            requests=({"fault": "straggler", "severity": 2, "duration": "6m"},
                      {"fault": "network_degradation", "duration": "12m"}),
        ),
        Scenario(
            name="after_the_upgrade", title="After the upgrade",
            description="A new image lacks fused kernels, and the plugin for RDMA. Nobody is late: everything is slower.",
            requests=({"fault": "memory_bound", "severity": 2, "duration": "10m"}, {"fault": "nccl_fallback", "duration": "10m"}),
        ),
        Scenario(
            name="many_small_ones", title="Many small ones",
            description="Noisy neighbours, garbage collection, sequences of different length. There is no culprit, and MFU falls.",
            requests=({"fault": "jitter", "severity": 0.05, "duration": "10m"},
                      {"fault": "gc_pause", "severity": 0.25, "duration": "10m"},
                      {"fault": "sequence_imbalance", "severity": 0.1, "duration": "10m"}),
        ),
        Scenario(
            name="wrong_learning_rate", title="A zero too many",
            description="Somebody typed the learning rate with a zero too many. All hardware looks well; see the gradient norm.",
            requests=({"fault": "gradient_explosion", "duration": "3m"},),
        ),
    )
}  # fmt: skip


def possible(known: Iterable[str]) -> list[Scenario]:
    """Those whose faults a job can all have."""
    faults = set(known)
    return [one for one in SCENARIOS.values() if all(request["fault"] in faults for request in one.requests)]


def requests_of(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Of the scenario that a request names: ``{"scenario": "peak_hours"}``. Raises ``UnknownScenario``."""
    there = f"there are {', '.join(SCENARIOS)}"
    if unknown := body.keys() - {"scenario"}:
        raise UnknownScenario(min(unknown), f"unknown field {min(unknown)!r}; `scenario` is the only one, and {there}")
    name = body.get("scenario")
    if not isinstance(name, str) or name not in SCENARIOS:
        wrong = "`scenario` is missing" if name is None else f"unknown scenario {name!r}"
        raise UnknownScenario("scenario", f"{wrong}; {there}")
    return SCENARIOS[name].requests
