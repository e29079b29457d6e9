"""The metric table: every family that a training job publishes, one row each.

To add a metric: add a row. ``values`` reads a ``Job`` (or a ``Referee``) and yields, for each combination of the row's
own labels, a column with one value per series of its scope: per rank, per node, or the run. A value that is not known
is None, or a column that is not yielded: the series is then absent, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from stepscope.phases import PHASES
from stepscope.record import Column
from stepscope.referee import OUTCOMES
from stepscope.totals import STEP_SECONDS_BOUNDS, Totals

Scope = Literal["rank", "rank_info", "node", "run", "gpu", "host", "cpu"]
Values = Iterable[tuple[tuple[str, ...], Column]]

RANK = ("run", "rank", "node")
NODE = ("run", "node")
RUN = ("run",)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One family. ``labels`` are its own, beyond those that its scope gives every series."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    scope: Scope = "rank"
    labels: tuple[str, ...] = ()
    values: Callable[[Any], Values]


RANK_INFO = (*RANK, "local_rank", "gpu", "UUID", "device_name", "backend", "strategy")
RUN_INFO = ("model", "parameters", "dtype", "world_size", "tokens_per_step", "unit", "flops_convention")


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What MFU divides by, and where it was read."""

    flops: float
    dtype: str
    source: Literal["datasheet", "measured", "configured"]


