"""A job on ever more GPUs: efficiency, and from where on more of them no longer pay.

Weak scaling leaves every replica its tokens, strong scaling the job its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from stepsim.planner.layout import Layout
from stepsim.planner.machine import Machine
from stepsim.planner.predict import Prediction

PAYS = 0.5
"""An added GPU pays if it brings at least this share of the tokens per second that a GPU has at its best size."""


@dataclass(frozen=True, kw_only=True)
class Point:
    prediction: Prediction
    efficiency: float
    """Tokens per second and GPU, by those of the size on the curve that has most. That is one GPU, where it needs no more
    memory or optimizer time than each of many."""
    marginal: float | None
    """Tokens per second that each GPU brings that was added since the point before, by the same."""

    @property
    def gpus(self) -> int:
        return self.prediction.layout.gpus

    @property
    def largest_loss(self) -> str:
        """The part that takes most of a step, compute aside."""
        parts = {name: seconds for name, seconds in vars(self.prediction.parts).items() if name != "compute"}
        return max(parts, key=lambda name: parts[name])


def sizes(layout: Layout, machine: Machine, most: int) -> list[int]:
    """From one replica on, doubling; nodes are filled; the layout's own size is among them."""
    least, node = layout.tp * layout.pp, machine.gpus_per_node
    doubled = set(_doubled(least, most)) | set(_doubled(node, most)) | {layout.gpus}
    return sorted(n for n in doubled if n % least == 0 and (n <= node or n % node == 0))


def _doubled(start: int, most: int) -> Iterator[int]:
    while start <= most:
        yield start
        start *= 2


def weak(layout: Layout, gpus: int) -> Layout:
    """The same tokens for every replica."""
    return replace(layout, gpus=gpus)


def strong(layout: Layout, gpus: int, sequence: int) -> Layout | None:
    """The same tokens for the job; microbatches get fewer, and then smaller. None where a replica has no whole sequence left."""
    tokens = layout.tokens * layout.gpus / gpus
    if tokens < sequence:
        return None
    return replace(layout, gpus=gpus, tokens=tokens, microbatches=max(1, round(tokens / layout.micro_tokens)))


def curve(layouts: Sequence[Layout], predicted: Callable[[Layout], Prediction]) -> list[Point]:
    """``layouts``: of rising numbers of GPUs."""
    found = [predicted(layout) for layout in layouts]
    best = max(one.tokens_per_second / one.layout.gpus for one in found)
    return [
        Point(
            prediction=one,
            efficiency=one.tokens_per_second / one.layout.gpus / best,
            marginal=None if before is None else _gain(before, one) / best,
        )
        for before, one in zip([None, *found], found, strict=False)
    ]


def knee(points: Sequence[Point]) -> Point:
    """The smallest job from which on no larger one of the curve pays.

    A larger one pays if the GPUs that it adds bring, each on average, at least half of what a GPU does at the size where it
    does most. So a step down at the edge of a node is no knee if what lies beyond makes up for it.
    """
    best = points[0].prediction.tokens_per_second / points[0].gpus / points[0].efficiency
    for here, point in enumerate(points):
        larger = points[here + 1 :]
        if not any(_gain(point.prediction, one.prediction) >= PAYS * best for one in larger):
            return point
    raise AssertionError("the last point has no larger one")


def _gain(smaller: Prediction, larger: Prediction) -> float:
    """Tokens per second that each added GPU brings."""
    more = larger.tokens_per_second - smaller.tokens_per_second
    return more / (larger.layout.gpus - smaller.layout.gpus)
