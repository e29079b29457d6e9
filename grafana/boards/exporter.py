"""8: the exporter itself, and what carries its metrics."""

from __future__ import annotations

from board import dashboard, to
from meaning import BAD, COUNT_STEPS, GOOD, HIGHEST, LINE, MIDDLE, PLAIN, REFERENCE, SHADES, WARN, Json, steps
from panels import bars, fixed, named, rows, stat, target, timeseries
from series import NO_REFEREE, NO_STEP, RANKS_QUERY, now
from tables import table

OF = '{run="$run"}'
LATELY = "[1h] @ end()"
TARGETS = (
    f"present_over_time(stepscope_build_info{OF}{LATELY}) or present_over_time(training_referee_steps_total{OF}{LATELY}) or "
    f"present_over_time(DCGM_FI_DEV_GPU_UTIL{LATELY}) and on (UUID) present_over_time(gpu:training_rank:info{OF}{LATELY}) or "
    f"present_over_time(node_memory_MemAvailable_bytes{LATELY}) and on (node) "
    f"present_over_time(node:training_ranks:count{OF}{LATELY})"
)
"""What has published series of the run, of its GPUs or of its hosts within the last hour: one that is down publishes nothing,
and a cluster's Prometheus scrapes much else."""
NOTHING_SCRAPED = "nothing of this run is scraped"
MOST_JOBS = 20
BY_RANK = "sum by (run, rank, node)"
OVERHEAD = (
    f"{BY_RANK} (rate(stepscope_step_overhead_seconds_total{OF}[1m])) / {BY_RANK} (rate(training_steps_total{OF}[1m]))"
)
SIMULATED = "no step of a real loop ends now"
OUTCOMES = {"complete": GOOD, "incomplete": WARN, "dropped": BAD, "unsupported": REFERENCE}


def ours(series: str) -> str:
    """Of a series that each target has, those of the run's own."""
    return f"({series} and on (job, instance) ({TARGETS}))"


def _numbers() -> tuple[Json, ...]:
    return (
        stat("Targets up", "Of all that published series of this run, its GPUs or its hosts within the last hour. One that is down "
             "is a dead node, or a process that ended.",
             target(f"avg({ours('up')})", "up", instant=True), unit="percentunit", decimals=0, min=0, max=1, size=36,
             color={"mode": "thresholds"}, thresholds=steps((None, PLAIN), (0, BAD), (1, GOOD)), noValue=NOTHING_SCRAPED),
        stat("Samples per scrape", "Of one round over these targets.",
             target(f"sum({ours('scrape_samples_scraped')})", "samples", instant=True), unit="short", decimals=1, size=36,
             color=fixed(PLAIN), noValue=NOTHING_SCRAPED),
        stat("Series", "That Prometheus holds in memory: everybody's, recorded ones and its own included.",
             target("sum(prometheus_tsdb_head_series)", "series"), unit="short", decimals=1, color=fixed(PLAIN)),
        stat("Steps not recorded", "Steps of the last ten minutes that finished but were dropped because a queue was full. "
             "Training never waits for the exporter; it loses the sample instead.",
             target(now(f"sum(increase(stepscope_dropped_steps_total{OF}[10m]))", RANKS_QUERY), "steps"), unit="none", decimals=0,
             color={"mode": "thresholds"}, thresholds=COUNT_STEPS, noValue=NO_STEP),
        stat("Overhead per step, mean", "Time that the library takes in the training loop, mean of all ranks. Goal: tens of "
             "microseconds.",
             target(now(f"avg({OVERHEAD})", RANKS_QUERY), "overhead"), unit="s", decimals=1, color=fixed(PLAIN), noValue=SIMULATED),
        stat("Simulation speed",
             "Simulated by elapsed time. Below 100 % this machine cannot keep up with the simulated job: choose a smaller one.",
             target(now("max(lab_speed_ratio)", "lab_speed_ratio"), "pace"), unit="percentunit", decimals=0,
             color={"mode": "thresholds"}, thresholds=steps((None, PLAIN), (0, BAD), (0.98, GOOD)), noValue="not simulated"),
    )  # fmt: skip


