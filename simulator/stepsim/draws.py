"""The simulator's random numbers: one stream per quantity, drawn in blocks, so that the same seed gives the same run.

Each quantity has its own generator. A draw for one never shifts another's, and how many steps are simulated at once
does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

BLOCK_NUMBERS = 4096
"""Numbers drawn at once, at least: enough to make the generator's own cost per call vanish."""


class Draws:
    """Each ``next_…`` returns a row of shape (ranks,) for one step. A deep copy goes on with the same numbers."""

    def __init__(self, seed: int | tuple[int, ...], ranks: int) -> None:
        rows = max(4, BLOCK_NUMBERS // ranks)
        jitter, read, stall, learning, pause, tokens, gradient = map(
            np.random.default_rng, np.random.SeedSequence(seed).spawn(7)
        )
        self.next_jitter = Blocks(jitter.standard_normal, (rows, ranks)).next
        """Standard normal."""
        self.next_read = Blocks(read.standard_normal, (rows, ranks)).next
        """Standard normal."""
        self.next_stall = Blocks(stall.random, (rows, ranks)).next
        """Uniform in [0, 1)."""
        self.next_pause = Blocks(pause.random, (rows, ranks)).next
        """Uniform in [0, 1)."""
        self.next_tokens = Blocks(tokens.standard_normal, (rows, ranks)).next
        """Standard normal."""
        self.next_gradient = Blocks(gradient.standard_normal, (rows, ranks)).next
        """Standard normal."""
        self.learning = Scalars(learning)


class Blocks:
    """An endless stream that is drawn block by block, and handed out row by row."""

    def __init__(self, draw: Callable[[tuple[int, ...]], FloatArray], shape: tuple[int, ...]) -> None:
        self._draw, self._shape = draw, shape
        self._block, self._taken = draw(shape), 0

    def next(self) -> Any:
        if self._taken == self._shape[0]:
            self._block, self._taken = self._draw(self._shape), 0
        self._taken += 1
        return self._block[self._taken - 1]


class Scalars:
    """Standard normal numbers one by one, for the learning dynamics of the whole run."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._next = Blocks(generator.standard_normal, (1024,)).next

    def normal(self) -> float:
        return float(self._next())
