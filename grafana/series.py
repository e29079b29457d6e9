"""The series that more than one dashboard reads, and how they are chosen, joined and ordered."""

from __future__ import annotations

from meaning import CHOSEN, HIGHEST, LOWEST, MIDDLE, Json
from panels import fixed, matching, named, target

OF = '{run="$run",node=~"$node"}'
CHOSEN_RANK = '{run="$run",rank="$rank"}'
UTILIZATION_QUERY = 'run:gpu_utilization:ratio_avg1m{run="$run"}'
MFU_QUERY = 'run:training_mfu:ratio_rate1m{run="$run"}'
STEP_QUERY = 'run:training_step_seconds:rate1m{run="$run"}'
USEFUL_QUERY = 'run:training_phase_share:rate1m{run="$run",phase=~"forward|backward"}'
"""Of the mean rank's step, by phase."""
LOST_QUERY = 'run:training_lost_gpus:total{run="$run"}'
RANKS_QUERY = 'run:training_ranks:count{run="$run"}'
LARGEST_PICTURE = 256
"""Rows of a heatmap or a table; a larger job shows its worst ranks."""
WORST = 10
STALLED = 'run:training_lost_gpus:by_phase{run="$run",phase="stalled"}'
"""There while no step ends, of a run that a referee judges."""
NO_REFEREE = "no step is judged"
"""None ends, or the run has no referee."""
NO_GPU = "no GPU of this run is read"
NO_STEP = "no step ends now"
NO_TOKENS = "no tokens are counted"

GPUS = f"gpu:training_rank:info{OF}"
"""One of each UUID: two ranks on one GPU would fail a join."""
WIRED = '{device!~"lo|veth.*|docker.*|br-.*|virbr.*|cni.*|flannel.*|cali.*"}'
"""Network interfaces that lead out of the machine."""
JOINED = f"on (UUID) group_left (run, rank, node) {GPUS}"


def now(expr: str, series: str = "") -> str:
    """With its past, for a number's trend, where ``series``, by default the expression itself, has a value at the end of the
    range; nothing where it has ended: the last value would look like that of now."""
    return f"({expr} and on () {series or expr} @ end())"


USEFUL_NOW = f"sum({now(USEFUL_QUERY)}) or 0 * sum({STALLED})"


def counted(series: str) -> str:
    """The series where it was ever above 0 in the range: of a job that does not say its tokens it always stands there."""
    return f"({series} and on () max_over_time({series}[$__range] @ end()) > 0)"


def ordered(expr: str) -> str:
    """The query's series by rank, in numeric order: Prometheus sorts by text, and 10 would come before 2."""
    padded = f'label_replace({expr}, "order", "0000$1", "rank", "(.+)")'
    return f'sum by (order, rank) (label_replace({padded}, "order", "$1", "order", ".*(.{{5}})"))'


def every_rank(series: str, *, worst_by: str) -> str:
    """A series by rank, of every rank of a job of up to 256; of a larger one of the ten that stand out most over the range shown.

    ``worst_by`` is a recorded series by rank, of which more is worse. Who is shown is decided once, not at every step.
    """
    ranks = f"max_over_time({RANKS_QUERY}[$__range] @ end())"
    everyone = f"present_over_time({worst_by}[$__range] @ end()) and on (run) {ranks} <= {LARGEST_PICTURE}"
    worst = f"topk({WORST}, avg_over_time({worst_by}[$__range] @ end()))"
    return f"({series} and on (run, rank) ({everyone} or {worst}))"


def spread(series: str) -> list[Json]:
    """Four lines, whatever the size of the job: the largest, the median, the smallest, and the one chosen above."""
    return [
        target(f"max by (run) ({series}{OF})", "highest"),
        target(f"quantile by (run) (0.5, {series}{OF})", "median"),
        target(f"min by (run) ({series}{OF})", "lowest"),
        target(f"max by (run) ({series}{CHOSEN_RANK})", "rank $rank"),
    ]


SPREAD_COLOURS = [
    named("highest", color=fixed(HIGHEST)),
    named("median", color=fixed(MIDDLE)),
    named("lowest", color=fixed(LOWEST)),
    matching("/^rank [0-9]+$/", color=fixed(CHOSEN), custom__lineWidth=3),
]
