"""What one training step reports: the one type that crosses from a training loop, real or simulated, to the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Rows: TypeAlias = Any
"""One row per phase, one column per rank, in seconds: a list of lists, or a numpy array of shape (phases, ranks)."""

Column: TypeAlias = Any
"""One value per rank: a list, or a numpy array of shape (ranks,)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """What the optimizer saw in one step. It is the same on all ranks, and rank 0 publishes it."""

    loss: float
    gradient_norm: float
    """L2 norm before clipping."""
    learning_rate: float
    clipped: bool = False
    out_of_band: bool = False
    """The norm lay outside the run's configured band."""

    @property
    def nonfinite(self) -> bool:
        """True when the loss or the gradient norm is NaN or infinite."""
        return not (abs(self.loss) < float("inf") and abs(self.gradient_norm) < float("inf"))


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One optimizer step of the ranks of one process: a real process has one rank, a simulator has them all.

    ``before`` and ``after`` hold the seconds of each phase before and after the exit of the step's last gradient
    collective; their sum over phases is the step's wall time, start to start. They are split there because all ranks
    leave a collective together: from one exit to the next is a lap, and laps are equally long on all ranks.
    """

    step: int
    attempt: int = 0
    """How often the job was restarted; shared by all ranks, so that replayed steps never mix."""
    before: Rows
    after: Rows
    ended: Column
    """When the step ended, seconds since the epoch, per rank."""
    tokens: float = 0.0
    """Tokens per rank."""
    flops: float = 0.0
    """Model FLOPs per rank, recomputation excluded."""
    collective: bool = True
    """False for a step without a gradient collective (``no_sync``, one process): it extends the lap."""
    learning: Learning | None = None
    checkpointed: bool = False
