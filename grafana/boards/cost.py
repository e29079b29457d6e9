"""6: what waiting costs."""

from __future__ import annotations

from board import NO_MONEY, PRICE, PRICED, dashboard, to
from meaning import GOOD, LINE, LOSS_COLOURS, LOST_PERCENT_STEPS, LOST_SHARE_STEPS, PLAIN, Json
from panels import bars, coloured, fixed, named, scaled_by, stat, target, timeseries
from series import LOST_QUERY, NO_REFEREE, NO_TOKENS, RANKS_QUERY, counted, now

BY_PHASE = 'run:training_lost_gpus:by_phase{run="$run"}'
LOST_SHARE = f"{LOST_QUERY} / on (run) {RANKS_QUERY}"
PER_GPU_HOUR = 'run:training_tokens_per_gpu_hour:rate1m{run="$run"}'
PER_JOULE = 'run:training_tokens_per_joule:rate1m{run="$run"}'
NO_TOKENS_OR_ENERGY = "no tokens are counted, or no energy is read"
FILLED = named("stalled", custom__lineWidth=0)
"""It comes and goes: stacked, its line would run along the top of all others where it is not."""
SIZES = (8, 64, 1024, 16_384)


def in_range(series: str) -> str:
    """GPU-hours: the number of GPUs every 15 s, times as much of an hour. A hole counts nothing."""
    return f"sum_over_time({series}[$__range:15s]) / 240"


def _numbers() -> tuple[Json, ...]:
    return (
        stat("GPUs lost now", "GPU-equivalents that do nothing, against this run's own best five minutes of the last six hours.",
             target(now(LOST_QUERY), "GPUs lost"), target(RANKS_QUERY, "all"), transformations=[scaled_by("B", "all")],
             unit="none", noValue=NO_REFEREE, decimals=1, min=0, color={"mode": "thresholds"}, thresholds=LOST_PERCENT_STEPS,
             links=[to("ranks")]),
        stat("Share lost now",
             "Of all GPUs of the job, whatever the cause. Red from the share on at which one rank alone would be accused.",
             target(now(LOST_SHARE, LOST_QUERY), "lost"), unit="percentunit", noValue=NO_REFEREE, decimals=1, min=0, max=1,
             color={"mode": "thresholds"}, thresholds=LOST_SHARE_STEPS),
        stat("GPU-hours lost in this range", "The loss added up over the time range chosen above.",
             target(in_range(LOST_QUERY), "GPU-hours", instant=True), unit="none", noValue=NO_REFEREE, decimals=1, size=36,
             color=fixed(PLAIN)),
        stat("Money lost in this range", "GPU-hours lost, times the price in the box above, in its currency.",
             target(f"{in_range(LOST_QUERY)} * {PRICED}", "lost", instant=True), unit="locale", decimals=0,
             size=24, noValue=NO_MONEY, color=fixed(PLAIN)),
        stat("Tokens per GPU-hour now", "Useful output per hour paid. It falls with every fault that costs time.",
             target(now(counted(PER_GPU_HOUR), PER_GPU_HOUR), "tokens"), unit="short", decimals=1, min=0,
             color=fixed(PLAIN), noValue=NO_TOKENS),
        stat("Tokens per joule now", "Useful output per energy, from the GPUs' energy counters. Waiting GPUs draw less, so it "
             "falls less than tokens per hour.",
             target(now(counted(PER_JOULE), PER_JOULE), "tokens"), unit="none", decimals=2, min=0,
             color=fixed(PLAIN), noValue=NO_TOKENS_OR_ENERGY),
    )  # fmt: skip


def cost() -> Json:
    over_time = timeseries(
        "GPUs lost, by phase",
        "GPU-equivalents lost to each phase of the critical path beyond the run's best. Healthy: a thin line, with a "
        "peak at each checkpoint. The colour that fills is the phase that costs; the height what it costs, in GPUs.",
        target(BY_PHASE, "{{phase}}"), unit="none", noValue=NO_REFEREE, stacked=True, min=0, decimals=1,
        overrides=[*coloured(LOSS_COLOURS), FILLED], links=[to("ranks")],
    )  # fmt: skip
    total = bars(
        "GPU-hours lost in this range, by phase",
        "The graph beside it, added up. The longest bar is what to repair first.",
        target(f"sort_desc({in_range(BY_PHASE)})", "{{phase}}", instant=True), unit="none", noValue=NO_REFEREE, decimals=2, min=0,
        overrides=coloured(LOSS_COLOURS),
    )  # fmt: skip
    efficiency = timeseries(
        "Efficiency against the run's own best",
        "Time that a step takes at its best, by the time that it takes. Healthy: 95 % and more, less for a minute at "
        "each checkpoint.",
        target(f"1 - {LOST_SHARE}", "efficiency"), unit="percentunit", noValue=NO_REFEREE, min=0, max=1,
        color=fixed(GOOD),
    )  # fmt: skip
    sizes = bars(
        "The same fault in a larger job",
        "GPUs that the present loss would cost at other sizes: one slow GPU holds up all others, however many they are, so the "
        "share stays and the loss grows. Faults that strike at random cost more than this.",
        *(target(f"{LOST_SHARE} * {size}", f"{size:,} GPUs", instant=True) for size in SIZES),
        unit="locale", decimals=0, min=0, noValue=NO_REFEREE, color=fixed(LINE),
    )  # fmt: skip
    tokens = timeseries(
        "Tokens per GPU-hour",
        "What an hour of one GPU buys.",
        target(counted(PER_GPU_HOUR), "tokens per GPU-hour"), unit="short", min=0, noValue=NO_TOKENS,
        color=fixed(LINE),
    )  # fmt: skip
    joules = timeseries(
        "Tokens per joule",
        "What a joule buys. It falls less than tokens per GPU-hour: a GPU that waits draws less, but it draws.",
        target(counted(PER_JOULE), "tokens per joule"), unit="none", min=0,
        noValue=NO_TOKENS_OR_ENERGY, color=fixed(LINE),
    )  # fmt: skip
    return dashboard(
        "cost",
        "6 · Cost of waiting",
        "Lost GPUs, by phase: what waiting costs, in GPUs, hours and, with a price, money.",
        (
            (4, tuple((4, number) for number in _numbers())),
            (11, ((16, over_time), (8, total))),
            (10, ((7, efficiency), (5, sizes), (6, tokens), (6, joules))),
        ),
        [PRICE],
        onward=to("step"),
        since="2h",
    )  # fmt: skip
