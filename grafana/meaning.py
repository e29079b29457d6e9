"""What colours, thresholds and numbers mean, the same on every dashboard.

Bounds that an alert has are read from the alert itself: a panel turns red where the rule would fire.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

ALERTS = Path(__file__).parents[1] / "prometheus/rules/alerts.yml"

PHASE_COLOURS = {
    # Okabe and Ito's palette, safe for the colour-blind; the console uses the same.
    "data_wait": "#E69F00",
    "h2d": "#CC79A7",
    "forward": "#009E73",
    "backward": "#66C9A3",
    "allreduce": "#0072B2",
    "optimizer": "#56B4E9",
    "checkpoint": "#F0E442",
    "other": "#999999",
}
LOSS_COLOURS = {**PHASE_COLOURS, "stalled": "#F2495C"}
"""Of what is lost: to a phase, or while no step ends, which is bad."""
SPLIT_COLOURS = {**PHASE_COLOURS, "transfer": "#0072B2", "waiting": "#D55E00"}
"""All-reduce taken apart: transfer keeps its colour."""
UTILIZATION, MFU = "#7EB6FF", "#D1158C"
"""Far from each other and from data wait for every kind of colour vision, as all three cross in one graph."""
GOOD, WARN, BAD, PLAIN = "#73BF69", "#FFB357", "#F2495C", "text"
HIGHEST, MIDDLE, LOWEST, CHOSEN = "#B877D9", "#9FA7B3", "#3DD2CC", "text"
"""Of all ranks, GPUs or nodes: the largest, the median and the smallest; and the one that was chosen above."""
FAULT = "#7373E6"
"""The truth of the lab. Seen on white and on black: ribbons are thin."""
LINE, REFERENCE = "#B7C3D0", "#6E7A89"
"""A line that stands for nothing that has a colour of its own, and what it is compared with."""
SHADES = {"mode": "shades", "fixedColor": LINE}
"""Of lines whose names nobody knows beforehand: Grafana's palette has the green and the red of good and bad."""
WIRE_COLOURS = {"NVLink": "#9CA331", "InfiniBand": "#61AEC2", "Ethernet": "#755752", "PCIe": "#5252A3"}

Json = dict[str, Any]


@cache
def bound(alert: str, before: str = "") -> float:
    """The number that the alert's expression compares with, the first one after the text ``before``.

    Raises ``KeyError`` for an alert that does not exist and ``ValueError`` where there is no such comparison.
    """
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    exprs = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    if alert not in exprs:
        raise KeyError(f"{ALERTS} has no alert {alert}, whose bound colours panels; it has {', '.join(exprs)}")
    expr = exprs[alert]
    found = re.search(re.escape(before) + r".*?[<>]=? *([\d.]+)", expr, re.DOTALL)
    if not found:
        raise ValueError(f"{alert} compares with no number after {before!r}: {expr}")
    return float(found[1])


def steps(*thresholds: tuple[float | None, str]) -> Json:
    """Thresholds from the lowest (None) up: value from which the colour holds. The lowest is that of a missing value, too."""
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in thresholds]}


CULPRIT_SHARE = bound("TrainingRankStraggling")
NONFINITE_STEPS = bound("TrainingGradientExploding", "or sum by (run) (increase(training_nonfinite")
OUT_OF_BAND_STEPS = bound("TrainingGradientExploding", "out_of_band")

MFU_STEPS = steps((None, PLAIN), (0, BAD), (0.3, WARN), (0.36, GOOD))
"""Published MFU of dense decoders on H100 without faults: 36 to 48 % (docs/physics.md)."""
LOST_SHARE_STEPS = steps((None, PLAIN), (0, GOOD), (CULPRIT_SHARE / 2, WARN), (CULPRIT_SHARE, BAD))
LOST_PERCENT_STEPS = {
    "mode": "percentage",
    "steps": [{**step, "value": step["value"] and 100 * step["value"]} for step in LOST_SHARE_STEPS["steps"]],
}
"""The same for a number of GPUs whose maximum is all of them."""
USEFUL_STEPS = steps((None, PLAIN), (0, BAD), (0.7, WARN), (0.85, GOOD))
COUNT_STEPS = steps((None, PLAIN), (0, GOOD), (1, BAD))
"""For what should never happen at all."""


def mapped(texts: Mapping[int, tuple[str, str]]) -> list[Json]:
    """Numbers shown as words, each with its colour."""
    options = {
        str(value): {"text": text, "color": colour, "index": index}
        for index, (value, (text, colour)) in enumerate(texts.items())
    }
    return [{"type": "value", "options": options}]


REASONS = {
    # nvmlClocksEventReason…, nvml.h
    0x04: ("power cap", WARN),
    0x08: ("hardware slowdown", BAD),
    0x20: ("thermal, driver", BAD),
    0x40: ("thermal, hardware", BAD),
    0x80: ("power brake", BAD),
}


def _all_reasons() -> dict[int, tuple[str, str]]:
    texts = {0: ("none", GOOD), 1: ("idle", PLAIN)}
    for count in range(1, len(REASONS) + 1):
        for bits in combinations(REASONS, count):
            colour = BAD if any(REASONS[bit][1] == BAD for bit in bits) else WARN
            texts[sum(bits)] = (" + ".join(REASONS[bit][0] for bit in bits), colour)
    return texts


OTHER_REASONS = {"from": 1, "to": 2**16, "result": {"text": "other reasons", "color": WARN, "index": 99}}
THROTTLE_REASONS = [*mapped(_all_reasons()), {"type": "range", "options": OTHER_REASONS}]
"""DCGM_FI_DEV_CLOCK_THROTTLE_REASONS is a bit mask; every combination of those that slow a GPU down is spelt out."""

XIDS = mapped(
    {
        # "XID Errors", docs.nvidia.com/deploy/xid-errors
        0: ("none", GOOD),
        13: ("13: graphics engine exception", WARN),
        31: ("31: memory page fault", WARN),
        43: ("43: stopped processing", WARN),
        45: ("45: preemptive cleanup", WARN),
        48: ("48: double-bit ECC error", BAD),
        63: ("63: row remapping recorded", WARN),
        64: ("64: row remapping failed", BAD),
        74: ("74: NVLink error", BAD),
        79: ("79: fallen off the bus", BAD),
        94: ("94: contained ECC error", WARN),
        95: ("95: uncontained ECC error", BAD),
        119: ("119: GSP timeout", BAD),
        120: ("120: GSP error", BAD),
    }
)
