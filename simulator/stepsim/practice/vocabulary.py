"""What series a rule can ask for in the lab: those of the metric tables, ``up``, and what the recording rules add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser

from stepscope.metrics import NODE, RANK, RANK_INFO, REFEREE, RUN, TRAINING, Metric
from stepsim.practice.lint.records import with_records
from stepsim.practice.lint.series import Definition, Family, Shape
from stepsim.probes import DCGM, NODE_EXPORTER

__all__ = ["Family", "vocabulary"]

GPU = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname")
SCOPE_LABELS: dict[str, tuple[str, ...]] = {
    "rank": RANK, "rank_info": RANK_INFO, "node": NODE, "run": RUN, "gpu": GPU, "host": (), "cpu": ("cpu",),
}  # fmt: skip
TABLES: dict[str, tuple[Metric, ...]] = {
    "training": TRAINING, "referee": REFEREE, "dcgm": DCGM, "node": NODE_EXPORTER,
}  # fmt: skip
"""By the job that a scrape labels them with. The truth and the diagnosis are for people, not for rules."""
TARGETS: dict[str, Shape] = {
    "training": {"job": "training", "instance": None},
    "referee": {"job": "referee", "instance": "referee"},
    "dcgm": {"job": "dcgm", "instance": None, "node": None},
    "node": {"job": "node", "instance": None, "node": None},
}
MAY_BE_NAN = {"training_loss", "training_gradient_norm", "training_local_gradient_norm"}
"""What a diverged model computes."""


def vocabulary(recording: Mapping[str, Any] | None = None) -> dict[str, Family]:
    """By name. ``recording``: the parsed file of recording rules that run beside the reader's own."""
    families = {"up": Family(name="up", kind="gauge", shapes=tuple(TARGETS.values()))}
    for job, table in TABLES.items():
        for metric in table:
            for family in _families(metric, TARGETS[job]):
                # The lab serves the first of two rows of a name; the other one is an option.
                families.setdefault(family.name, family)
    return with_records(families, _definitions(recording or {}))


def _families(metric: Metric, target: Shape) -> Iterator[Family]:
    shape = {**target, **dict.fromkeys((*SCOPE_LABELS[metric.scope], *metric.labels))}
    nan = metric.name in MAY_BE_NAN
    if metric.kind != "histogram":
        yield Family(name=metric.name, kind=metric.kind, shapes=(shape,), may_be_nan=nan)
        return
    whole = {label: value for label, value in shape.items() if label != "le"}
    for suffix, labels in (("bucket", shape), ("sum", whole), ("count", whole)):
        yield Family(name=f"{metric.name}_{suffix}", kind="histogram", shapes=(labels,))


def _definitions(recording: Mapping[str, Any]) -> Iterator[Definition]:
    for group in recording.get("groups", ()):
        for rule in group["rules"]:
            if "record" in rule:
                expr = promql_parser.parse(str(rule["expr"]))
                yield Definition(name=rule["record"], expr=expr, labels=rule.get("labels") or {})
