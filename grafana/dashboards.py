"""THE panel lists: every dashboard of the lab, and the program that writes them.

To add a panel: add it to a dashboard's rows. ``make generate`` writes the JSON; a test proves it is up to date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from panels import (
    BAD,
    GOOD,
    MFU,
    PHASE_COLOURS,
    PLAIN,
    UTILIZATION,
    WARN,
    Json,
    bars,
    coloured,
    dashboard,
    label_variable,
    named,
    placed,
    stat,
    steps,
    table,
    target,
    text,
    timeseries,
    variable,
)

RUN = label_variable("run", "Run", "label_values(training_steps_total, run)")
PRICE = variable("textbox", "price", "Price per GPU-hour", query="", current={"text": "", "value": ""}, options=[])
CONSOLE = variable("textbox", "console", "Console", query="http://127.0.0.1:8000", options=[], hide=2,
                   current={"text": "http://127.0.0.1:8000", "value": "http://127.0.0.1:8000"})  # fmt: skip

FAULT_LINKS = """\
Trigger one, and watch what moves and what does not:

**[straggler](${console}/#straggler)** · **[data_starvation](${console}/#data_starvation)** ·
**[gradient_explosion](${console}/#gradient_explosion)** · [storage_node_slow](${console}/#storage_node_slow) ·
[storage_outage](${console}/#storage_outage)

or `stepscope fault start straggler`. Stop all: [console](${console}/) or `stepscope fault stop`.
"""

UTILIZATION_QUERY = 'run:gpu_utilization:ratio_avg1m{run="$run"}'
MFU_QUERY = 'run:training_mfu:ratio_rate1m{run="$run"}'


def to_console(title: str) -> list[Json]:
    return [{"title": title, "url": "${console}/", "targetBlank": True}]


def mirage() -> Json:
    """1: what a newcomer sees first."""
    headline = timeseries(
        "Busy is not useful: GPU utilization against MFU",
        "Utilization says that a kernel was resident, MFU how much of the hardware's peak went into the model. The "
        "shaded gap is what utilization hides. Healthy on H100: MFU 36 to 48 %. Bad: MFU falls while utilization stays.",
        target(UTILIZATION_QUERY, "GPU utilization"),
        target(MFU_QUERY, "MFU"),
        target('run:training_critical_path_share:rate1m{run="$run",phase="data_wait"}', "data wait on the critical path"),
        unit="percentunit", min=0, max=1,
        overrides=[
            named("GPU utilization", color={"mode": "fixed", "fixedColor": UTILIZATION}, custom__fillBelowTo="MFU",
                  custom__fillOpacity=18, custom__lineWidth=3),
            named("MFU", color={"mode": "fixed", "fixedColor": MFU}, custom__lineWidth=3),
            named("data wait on the critical path", color={"mode": "fixed", "fixedColor": PHASE_COLOURS["data_wait"]}),
        ],
    )  # fmt: skip
    numbers = (
        stat("GPU utilization", "Share of the last minute in which a kernel was resident, mean of all GPUs. A GPU that "
             "waits in all-reduce counts as busy. It hardly ever falls, whatever is wrong.",
             target(UTILIZATION_QUERY, "GPU utilization"), unit="percentunit", decimals=1, min=0, max=1,
             color={"mode": "fixed", "fixedColor": UTILIZATION}),
        stat("MFU", "Model FLOPs utilization: useful FLOPs by peak. Healthy on H100 36 to 48 %; below 30 % somebody is "
             "paying for waiting.",
             target(MFU_QUERY, "MFU"), unit="percentunit", decimals=1, min=0, max=1,
             thresholds=steps((None, BAD), (0.3, WARN), (0.36, GOOD)), color={"mode": "thresholds"}),
        stat("Useful share of the step", "Forward and backward by wall time, mean of all ranks. Healthy: about 90 %. "
             "Waiting for others takes it away.",
             target('sum(run:training_phase_share:rate1m{run="$run",phase=~"forward|backward"})', "useful"),
             unit="percentunit", decimals=0, min=0, max=1, color={"mode": "thresholds"},
             thresholds=steps((None, BAD), (0.7, WARN), (0.85, GOOD))),
        stat("GPUs lost", "GPU-equivalents that do nothing, against this run's own best five minutes of the last six "
             "hours. Healthy: below one in thirty.",
             target('run:training_lost_gpus:total{run="$run"}', "GPUs lost"), unit="none", decimals=1, min=0,
             color={"mode": "thresholds"}, thresholds=steps((None, GOOD), (2, WARN), (5, BAD))),
        stat("Step", "Mean time from one step's start to the next one's. It rises with every fault that costs time.",
             target('run:training_step_seconds:rate1m{run="$run"}', "step"), unit="s", decimals=0,
             color={"mode": "fixed", "fixedColor": PLAIN}),
        stat("Cost of the loss per day", "GPUs lost, times 24 hours, times the price in the box above. Empty without a "
             "price: the loss is then in GPUs only.",
             target('run:training_lost_gpus:total{run="$run"} * 24 * (${price}e0)', "per day"), unit="short", decimals=0,
             noValue="no price", size=24, color={"mode": "fixed", "fixedColor": PLAIN}),
    )  # fmt: skip
    path = timeseries(
        "What the step waits for: the critical path by phase",
        "The lap of whoever arrived last, by phase: it adds up to the whole wall time. Healthy: forward and backward "
        "fill it. Read what has grown; all-reduce here is transfer alone, never waiting.",
        target('run:training_critical_path_share:rate1m{run="$run"}', "{{phase}}"),
        unit="percentunit", stacked=True, min=0, max=1, overrides=coloured(PHASE_COLOURS),
    )  # fmt: skip
    eating = bars(
        "What is eating the step",
        "GPUs lost to each phase of the critical path, beyond this run's best five minutes of the last six hours, the "
        "costliest first. Healthy: all near 0.",
        target('sort_desc(run:training_lost_gpus:by_phase{run="$run"})', "{{phase}}", instant=True),
        unit="none", decimals=1, min=0, overrides=coloured(PHASE_COLOURS), links=to_console("Open the console"),
    )  # fmt: skip
    verdict = stat(
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
        unit="percentunit", text="name", size=26, color={"mode": "thresholds"}, thresholds=steps((None, PLAIN), (0.01, BAD)),
    )  # fmt: skip
    late = table(
        "Who is late, and why",
        "Share of the run's time that others wait for this rank, by the phase in which it is late. One rank far above "
        "the rest is the culprit; many small ones are jitter or shared storage.",
        target('topk(5, rank:training_late_share:rate1m{run="$run"} > 0)', instant=True, table=True),
        unit="none", noValue="nobody is late",
        columns={"rank": "Rank", "node": "Node", "phase": "Late in", "Value": "Share of time"},
        overrides=[
            named("Share of time", custom__cellOptions={"type": "gauge", "mode": "basic"}, unit="percentunit",
                  decimals=1, max=0.5, min=0, color={"mode": "fixed", "fixedColor": BAD}),
        ],
    )  # fmt: skip
    alerts = table(
        "Alerts firing",
        "What the lab's rules say now. GpuUtilizationLow is an exhibit: see what it misses.",
        target('ALERTS{alertstate="firing",run="$run"}', instant=True, table=True),
        unit="none", noValue="No alert is firing",
        columns={"alertname": "Alert", "cause": "Cause", "severity": "Severity", "rank": "Rank", "node": "Node"},
        overrides=[
            named("Alert", links=[{"title": "Runbook", "url": "${console}/runbooks/${__value.text}", "targetBlank": True}]),
        ],
    )  # fmt: skip
    faults = text("Faults", "Links to the lab's console, which starts and stops faults.", FAULT_LINKS)
    utilization, mfu, useful, lost, step, cost = numbers
    rows = (
        (10, (
            (16, headline),
            (4, ((4, utilization), (3, useful), (3, step))),
            (4, ((4, mfu), (3, lost), (3, cost))),
        )),
        (10, ((11, path), (5, eating), (8, ((3, verdict), (7, late))))),
        (5, ((14, alerts), (10, faults))),
    )  # fmt: skip
    return dashboard(
        "stepscope-mirage",
        "1 · The mirage",
        "High GPU utilization, collapsing MFU: what a busy cluster really does.",
        placed(rows),
        [RUN, PRICE, CONSOLE],
    )


DASHBOARDS = {"mirage": mirage}
"""File name → dashboard."""


def write(folder: Path) -> list[Path]:
    """Write every dashboard's JSON; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, make in DASHBOARDS.items():
        file = folder / f"{name}.json"
        file.write_text(json.dumps(make(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        written.append(file)
    return written


if __name__ == "__main__":
    for file in write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "dashboards"):
        sys.stdout.write(f"{file}\n")
