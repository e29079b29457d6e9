"""One simulated step as a timeline: when each rank passed each boundary."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.phases import ALLREDUCE, CHECKPOINT, OPTIMIZER, OTHER, PHASES
from stepsim.draws import FloatArray

SEGMENTS = (*PHASES[:OTHER], "evaluation", "host")
"""Segments of a step in order of time. The phase ``other`` is made of the last two; only evaluation runs kernels."""
EVALUATION, HOST = OTHER, OTHER + 1

PHASE_OF_SEGMENT = (*range(OTHER), OTHER, OTHER)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Timeline:
    """``edges`` has shape (segments + 1, ranks): seconds since the epoch. Segment s lasts from edge s to edge s + 1."""

    step: int
    edges: FloatArray
    last_end: float
    """When the last rank ended the step. Infinite for a step that waits for a stuck rank, as its edges are from there on."""
    checkpointed: bool = False
    token_share: FloatArray | float
    """Tokens of each rank by the configured ones, shape (ranks,), or one number for all."""

    @property
    def exit(self) -> float:
        """When all ranks left the gradient collective."""
        return float(self.edges[ALLREDUCE + 1, 0])

    @property
    def ends(self) -> FloatArray:
        return self.edges[-1]

    def shifted(self, seconds: float) -> Timeline:
        """The same step, so much later."""
        return replace(self, edges=self.edges + seconds, last_end=self.last_end + seconds)

    def before(self) -> FloatArray:
        """Seconds by phase up to the collective's exit, shape (phases, ranks)."""
        seconds = np.zeros((len(PHASES), self.edges.shape[1]))
        np.subtract(self.edges[1 : OPTIMIZER + 1], self.edges[:OPTIMIZER], out=seconds[:OPTIMIZER])
        return seconds

    def after(self) -> FloatArray:
        """Seconds by phase from the collective's exit, shape (phases, ranks)."""
        edges = self.edges
        seconds = np.zeros((len(PHASES), edges.shape[1]))
        np.subtract(edges[OPTIMIZER + 1 : OTHER + 1], edges[OPTIMIZER:OTHER], out=seconds[OPTIMIZER : CHECKPOINT + 1])
        np.subtract(edges[-1], edges[OTHER], out=seconds[OTHER])
        return seconds

    def within(self, start: float, end: float) -> FloatArray:
        """Seconds that each rank spent in each segment between two moments, shape (segments, ranks)."""
        clipped = np.minimum(np.maximum(self.edges, start), end)
        return clipped[1:] - clipped[:-1]
