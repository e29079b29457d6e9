"""3: one step, taken apart."""

from __future__ import annotations

from board import NODE, dashboard, to, to_ranks
from meaning import LINE, PHASE_COLOURS, PLAIN, SPLIT_COLOURS, USEFUL_STEPS, WIRE_COLOURS, Json
from panels import coloured, fixed, heatmap, named, reference, rows, stat, target, timeseries
from series import LARGEST_PICTURE, NO_REFEREE, NO_STEP, OF, RANKS_QUERY, STEP_QUERY, USEFUL_NOW, WIRED, now
from tables import stacked_bars

SHARE = "run:training_phase_share:rate1m"
TRANSFER = 'run:training_critical_path_share:rate1m{run="$run",phase="allreduce"}'
"""The last arriver never waits: its all-reduce is transfer."""
WAITING = f'clamp_min({SHARE}{{run="$run",phase="allreduce"}} - on (run) {TRANSFER}, 0)'
"""Of the mean rank's step."""


def _numbers() -> tuple[Json, ...]:
    return (
        stat("Step, mean", "Mean time from one step's start to the next one's, all ranks.",
             target(now(STEP_QUERY), "step"), unit="s", decimals=1, color=fixed(PLAIN), noValue=NO_STEP),
        stat("Step, p99", "One step in a hundred takes at least this long. Far above the mean: stalls, such as checkpoints or "
             "storage.",
             target(now('run:training_step_duration_seconds:p99_rate1m{run="$run"}', STEP_QUERY), "p99"), unit="s", decimals=1,
             color=fixed(PLAIN), noValue=NO_STEP),
        stat("Useful", "Forward and backward of the mean rank. Healthy: about 90 %.",
             target(USEFUL_NOW, "useful"), unit="percentunit", decimals=0, min=0, max=1, thresholds=USEFUL_STEPS,
             color={"mode": "thresholds"}, noValue=NO_STEP),
        stat("Waiting for others", "The mean rank's share of the step in all-reduce before the last rank has arrived. "
             "Healthy: a few percent of jitter. It is what utilization counts as busy.",
             target(now(WAITING, TRANSFER), "waiting"), unit="percentunit", noValue=NO_REFEREE, decimals=1, min=0,
             color=fixed(SPLIT_COLOURS["waiting"]),
             links=[to("ranks")]),
        stat("Exposed transfer", "The mean rank's share of the step in all-reduce once all have arrived: what the network "
             "costs beyond what backward hides.",
             target(now(TRANSFER), "transfer"), unit="percentunit", noValue=NO_REFEREE, decimals=1, min=0,
             color=fixed(SPLIT_COLOURS["transfer"])),
        stat("All-reduce traffic expected",
             "Per GPU and step of data-parallel training (DDP), 2·S·(n−1)/n bytes: what a ring all-reduce of S bytes of gradients "
             "over n ranks sends from each GPU. Under FSDP there is no all-reduce.",
             target(f'2 * (1 - 1 / {RANKS_QUERY}) * on (run) max by (run) '
                    '(training_memory_bytes{run="$run",kind="gradients"} '
                    'and on (run, rank) training_rank_info{run="$run",strategy="ddp"})', "bytes", instant=True),
             unit="decbytes", decimals=2, color=fixed(PLAIN), noValue="no DDP, or gradients not counted"),
    )  # fmt: skip


def _bars() -> Json:
    lagging = f"and on (run, rank) topk({LARGEST_PICTURE}, rank:training_lag_seconds:per_step_rate1m{OF})"
    share = "rank:training_phase_share:rate1m"
    waiting = f"rank:training_wait_seconds:per_step_rate1m{OF} / on (run) group_left () {STEP_QUERY}"
    collective = f'{share}{{run="$run",node=~"$node",phase="allreduce"}}'
    transfer = f"clamp_min({collective} - ignoring (phase) ({waiting}), 0)"
    return stacked_bars(
        "Each rank's step, by phase",
        "Where each rank's own time goes, over the last minute; up to 256 ranks. All bars are full: a rank that computes "
        "less waits more. The culprit is the bar with hardly any waiting.",
        rows(f'sum by (rank, phase) ((({share}{{run="$run",node=~"$node",phase!="allreduce"}}) '
             f'or label_replace({waiting}, "phase", "waiting", "", "") '
             f'or label_replace({transfer}, "phase", "transfer", "", "")) {lagging})'),
        unit="percentunit", row="rank", column="phase", axis_at_least=1, min=0, max=1, decimals=1,
        noValue=NO_STEP, overrides=coloured(SPLIT_COLOURS), links=[to_ranks("${__data.fields[0]}")],
    )  # fmt: skip


