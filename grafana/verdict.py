"""Panels that more than one dashboard shows: the culprit in one line, and the series that they share."""

from __future__ import annotations

from board import to_ranks
from meaning import BAD, CHOSEN, HIGHEST, LOWEST, MIDDLE, PLAIN, Json, steps
from panels import fixed, matching, named, stat, target

UTILIZATION_QUERY = 'run:gpu_utilization:ratio_avg1m{run="$run"}'
MFU_QUERY = 'run:training_mfu:ratio_rate1m{run="$run"}'
STEP_QUERY = 'run:training_step_seconds:rate1m{run="$run"}'
LOST_QUERY = 'run:training_lost_gpus:total{run="$run"}'
RANKS_QUERY = 'run:training_ranks:count{run="$run"}'
LARGEST_PICTURE = 256
"""Rows of a heatmap or a table; a larger job shows its worst ranks."""
WORST = 10


def verdict(size: int) -> Json:
    """Rank or node, and the phase in which it is late; else that there is no single culprit."""
    return stat(
        "Who holds everyone up",
        "The rank, or else the node, that costs the run more than 8 % of its time and comes last far more often than its "
        "share, and the phase in which it is late. Late by turns, as with starved loaders or jitter, is nobody's fault.",
        target('topk(1, rank:training_culprit:share{run="$run"})', "rank {{rank}} on {{node}}: {{phase}}", instant=True),
        target('topk(1, node:training_culprit:share{run="$run"})', "{{node}}: {{phase}}", instant=True),
        target(
            'vector(0) unless on () rank:training_culprit:share{run="$run"} '
            'unless on () node:training_culprit:share{run="$run"}',
            "no single culprit", instant=True,
        ),
        unit="percentunit", text="name", size=size, color={"mode": "thresholds"},
        thresholds=steps((None, PLAIN), (0.01, BAD)), links=[to_ranks()],
    )  # fmt: skip


def ordered(expr: str) -> str:
    """The query's series by rank, in numeric order: Prometheus sorts by text, and 10 would come before 2."""
    padded = f'label_replace({expr}, "order", "0000$1", "rank", "(.+)")'
    return f'sum by (order, rank) (label_replace({padded}, "order", "$1", "order", ".*(.{{5}})"))'


def every_rank(expr: str, *, worst_by: str) -> str:
    """Every rank of a job of up to 256; of a larger one the ten that stand out most over the range shown.

    ``worst_by`` is a recorded series by rank, of which more is worse.
    """
    return ordered(
        f"{expr} and on (run) {RANKS_QUERY} <= {LARGEST_PICTURE} "
        f"or {expr} and on (run, rank) topk({WORST}, avg_over_time({worst_by}[$__range] @ end()))"
    )


def spread(series: str, *, chosen: str, unit: str = "rank") -> list[Json]:
    """Four lines, whatever the size of the job: the largest, the median, the smallest, and the one chosen above."""
    return [
        target(f"max by (run) ({series})", "highest"),
        target(f"quantile by (run) (0.5, {series})", "median"),
        target(f"min by (run) ({series})", "lowest"),
        target(f"max by (run) ({chosen})", f"{unit} $rank"),
    ]


SPREAD_COLOURS = [
    named("highest", color=fixed(HIGHEST)),
    named("median", color=fixed(MIDDLE)),
    named("lowest", color=fixed(LOWEST)),
    matching("/^rank [0-9]+$/", color=fixed(CHOSEN), custom__lineWidth=3),
]