def exporter() -> Json:
    duration = timeseries(
        "Scrape duration, by job",
        "The slowest target of each job. It must stay well below the scrape interval of 5 s.",
        target(f"topk({MOST_JOBS}, max by (job) ({ours('scrape_duration_seconds')}))", "{{job}}"), unit="s", min=0,
        noValue=NOTHING_SCRAPED, color=SHADES,
    )  # fmt: skip
    samples = timeseries(
        "Samples per scrape, by job",
        "What all targets of a job publish. It grows with ranks, nodes and phases, and with nothing else.",
        target(f"topk({MOST_JOBS}, sum by (job) ({ours('scrape_samples_scraped')}))", "{{job}}"), unit="short", min=0,
        stacked=True, noValue=NOTHING_SCRAPED, color=SHADES,
    )  # fmt: skip
    overhead = timeseries(
        "Overhead per step",
        "Time that the library takes in the training loop: the worst rank, and the mean.",
        target(f"max({OVERHEAD})", "worst rank"), target(f"avg({OVERHEAD})", "mean"), unit="s", min=0, noValue=SIMULATED,
        overrides=[named("worst rank", color=fixed(HIGHEST)), named("mean", color=fixed(MIDDLE))],
    )  # fmt: skip
    laps = timeseries(
        "Steps that the referee judged, by outcome",
        "Per second. Complete ones tell the critical path. Incomplete: a rank's record was missing. Dropped: records "
        "came too late. Unsupported: this kind of parallelism names no culprit.",
        target(f"sum by (outcome) (rate(training_referee_steps_total{OF}[1m]))", "{{outcome}}"), unit="short", min=0,
        noValue=NO_REFEREE, overrides=[named(outcome, color=fixed(colour)) for outcome, colour in OUTCOMES.items()],
    )  # fmt: skip
    evaluation = bars(
        "Rule evaluation, by group",
        "How long the last evaluation took. Recorded series are what dashboards and alerts read; together they must stay well "
        "below the interval of 5 s.",
        target(f"topk({MOST_JOBS}, sum by (rule_group) (label_replace(prometheus_rule_group_last_duration_seconds"
               '{rule_group=~".*;training.*"}, "rule_group", "$1", "rule_group", ".*;(.*)")))', "{{rule_group}}", instant=True),
        unit="s", min=0, max=1, decimals=1, noValue="no rule of ours is evaluated", color=fixed(LINE),
    )  # fmt: skip
    collectors = timeseries(
        "Collectors",
        "How long each collector of GPUs and hosts took, the slowest process.",
        target(f"max by (collector) ({ours('stepscope_collector_duration_seconds')})", "{{collector}}"), unit="s", min=0,
        color=SHADES, noValue="no collector of ours runs: a simulated job, or dcgm-exporter and node_exporter",
    )  # fmt: skip
    broken = table(
        "What failed",
        "Collectors that did not succeed at the last scrape, and parts of the library that failed on a rank in this range; "
        f"at most {MOST_JOBS} of each. Training went on; what they publish is absent.",
        rows(f"topk({MOST_JOBS}, {ours('stepscope_collector_success')} == 0)"),
        rows(f"topk({MOST_JOBS}, increase(stepscope_errors_total{OF}[$__range]) > 0)"), unit="none",
        noValue="nothing is known to have failed",
        columns={"instance": "Instance", "collector": "Collector", "part": "Part", "rank": "Rank", "Value #B": "Failures"},
    )  # fmt: skip
    targets = table(
        "Targets down",
        "Not scraped at the last attempt, though they published series of this run, its GPUs or its hosts within the last hour; "
        f"at most {MOST_JOBS}.",
        rows(f"topk({MOST_JOBS}, {ours('up')} == 0)"), unit="none", noValue="no target is known to be down",
        columns={"job": "Job", "instance": "Instance"},
    )  # fmt: skip
    return dashboard(
        "exporter",
        "8 · The exporter itself",
        "What observing costs, and whether it works: overhead, lost samples, scrapes, rules.",
        (
            (4, tuple((4, number) for number in _numbers())),
            (10, ((9, duration), (9, samples), (6, ((5, overhead), (5, collectors))))),
            (11, ((12, laps), (6, evaluation), (6, ((6, broken), (5, targets))))),
        ),
        [],
        onward=to("mirage"),
    )  # fmt: skip