def step() -> Json:
    own = timeseries(
        "What the average rank does",
        "The mean rank's own time, with all-reduce split into waiting and transfer. Averages mislead: when one rank in 32 "
        "waits for data, the others show it as waiting.",
        target(f'{SHARE}{{run="$run",phase!="allreduce"}} * on (run) group_left () {STEP_QUERY}', "{{phase}}"),
        target(f"{WAITING} * on (run) {STEP_QUERY}", "waiting"),
        target(f"{TRANSFER} * on (run) {STEP_QUERY}", "transfer"),
        target(f'({SHARE}{{run="$run",phase="allreduce"}} unless on (run) {TRANSFER}) * on (run) {STEP_QUERY}', "allreduce"),
        unit="s", decimals=1, stacked=True, min=0, overrides=coloured(SPLIT_COLOURS),
    )  # fmt: skip
    path = timeseries(
        "What the step waits for: the critical path",
        "The lap of the rank that arrived last, per step: no waiting is in it, and it adds up to the wall time. What has "
        "grown here is what costs.",
        target('run:training_critical_path_seconds:per_step_rate1m{run="$run"}', "{{phase}}"),
        unit="s", decimals=1, stacked=True, min=0, noValue=NO_REFEREE, overrides=coloured(PHASE_COLOURS), links=[to("cost")],
    )  # fmt: skip
    durations = heatmap(
        "How long steps take",
        "Steps by duration, all nodes. A second band above the first is a phase that comes now and then; a wide one is "
        "jitter; a shift of the whole band is a slower step.",
        target('sum by (le) (rate(training_step_duration_seconds_bucket{run="$run"}[$__rate_interval]))', "{{le}}",
               format="heatmap"),
        unit="short", low=None, high=None, value="steps per second", axis="step", axis_unit="s", noValue=NO_STEP,
    )  # fmt: skip
    floor = timeseries(
        "Transfer against its floor",
        "Exposed all-reduce once all ranks have arrived, the fastest that any rank saw in its last 64 steps, and the lowest "
        "of that in six hours. A floor that rises is a slower network.",
        target('run:training_critical_path_seconds:per_step_rate1m{run="$run",phase="allreduce"}', "transfer"),
        target('min by (run) (training_allreduce_floor_seconds{run="$run"})', "floor"),
        target('min_over_time(min by (run) (training_allreduce_floor_seconds{run="$run"})[6h:1m] @ end())', "best of 6 h"),
        unit="s", decimals=1, min=0,
        overrides=[named("transfer", color=fixed(SPLIT_COLOURS["transfer"])), named("floor", color=fixed(LINE)),
                   reference("best of 6 h")],
    )  # fmt: skip
    wire = timeseries(
        "Bytes sent, per GPU and step",
        "What the wires carried, by kind, per GPU and step; from GPU to network card, a byte may be on PCIe as well. More than a "
        "ring must move: something else shares the wire. From NVLink to PCIe, or from InfiniBand to Ethernet: NCCL has "
        "fallen back. Kinds that a machine lacks, or does not report, are absent.",
        *(target(f"{sent} / on () group_left () (sum by (run) (rate(training_steps_total{OF}[1m])))", kind)
          for kind, sent in _WIRES.items()),
        unit="decbytes", min=0, noValue="no wire is read", overrides=coloured(WIRE_COLOURS),
    )  # fmt: skip
    return dashboard(
        "step",
        "3 · One step, taken apart",
        "Where a step's time goes: compute, data, waiting for others, and the network itself.",
        (
            (3, tuple((4, number) for number in _numbers())),
            (11, ((12, own), (12, path))),
            (11, ((9, _bars()), (5, durations), (5, floor), (5, wire))),
        ),
        [NODE],
        onward=to("ranks"),
    )  # fmt: skip


_NODES = f"and on (node) node:training_ranks:count{OF}"
_WIRES = {
    "NVLink": f"sum(rank:gpu_nvlink_bytes_per_second:avg1m{OF})",
    "InfiniBand": f"sum(rate(node_infiniband_port_data_transmitted_bytes_total[1m]) {_NODES})",
    "Ethernet": f"sum(rate(node_network_transmit_bytes_total{WIRED}[1m]) {_NODES})",
    "PCIe": f"sum(rank:gpu_pcie_sent_bytes_per_second:avg1m{OF})",
}
