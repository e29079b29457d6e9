"""Names the rank, or else the node, that holds everyone up: the same grounds as the recorded ``*:training_culprit:share``.

A window of laps accuses somebody who costs much of its time and arrives last far more often than others: lateness that
is small, rare or spread over all accuses nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from stepscope.phases import PHASES

SHARE = 0.08
"""Of the wall time that one rank or node must cost before it is named: jitter spreads less than this over all."""
RANK_EXCESS = 0.3
"""So far on the way from its equal share of last arrivals to all of them must a rank be: last in 32 % of the laps of 32
ranks, in 48 % of four, in 65 % of two. A slow loader with two workers makes its rank late every other lap only; and of a
node whose storage is slow, the worst rank is last in less than that."""
NODE_EXCESS = 0.18
"""In so many more of the laps than a node's equal share must one of its ranks have arrived last."""
NODE_SECONDS = 0.7
"""Of all late seconds, for a node."""
CHANCE = 1.5
"""By the root of the laps: more than three standard deviations of a share of last arrivals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What a referee's totals gained over some time."""

    laps: int
    wall_seconds: float
    late_seconds: Sequence[Sequence[float]]
    """One row per phase, one column per rank."""
    late_steps: Sequence[float]
    """Per rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    kind: str
    """``rank`` or ``node``."""
    index: int
    phase: str
    """Where most of its late seconds are."""
    share: float
    """Of the wall time."""


def find_culprit(window: Window, nodes: Sequence[int]) -> Culprit | None:
    """``nodes`` holds the index of each rank's node. None when nobody stands out, or nothing is known yet."""
    if not window.laps or window.wall_seconds <= 0:
        return None
    ranks = range(len(nodes))
    return _accused("rank", window, ranks, RANK_EXCESS * (1 - 1 / len(ranks)), 0.0) or _accused(
        "node", window, nodes, NODE_EXCESS, NODE_SECONDS
    )


def _accused(kind: str, window: Window, groups: Sequence[int], excess: float, of_all: float) -> Culprit | None:
    count = max(groups) + 1
    late = [_gathered(row, groups, count) for row in window.late_seconds]
    costs = [sum(column) for column in zip(*late, strict=True)]
    last = _gathered(window.late_steps, groups, count)
    worst = max(range(count), key=costs.__getitem__)
    beyond = last[worst] / window.laps - 1 / count
    enough = max(SHARE * window.wall_seconds, of_all * sum(costs))
    if costs[worst] <= enough or beyond <= max(excess, CHANCE / sqrt(window.laps)):
        return None
    phase = max(range(len(PHASES)), key=lambda number: late[number][worst])
    return Culprit(kind=kind, index=worst, phase=PHASES[phase], share=costs[worst] / window.wall_seconds)


def _gathered(values: Sequence[float], groups: Sequence[int], count: int) -> list[float]:
    sums = [0.0] * count
    for value, group in zip(values, groups, strict=True):
        sums[group] += float(value)
    return sums
