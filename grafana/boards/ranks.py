"""2: who holds everyone up?"""

from __future__ import annotations

from board import NODE, RANK, dashboard, to
from meaning import (
    BAD,
    CULPRIT_SHARE,
    GOOD,
    PHASE_COLOURS,
    PLAIN,
    THROTTLE_REASONS,
    WARN,
    Json,
    steps,
)
from panels import coloured, fixed, heatmap, named, rows, stat, target, timeseries
from series import (
    JOINED,
    LARGEST_PICTURE,
    NO_REFEREE,
    NO_STEP,
    OF,
    RANKS_QUERY,
    SPREAD_COLOURS,
    STEP_QUERY,
    WORST,
    every_rank,
    now,
    ordered,
    spread,
)
from tables import gauge, stacked_bars, table
from verdict import verdict

LAG = f"rank:training_lag_seconds:per_step_rate1m{OF}"
COMPUTE = "rank:training_compute_seconds:per_step_rate1m"


def _share_of_step(series: str) -> str:
    return f"{series} / on (run) group_left () {STEP_QUERY}"


def _of_ranks_shown(series: str) -> str:
    return every_rank(f"{series}{OF}", worst_by=LAG)


def _picture(title: str, description: str, share: str, *, high: float, value: str) -> Json:
    """In percent: Grafana's colours need a scale that is longer than 1."""
    query = target(ordered(f"100 * clamp_min({share}, 0)"), "{{rank}}")
    return heatmap(title, description, query, unit="percent", low=0, high=high, axis="rank", value=value)


def _pictures() -> tuple[Json, ...]:
    excess = _of_ranks_shown("rank:training_compute_excess:ratio_rate1m")
    waiting = _share_of_step(_of_ranks_shown("rank:training_wait_seconds:per_step_rate1m"))
    lag = _share_of_step(_of_ranks_shown("rank:training_lag_seconds:per_step_rate1m"))
    return (
        _picture("Compute, against the median rank", "Forward and backward of each rank, from its own median upwards; "
                 "above 256 ranks the ten worst. Healthy: dark everywhere. A bright row is a slow GPU; one bright moment is "
                 "a hiccup.", excess, high=30, value="above the median"),
        _picture("Waiting for the others", "Share of the step that each rank waits in all-reduce, transfer excluded. When "
                 "one rank is late, its row stays dark and all others turn bright: the victims are bright.",
                 waiting, high=40, value="waiting"),
        _picture("Lag: arriving later than the median", "Share of the step by which each rank arrives in the collective "
                 "after the median rank. The bright row is the one that all wait for.",
                 lag, high=30, value="lag"),
    )  # fmt: skip


def _by_rank(expr: str) -> Json:
    """One column of the table, for the ranks that lag most where the job has more than the table can show."""
    return rows(f"max by (rank, node) ({expr} and on (run, rank) topk({LARGEST_PICTURE}, {LAG}))")


def _per_step(total: str) -> str:
    """Of a counter by rank. Summed on both sides: a process that has moved is there twice for as long as the window."""
    by_rank = "sum by (run, rank, node)"
    return f"{by_rank} (rate({total}[1m])) / {by_rank} (rate(training_steps_total{OF}[1m]))"


