"""1: what a newcomer sees first, and understands in ten seconds."""

from __future__ import annotations

from board import NO_MONEY, PRICE, PRICED, RANKS, dashboard, to, to_ranks
from buttons import buttons
from meaning import (
    LOSS_COLOURS,
    LOST_PERCENT_STEPS,
    MFU,
    MFU_STEPS,
    PHASE_COLOURS,
    PLAIN,
    USEFUL_STEPS,
    UTILIZATION,
    Json,
)
from panels import bars, coloured, fixed, named, rows, scaled_by, stat, target, text, timeseries
from series import (
    LOST_QUERY,
    MFU_QUERY,
    NO_GPU,
    NO_REFEREE,
    NO_STEP,
    RANKS_QUERY,
    STEP_QUERY,
    USEFUL_NOW,
    UTILIZATION_QUERY,
    now,
)
from tables import gauge, table
from verdict import alerts_firing, diagnosis, verdict

FAULTS = ("straggler", "data_starvation", "gradient_explosion", "storage_node_slow", "storage_outage")
FAULT_LINKS = (
    "Or on the console: "
    + " · ".join(f"[{name}](${{console}}/#{name})" for name in FAULTS)
    + """\
 · [all others, and stop](${console}/)

Or: `stepscope fault start straggler`
"""
)


def _buttons() -> Json:
    """One per fault, and one that stops them all."""
    start = {name.replace("_", " "): ("${console}/faults", {"fault": name}) for name in FAULTS}
    return buttons(
        "Trigger a fault",
        "Starts the fault in the lab, at its plain severity and on its default target, and stops all of them again. Watch what "
        "moves, and what does not. Needs the lab, and a browser on its machine.",
        {**start, "stop all": ("${console}/faults/stop", {})},
    )


def _headline() -> Json:
    return timeseries(
        "Busy is not useful: GPU utilization against MFU",
        "Utilization says that a kernel was resident, MFU how much of the hardware's peak went into the model. The "
        "shaded gap is what utilization hides. Healthy on H100: MFU 36 to 48 %. Bad: MFU falls while utilization stays.",
        target(UTILIZATION_QUERY, "GPU utilization"),
        target(MFU_QUERY, "MFU"),
        target('run:training_critical_path_share:rate1m{run="$run",phase="data_wait"}', "data wait on the critical path"),
        unit="percentunit", min=0, max=1, noValue="neither a GPU, nor a peak, nor a referee is known of this run",
        links=[to("cost", "What does the gap cost?")],
        overrides=[
            named("GPU utilization", color=fixed(UTILIZATION), custom__fillBelowTo="MFU", custom__fillOpacity=18,
                  custom__lineWidth=3),
            named("MFU", color=fixed(MFU), custom__lineWidth=3),
            named("data wait on the critical path", color=fixed(PHASE_COLOURS["data_wait"])),
        ],
    )  # fmt: skip


