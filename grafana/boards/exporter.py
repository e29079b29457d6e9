"""8: the exporter itself, and what carries its metrics."""

from __future__ import annotations

from board import dashboard, to
from meaning import BAD, COUNT_STEPS, GOOD, HIGHEST, LINE, MIDDLE, PLAIN, REFERENCE, WARN, Json, steps
from panels import bars, fixed, named, rows, stat, target, timeseries
from tables import table

OF = '{run="$run"}'
JOBS = 'job!="prometheus"'
BY_RANK = "sum by (run, rank, node)"
OVERHEAD = (
    f"{BY_RANK} (rate(stepscope_step_overhead_seconds_total{OF}[1m])) / {BY_RANK} (rate(training_steps_total{OF}[1m]))"
)
SIMULATED = "none in a simulated loop"
OUTCOMES = {"complete": GOOD, "incomplete": WARN, "dropped": BAD, "unsupported": REFERENCE}


def _numbers() -> tuple[Json, ...]:
    return (
        stat("Targets up", "Of all targets that Prometheus scrapes. One that is down is a dead node, or a process that ended.",
             target("sum(up) / count(up)", "up"), unit="percentunit", decimals=0, min=0, max=1, color={"mode": "thresholds"},
             thresholds=steps((None, BAD), (1, GOOD))),
        stat("Samples per scrape", "Of one round over all targets, Prometheus aside.",
             target(f"sum(scrape_samples_scraped{{{JOBS}}})", "samples"), unit="short", decimals=1, color=fixed(PLAIN)),
        stat("Series", "That Prometheus holds in memory, recorded ones and its own included.",
             target("sum(prometheus_tsdb_head_series)", "series"), unit="short", decimals=1, color=fixed(PLAIN)),
        stat("Steps not recorded", "Steps of the last ten minutes that finished but were dropped because a queue was full. "
             "Training never waits for the exporter; it loses the sample instead.",
             target(f"sum(increase(stepscope_dropped_steps_total{OF}[10m]))", "steps"), unit="none", decimals=0,
             color={"mode": "thresholds"}, thresholds=COUNT_STEPS),
        stat("Overhead per step, mean", "Time that the library takes in the training loop, mean of all ranks. Goal: tens of "
             "microseconds.",
             target(f"avg({OVERHEAD})", "overhead"), unit="s", decimals=1, color=fixed(PLAIN), noValue=SIMULATED),
        stat("Simulation speed",
             "Simulated by elapsed time. Below 100 % this machine cannot keep up with the simulated job: choose a smaller one.",
             target("max(lab_speed_ratio)", "pace"), unit="percentunit", decimals=0, color={"mode": "thresholds"},
             thresholds=steps((None, PLAIN), (0, BAD), (0.98, GOOD)), noValue="not simulated"),
    )  # fmt: skip


def exporter() -> Json:
    duration = timeseries(
        "Scrape duration, by job",
        "The slowest target of each job. It must stay well below the scrape interval of 5 s.",
        target("max by (job) (scrape_duration_seconds)", "{{job}}"), unit="s", min=0,
    )  # fmt: skip
    samples = timeseries(
        "Samples per scrape, by job",
        "What all targets of a job publish. It grows with ranks, nodes and phases, and with nothing else.",
        target(f"sum by (job) (scrape_samples_scraped{{{JOBS}}})", "{{job}}"), unit="short", min=0, stacked=True,
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
        overrides=[named(outcome, color=fixed(colour)) for outcome, colour in OUTCOMES.items()],
    )  # fmt: skip
    evaluation = bars(
        "Rule evaluation, by group",
        "How long the last evaluation took. Recorded series are what dashboards and alerts read; together they must stay well "
        "below the interval of 5 s.",
        target('sort_desc(sum by (rule_group) (label_replace(prometheus_rule_group_last_duration_seconds, "rule_group", "$1", '
               '"rule_group", ".*;(.*)")))', "{{rule_group}}", instant=True),
        unit="s", min=0, max=1, decimals=1, color=fixed(LINE),
    )  # fmt: skip
    collectors = timeseries(
        "Collectors",
        "How long each collector of GPUs and hosts took, the slowest process.",
        target("max by (collector) (stepscope_collector_duration_seconds)", "{{collector}}"), unit="s", min=0,
        noValue="no collector of ours runs: a simulated job, or dcgm-exporter and node_exporter",
    )  # fmt: skip
    broken = table(
        "What failed",
        "Collectors that did not succeed at the last scrape, and parts of the library that failed on a rank in this range. "
        "Training went on; what they publish is absent.",
        rows("topk(128, stepscope_collector_success == 0)"),
        rows(f"topk(128, increase(stepscope_errors_total{OF}[$__range]) > 0)"), unit="none",
        noValue="nothing failed",
        columns={"instance": "Instance", "collector": "Collector", "part": "Part", "rank": "Rank", "Value #B": "Failures"},
    )  # fmt: skip
    targets = table(
        "Targets down",
        "Not scraped at the last attempt.",
        rows("topk(256, up == 0)"), unit="none", noValue="all targets are up", columns={"job": "Job", "instance": "Instance"},
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
