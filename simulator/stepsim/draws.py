"""The simulator's random numbers: one stream per quantity, drawn in blocks, so that the same seed gives the same run.

Each quantity has its own generator. A draw for one never shifts another's, and how many steps are simulated at once
does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

BLOCK_NUMBERS = 4096
"""Numbers drawn at once, at least: enough to make the generator's own cost per call vanish."""


class Draws:
    """Each ``next_…`` returns a row of shape (ranks,) for one step."""

    def __init__(self, seed: int | tuple[int, ...], ranks: int) -> None:
        jitter, read, stall, learning, pause, tokens, gradient = np.random.SeedSequence(seed).spawn(7)
        self._ranks = ranks
        self._jitter = self._rows(np.random.default_rng(jitter).standard_normal)
        self._read = self._rows(np.random.default_rng(read).standard_normal)
        self._stall = self._rows(np.random.default_rng(stall).random)
        self._pause = self._rows(np.random.default_rng(pause).random)
        self._tokens = self._rows(np.random.default_rng(tokens).standard_normal)
        self._gradient = self._rows(np.random.default_rng(gradient).standard_normal)
        self.learning = Scalars(np.random.default_rng(learning))

    def _rows(self, draw: Callable[[tuple[int, int]], FloatArray]) -> Iterator[FloatArray]:
        steps = max(4, BLOCK_NUMBERS // self._ranks)
        while True:
            yield from draw((steps, self._ranks))

    def next_jitter(self) -> FloatArray:
        """Standard normal."""
        return next(self._jitter)

    def next_read(self) -> FloatArray:
        """Standard normal."""
        return next(self._read)

    def next_stall(self) -> FloatArray:
        """Uniform in [0, 1)."""
        return next(self._stall)

    def next_pause(self) -> FloatArray:
        """Uniform in [0, 1)."""
        return next(self._pause)

    def next_tokens(self) -> FloatArray:
        """Standard normal."""
        return next(self._tokens)

    def next_gradient(self) -> FloatArray:
        """Standard normal."""
        return next(self._gradient)


class Scalars:
    """Standard normal numbers one by one, for the learning dynamics of the whole run."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._numbers = self._stream(generator)

    def _stream(self, generator: np.random.Generator) -> Iterator[float]:
        while True:
            yield from generator.standard_normal(1024).tolist()

    def normal(self) -> float:
        return next(self._numbers)
