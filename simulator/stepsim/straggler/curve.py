"""The same question at other sizes."""

from __future__ import annotations

from stepsim.straggler.answer import solve
from stepsim.straggler.question import MOST_GPUS, Straggler

SMALLEST = 8


def efficiency_by_size(question: Straggler) -> list[tuple[int, float]]:
    """GPUs, and the efficiency expected with so many: powers of two from 8 on that the slow ones fit into."""
    sizes = [size for size in _doubled(SMALLEST) if size >= question.slow_gpus]
    return [(size, solve(question.model_copy(update={"gpus": size})).efficiency_expected) for size in sizes]


def _doubled(size: int) -> list[int]:
    return [] if size > MOST_GPUS else [size, *_doubled(2 * size)]