def _ranks() -> Json:
    return table(
        "All ranks, by their lag",
        "Per step, over the last minute; up to 256 ranks. Others waited: share of the run's time. Came last: share of steps. "
        "The culprit hardly waits; its other columns say why: data wait, or compute at a lower clock, hot, under a lowered power "
        "limit, or throttled otherwise than the rest (a power cap on all is normal); where none differs, test the GPU alone.",
        _by_rank(LAG),
        _by_rank(f"sum by (run, rank, node) (rank:training_late_share:rate1m{OF})"),
        _by_rank(f"rank:training_late_steps_excess:rate1m{OF} + on (run) group_left () 1 / {RANKS_QUERY}"),
        _by_rank(f"{COMPUTE}{OF}"),
        _by_rank(f"rank:training_wait_seconds:per_step_rate1m{OF}"),
        _by_rank(_per_step('training_phase_seconds_total{run="$run",node=~"$node",phase="data_wait"}')),
        _by_rank(_per_step(f"training_phase_seconds_total{OF}")),
        _by_rank(f"rank:gpu_sm_clock_hertz:avg1m{OF}"),
        _by_rank(f"rank:gpu_temperature_celsius:avg1m{OF}"),
        _by_rank(f"rank:gpu_power_limit:ratio{OF}"),
        _by_rank(f"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS * {JOINED}"),
        unit="s", decimals=1, sort="Lag", noValue=NO_STEP,
        columns={"rank": "Rank", "node": "Node", "Value #A": "Lag", "Value #B": "Others waited", "Value #C": "Came last",
                 "Value #D": "Compute", "Value #E": "Waiting", "Value #F": "Data wait", "Value #G": "Step",
                 "Value #H": "Clock", "Value #I": "Temp.", "Value #J": "Power limit", "Value #K": "Throttled by"},
        overrides=[
            named("Rank", unit="none", decimals=0, custom__width=48, links=[to("gpus", "Its GPU and host", rank="${__value.raw}")]),
            named("Node", custom__width=75, links=[to("gpus", "GPUs and hosts of this node", node="${__value.raw}")]),
            gauge("Others waited", high=0.4, custom__width=112),
            named("Came last", unit="percentunit", decimals=0, custom__width=80),
            *(named(column, custom__width=78) for column in ("Lag", "Compute", "Waiting", "Data wait", "Step")),
            named("Clock", unit="hertz", decimals=2, custom__width=82),
            named("Temp.", unit="celsius", decimals=0, custom__width=60),
            named("Power limit", unit="percentunit", decimals=0, custom__width=88),
            named("Throttled by", unit="none", mappings=THROTTLE_REASONS, custom__width=115),
        ],
    )  # fmt: skip


def ranks() -> Json:
    concentration = stat(
        "Share of lateness held by one rank",
        "Share of all lateness that one rank has, the one with most. Near 100 %: one culprit. Near 1 in N: everyone in "
        "turn, as with jitter or starved loaders. Read it only where much is late.",
        target(now('run:training_late_concentration:max_rank{run="$run"}'), "of all late seconds"), unit="percentunit",
        noValue=NO_REFEREE,
        decimals=0, min=0, max=1, color=fixed(PLAIN),
    )  # fmt: skip
    late = stat(
        "Time lost to lateness",
        "Share of the run's time by which the last arriver was later than the median of the others, whoever it was. "
        "Healthy: a few percent of jitter, up to 4.5 % of a thousand ranks'.",
        target(now('run:training_late_share:rate1m{run="$run"}'), "late"), unit="percentunit", noValue=NO_REFEREE, decimals=1,
        min=0, color={"mode": "thresholds"},
        thresholds=steps((None, PLAIN), (0, GOOD), (0.75 * CULPRIT_SHARE, WARN), (CULPRIT_SHARE, BAD)),
    )  # fmt: skip
    causes = stacked_bars(
        "In which phase they are late",
        "The ten ranks for which most is waited, as a share of the run's time, by the phase in which they are late. One "
        "tall bar is a culprit, and its colour the cause.",
        rows(f"rank:training_late_share:rate1m{OF} and on (run, rank) "
             f"topk({WORST}, sum by (run, rank) (rank:training_late_share:rate1m{OF}))"),
        unit="percentunit", row="rank", column="phase", min=0, decimals=1, axis_at_least=0.05, noValue=NO_REFEREE,
        overrides=coloured(PHASE_COLOURS),
    )  # fmt: skip
    compute = timeseries(
        "The spread of compute",
        "Forward and backward per step: the slowest rank, the median, the fastest, and the one chosen above. Healthy: a "
        "narrow band. A slow GPU lifts the highest line alone.",
        *spread(COMPUTE), unit="s", decimals=1, overrides=SPREAD_COLOURS,
    )  # fmt: skip
    return dashboard(
        "ranks",
        "2 · Ranks: who holds everyone up?",
        "The rank that complains is usually the victim: find the one that all others wait for, and why it is late.",
        (
            (3, ((10, verdict(30)), (5, late), (5, concentration), (4, _count()))),
            (10, tuple((8, picture) for picture in _pictures())),
            (12, ((14, _ranks()), (10, ((6, causes), (6, compute))))),
        ),
        [NODE, RANK],
        onward=to("gpus"),
    )  # fmt: skip


def _count() -> Json:
    return stat("Ranks", "Ranks that publish steps. Fewer than the job has: some died, or are not scraped.",
                target(now(RANKS_QUERY), "ranks"), unit="none", decimals=0, color=fixed(PLAIN), noValue="none")  # fmt: skip
