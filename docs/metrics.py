"""Writes docs/metrics.md: the metric tables, generated from the code. Run: make generate."""

from __future__ import annotations

from pathlib import Path

from stepscope.collectors import COLLECTORS
from stepscope.metrics import NODE, RANK, RANK_INFO, REFEREE, RUN, TRAINING, Metric
from stepscope.node import NODE as NODE_UP
from stepsim.diagnoser import DIAGNOSIS
from stepsim.practice.live.result import PRACTICE
from stepsim.probes import DCGM, NODE_EXPORTER
from stepsim.truth import TRUTH

FILE = Path(__file__).with_name("metrics.md")

LABELS = {
    "rank": RANK,
    "rank_info": RANK_INFO,
    "node": NODE,
    "run": RUN,
    "gpu": ("gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname"),
    "host": (),
    "cpu": ("cpu",),
}

SECTIONS = (
    ("Training", "Published by every rank's process; the run's own by rank 0 alone.", TRAINING),
    ("The critical path", "Published by the referee. Rank and node are those that were late.", REFEREE),
    ("GPUs", "dcgm-exporter's names, units and labels. A counter that a device lacks is absent.", DCGM),
    ("Hosts", "node_exporter's names.", NODE_EXPORTER),
    ("The library about itself", "Where GPUs or the host are read, and on a node's endpoint.", (*COLLECTORS, *NODE_UP)),
    (
        "Diagnosis",
        "Of the lab's job, from what Prometheus has of it: `stepscope simulate` and `watch` with `--prometheus`.",
        DIAGNOSIS,
    ),
    ("Ground truth", "The lab's own endpoint, absent in blind mode. The run's labels are left out.", TRUTH),
    (
        "Blind drills",
        "The lab's own endpoint: whether one is on, and what the last one that was revealed came to.",
        PRACTICE,
    ),
)

OWN_LABELS = ("The library about itself", "Diagnosis", "Ground truth", "Blind drills")
"""Sections whose metrics' labels are their own alone."""

HEAD = """\
# Metrics

Generated from the metric tables in the code by `make generate`: edit those, not this page.

`phase` is one of `data_wait`, `h2d`, `forward`, `backward` (until the last local gradient is ready), `allreduce` (the
exposed collective: waiting for others, plus transfer), `optimizer`, `checkpoint` and `other`. The phases of a rank add
up to its wall time, exactly.
"""


PER_RANK = " In place of the one per node, with `--per-rank-histogram`."


def row(metric: Metric, section: str) -> str:
    scope = () if section in OWN_LABELS else LABELS[metric.scope]
    note = PER_RANK if metric.kind == "histogram" and metric.scope == "rank" else ""
    labels = ", ".join(f"`{label}`" for label in (*scope, *metric.labels))
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help}{note} |"


def page() -> str:
    parts = [HEAD]
    for title, text, table in SECTIONS:
        rows = "\n".join(row(metric, title) for metric in table)
        parts.append(f"## {title}\n\n{text}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