def _numbers() -> tuple[Json, ...]:
    return (
        stat("GPU utilization", "Share of the last minute in which a kernel was resident, mean of all GPUs. A GPU that "
             "waits in all-reduce counts as busy. It hardly ever falls, whatever is wrong.",
             target(now(UTILIZATION_QUERY), "GPU utilization"), unit="percentunit", decimals=1, min=0, max=1,
             color=fixed(UTILIZATION), noValue=NO_GPU, links=[to("gpus")]),
        stat("MFU", "Model FLOPs utilization: useful FLOPs by peak. Healthy on H100 36 to 48 %; below 30 % somebody is "
             "paying for waiting. Absent where the GPU's peak is not known.",
             target(now(MFU_QUERY), "MFU"), unit="percentunit", decimals=1, min=0, max=1, thresholds=MFU_STEPS,
             color={"mode": "thresholds"}, noValue="no step ends, or no peak is known", links=[to("step")]),
        stat("Useful share of the step", "Forward and backward by wall time, mean of all ranks. Healthy: about 90 %. "
             "Waiting for others takes it away.",
             target(USEFUL_NOW, "useful"),
             unit="percentunit", decimals=0, min=0, max=1, color={"mode": "thresholds"}, thresholds=USEFUL_STEPS, noValue=NO_STEP,
             links=[to("step")]),
        stat("GPUs lost (of $ranks)", "GPU-equivalents that do nothing, against this run's own best five minutes of the last six "
             "hours. Healthy: below one in twenty-five. Red from the share on at which one rank alone would be accused.",
             target(now(LOST_QUERY), "GPUs lost"), target(RANKS_QUERY, "all"), transformations=[scaled_by("B", "all")],
             unit="none", decimals=1, min=0, color={"mode": "thresholds"},
             thresholds=LOST_PERCENT_STEPS, noValue=NO_REFEREE, links=[to("cost")]),
        stat("Step", "Mean time from one step's start to the next one's. It rises with every fault that costs time.",
             target(now(STEP_QUERY), "step"), unit="s", decimals=1, color=fixed(PLAIN), noValue=NO_STEP,
             links=[to("step")]),
        stat("Cost of the loss per day", "GPUs lost, times 24 hours, times the price in the box above. Empty without a "
             "price: the loss is then in GPUs only.",
             target(f"{now(LOST_QUERY)} * 24 * {PRICED}", "per day"), unit="locale", decimals=0, noValue=NO_MONEY, size=24,
             color=fixed(PLAIN), links=[to("cost")]),
    )  # fmt: skip


def mirage() -> Json:
    path = timeseries(
        "What the step waits for: the critical path by phase",
        "The lap of whoever arrived last, by phase: it adds up to the whole wall time. Healthy: forward and backward "
        "fill it. Read what has grown; all-reduce here is transfer alone, never waiting.",
        target('run:training_critical_path_share:rate1m{run="$run"}', "{{phase}}"),
        unit="percentunit", stacked=True, min=0, max=1, noValue=NO_REFEREE, overrides=coloured(PHASE_COLOURS),
        links=[to("step")],
    )  # fmt: skip
    eating = bars(
        "GPUs lost, by phase",
        "GPUs lost to each phase of the critical path, beyond this run's best five minutes of the last six hours, the "
        "costliest first. Healthy: all near 0. Stalled: no step ends, and all are lost.",
        target('sort_desc(run:training_lost_gpus:by_phase{run="$run"})', "{{phase}}", instant=True),
        unit="none", decimals=1, min=0, noValue=NO_REFEREE, overrides=coloured(LOSS_COLOURS), links=[to("cost")],
    )  # fmt: skip
    late = table(
        "Who is late, and why",
        "Share of the run's time that others wait for this rank, by the phase in which it is late. A culprit is far above "
        "the rest minute after minute; one long stall can put any rank on top for a minute.",
        rows('topk(5, rank:training_late_share:rate1m{run="$run"} > 0)'),
        unit="none", noValue="nobody is known to be late",
        columns={"rank": "Rank", "node": "Node", "phase": "Late in", "Value": "Share of time"}, sort="Share of time",
        overrides=[
            gauge("Share of time", high=0.5),
            named("Rank", links=[to_ranks("${__value.raw}")]),
        ],
    )  # fmt: skip
    links = text(
        "Faults by link or command", "Links to the lab's console, for Grafanas that draw no buttons.", FAULT_LINKS
    )
    utilization, mfu, useful, lost, step, cost = _numbers()
    return dashboard(
        "mirage",
        "1 · The mirage",
        "High GPU utilization, collapsing MFU: what a busy cluster really does.",
        (
            (10, (
                (16, _headline()),
                (4, ((4, utilization), (3, useful), (3, step))),
                (4, ((4, mfu), (3, lost), (3, cost))),
            )),
            (10, ((11, path), (5, eating), (8, ((3, verdict(26)), (7, late))))),
            (5, ((7, diagnosis()), (7, alerts_firing()), (6, _buttons()), (4, links))),
        ),
        [PRICE, RANKS],
        onward=to("ranks"),
    )  # fmt: skip