@dataclass(kw_only=True)
class Job:
    """The ranks of one process, as the metric table sees them."""

    totals: Totals
    memory_bytes: Sequence[Mapping[str, float]]
    """Per rank by kind: allocated, reserved, peak, parameters, gradients, optimizer; only those that are known."""
    run_info: tuple[str, ...]
    """In the order of ``RUN_INFO``."""
    peak: Peak | None = None
    """None when the device's peak is unknown: MFU is then absent."""
    version: str = "unknown"
    per_rank_histogram: bool = False
    current_phase: tuple[Column, Column] | None = None
    """Per rank, the index of the phase entered last and when it was entered (seconds since the epoch)."""
    overhead_seconds: float | None = None
    """That the library itself took in the training loop."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """How often each part of the library failed; training went on."""


def listed(column: Column) -> list[Any]:
    """A column as a list of Python numbers."""
    values: list[Any] = column.tolist() if hasattr(column, "tolist") else list(column)
    return values


def _every(job: Job, value: Any) -> Column:
    """A value that all ranks have; a column is one already, and what nobody knows stays None."""
    return value if value is None or hasattr(value, "__len__") else [value] * len(job.memory_bytes)


def _one(value: float | None) -> Values:
    if value is not None:
        yield (), [value]


def _some(column: Column | None) -> Values:
    if column is not None:
        yield (), column


def _phases(rows: Any) -> Values:
    for phase, column in zip(PHASES, rows, strict=True):
        yield (phase,), column


def _current_phase(job: Job) -> Values:
    now = job.current_phase
    if now is not None:
        for index, phase in enumerate(PHASES):
            yield (phase,), [int(entered == index) for entered in listed(now[0])]


def _current_phase_started(job: Job) -> Values:
    now = job.current_phase
    return _some(now[1] if now else None)


def _durations(job: Job) -> Values:
    """Cumulative counts by upper bound, then the sum and the count."""
    rows = list(accumulate(map(listed, job.totals.duration_counts()), _added))
    for bound, column in zip((*map(str, STEP_SECONDS_BOUNDS), "+Inf"), rows, strict=True):
        yield (bound,), column
    yield ("sum",), list(map(sum, zip(*map(listed, job.totals.phase_seconds), strict=True)))
    yield ("count",), rows[-1]


def _added(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]


def _memory(job: Job) -> Values:
    for kind in ("allocated", "reserved", "peak", "parameters", "gradients", "optimizer"):
        yield (kind,), [known.get(kind) for known in job.memory_bytes]


def _peak(job: Job) -> Values:
    if job.peak:
        yield (job.peak.dtype, job.peak.source), _every(job, job.peak.flops)


def _mfu(job: Job) -> Values:
    rate = job.totals.flops_per_second()
    if job.peak and rate is not None:
        yield (), [value / job.peak.flops for value in listed(rate)]


TRAINING: tuple[Metric, ...] = (
    Metric(
        name="training_steps_total", kind="counter", help="Optimizer steps finished.",
        values=lambda job: _some(_every(job, job.totals.steps)),
    ),
    Metric(
        name="training_step_duration_seconds", kind="histogram", scope="node", labels=("le",),
        help="Wall time from one step's start to the next one's, over all ranks of the node.",
        values=lambda job: () if job.per_rank_histogram else _node_durations(job),
    ),
    Metric(
        name="training_step_duration_seconds", kind="histogram", labels=("le",),
        help="Wall time from one step's start to the next one's.",
        values=lambda job: _durations(job) if job.per_rank_histogram else (),
    ),
    Metric(
        name="training_step_last_duration_seconds", kind="gauge", help="The last step's duration on this rank.",
        values=lambda job: _some(job.totals.last_duration),
    ),
    Metric(
        name="training_phase_seconds_total", kind="counter", labels=("phase",),
        help="Wall time by phase. The phases add up to the sum of the step durations.",
        values=lambda job: _phases(job.totals.phase_seconds),
    ),
    Metric(
        name="training_allreduce_floor_seconds", kind="gauge",
        help="Smallest exposed all-reduce over the last 64 steps: transfer without waiting.",
        values=lambda job: _some(job.totals.floor()),
    ),
    Metric(
        name="training_collective_seconds_total", kind="counter", labels=("collective",),
        help="Exposed seconds in collectives, waiting and transfer; together they are the phase allreduce.",
        values=lambda job: (((kind,), column) for kind, column in job.totals.collective_seconds.items()),
    ),
    Metric(
        name="training_tokens_total", kind="counter", help="Tokens consumed by this rank.",
        values=lambda job: _some(_every(job, job.totals.tokens)),
    ),
    Metric(
        name="training_model_flops_total", kind="counter",
        help="Model FLOPs done by this rank, recomputation excluded.",
        values=lambda job: _some(_every(job, job.totals.flops)),
    ),
    Metric(
        name="training_peak_flops", kind="gauge", labels=("dtype", "source"),
        help="The peak FLOP/s of this rank's device that MFU divides by.", values=_peak,
    ),
    Metric(
        name="training_mfu_ratio", kind="gauge",
        help="Model FLOPs by wall time and peak, over the last 64 steps.", values=_mfu,
    ),
    Metric(
        name="training_last_step_timestamp_seconds", kind="gauge", help="When this rank's last step ended.",
        values=lambda job: _some(job.totals.last_ended),
    ),
    Metric(
        name="training_current_phase", kind="gauge", labels=("phase",), help="1 for the phase entered last, else 0.",
        values=_current_phase,
    ),
    Metric(
        name="training_current_phase_started_timestamp_seconds", kind="gauge", help="When that phase was entered.",
        values=_current_phase_started,
    ),
    Metric(
        name="training_local_gradient_norm", kind="gauge",
        help="L2 norm of this rank's own gradient of the last step, before the reduction; where the loop provides it.",
        values=lambda job: _some(job.totals.local_gradient_norm),
    ),
    Metric(
        name="training_memory_bytes", kind="gauge", labels=("kind",), help="Device memory of this rank, by kind.",
        values=_memory,
    ),
    Metric(
        name="training_rank_info", kind="gauge", scope="rank_info",
        help="Always 1: this rank's device and backend. Joins to GPU metrics by UUID.",
        values=lambda job: _some(_every(job, 1)),
    ),
    Metric(
        name="training_run_info", kind="gauge", scope="run", labels=RUN_INFO,
        help="Always 1: what is trained. Parameters counts the model's weights; tokens_per_step is per rank.",
        values=lambda job: [(job.run_info, [1])],
    ),
    Metric(
        name="training_global_step", kind="gauge", scope="run",
        help="Number of the last step from the beginning of training, also over restarts where the loop tells it.",
        values=lambda job: _one(job.totals.run.step),
    ),
    Metric(
        name="training_loss", kind="gauge", scope="run", help="Loss of the last step.",
        values=lambda job: _one(job.totals.run.loss),
    ),
    Metric(
        name="training_gradient_norm", kind="gauge", scope="run",
        help="L2 norm of the reduced gradient of the last step, before clipping.",
        values=lambda job: _one(job.totals.run.gradient_norm),
    ),
    Metric(
        name="training_learning_rate", kind="gauge", scope="run", help="Learning rate of the last step.",
        values=lambda job: _one(job.totals.run.learning_rate),
    ),
    Metric(
        name="training_gradient_clipped_total", kind="counter", scope="run", help="Steps whose gradient was clipped.",
        values=lambda job: _one(job.totals.run.clipped),
    ),
    Metric(
        name="training_gradient_out_of_band_total", kind="counter", scope="run",
        help="Steps whose gradient norm lay outside the configured band.",
        values=lambda job: _one(job.totals.run.out_of_band),
    ),
    Metric(
        name="training_nonfinite_steps_total", kind="counter", scope="run",
        help="Steps whose loss or gradient norm was NaN or infinite.",
        values=lambda job: _one(job.totals.run.nonfinite),
    ),
    Metric(
        name="training_checkpoints_total", kind="counter", scope="run", help="Checkpoints written.",
        values=lambda job: _one(job.totals.run.checkpoints),
    ),
    Metric(
        name="training_last_checkpoint_timestamp_seconds", kind="gauge", scope="run",
        help="When the last checkpoint was finished.",
        values=lambda job: _one(job.totals.run.last_checkpoint),
    ),
    Metric(
        name="stepscope_dropped_steps_total", kind="counter",
        help="Steps that this rank finished but that were not recorded.",
        values=lambda job: _some(_every(job, job.totals.dropped)),
    ),
    Metric(
        name="stepscope_step_overhead_seconds_total", kind="counter",
        help="Seconds that the library itself took in this rank's training loop.",
        values=lambda job: () if job.overhead_seconds is None else _some(_every(job, job.overhead_seconds)),
    ),
    Metric(
        name="stepscope_errors_total", kind="counter", labels=("part",),
        help="Failures of the library's parts on this rank. Training went on; what that part publishes is absent.",
        values=lambda job: (((part,), _every(job, count)) for part, count in job.errors.items()),
    ),
    Metric(
        name="stepscope_build_info", kind="gauge", scope="node", labels=("version",),
        help="Always 1: the version of Stepscope that publishes this node.",
        values=lambda job: [((job.version,), [1])],
    ),
)  # fmt: skip
"""Read from a ``Job``."""


def _node_durations(job: Job) -> Values:
    for labels, column in _durations(job):
        yield labels, [sum(column)]


REFEREE: tuple[Metric, ...] = (
    Metric(
        name="training_critical_path_seconds_total", kind="counter", scope="run", labels=("phase",),
        help="The last arriver's lap by phase. The phases add up to the wall time.",
        values=lambda referee: _phases([[seconds] for seconds in referee.path_seconds]),
    ),
    Metric(
        name="training_late_steps_total", kind="counter", help="Laps in which this rank arrived last.",
        values=lambda referee: _some(referee.late_steps),
    ),
    Metric(
        name="training_late_seconds_total", kind="counter", labels=("phase",),
        help="Seconds by which this rank, arriving last, was later than the median of the others, by phase.",
        values=lambda referee: _phases(referee.late_seconds),
    ),
    Metric(
        name="training_late_node_seconds_total", kind="counter", scope="node", labels=("phase",),
        help="The same for nodes: the last arriver's node at its median rank, against the median of the other nodes.",
        values=lambda referee: _phases(referee.late_node_seconds),
    ),
    Metric(
        name="training_barrier_wait_seconds_total", kind="counter",
        help="Seconds that this rank waited in collectives for the last arriver, transfer excluded.",
        values=lambda referee: _some(referee.wait_seconds),
    ),
    Metric(
        name="training_referee_steps_total", kind="counter", scope="run", labels=("outcome",),
        help="Laps by outcome.",
        values=lambda referee: (((outcome,), [referee.outcomes[outcome]]) for outcome in OUTCOMES),
    ),
)  # fmt: skip
"""Read from a ``Referee``."""
