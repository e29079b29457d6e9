"""What one training step reports: the one type that crosses from a training loop, real or simulated, to the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Rows: TypeAlias = Any
"""One row per phase, one column per rank, in seconds: a list of lists, or a numpy array of shape (phases, ranks)."""

Column: TypeAlias = Any
"""One value per rank: a list, or a numpy array of shape (ranks,)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """What the optimizer saw in one step. It is the same on all ranks, and rank 0 publishes it.

    None is what the loop did not say.
    """

    loss: float | None = None
    gradient_norm: float | None = None
    """L2 norm before clipping."""
    learning_rate: float | None = None
    clipped: bool = False
    out_of_band: bool = False
    """The norm lay outside the run's configured band."""

    @property
    def nonfinite(self) -> bool:
        """True when the loss or the gradient norm is NaN or infinite."""
        return not all(abs(value) < float("inf") for value in (self.loss, self.gradient_norm) if value is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One optimizer step of the ranks of one process: a real process has one rank, a simulator has them all.

    ``before`` and ``after`` hold the seconds of each phase before and after the exit of the step's last gradient
    collective; their sum over phases is the step's wall time, start to start. They are split there because all ranks
    leave a collective together: from one exit to the next is a lap, and laps are equally long on all ranks.
    """

    step: int
    previous: int | None = None
    """The step before it; None for ``step`` - 1. Another number, where steps are not counted one by one; one that was never
    recorded, where steps were lost in between."""
    attempt: int = 0
    """How often the job was restarted; shared by all ranks, so that replayed steps never mix."""
    before: Rows
    after: Rows
    ended: Column
    """When the step ended, seconds since the epoch, per rank."""
    tokens: float | Column = 0.0
    """Tokens of every rank, or of each."""
    flops: float | Column = 0.0
    """Model FLOPs, recomputation excluded; of every rank, or of each."""
    collective: bool = True
    """False for a step without a gradient collective (``no_sync``): it extends the lap."""
    collectives: Mapping[str, Column] = field(default_factory=dict)
    """Exposed seconds by collective: all_reduce, all_gather, reduce_scatter. Together they are the phase ``allreduce``."""
    learning: Learning | None = None
    local_gradient_norm: Column | None = None
    """L2 norm of each rank's own gradient, before the reduction; None where the loop does not say."""
    checkpointed: bool = False

    @property
    def follows(self) -> int:
        """The number of the step before it."""
        return self.step - 1 if self.previous is None else self.previous
