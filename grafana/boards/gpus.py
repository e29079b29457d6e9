"""4: GPUs and hosts: is it the hardware?"""

from __future__ import annotations

from typing import Any

from board import NODE, RANK, dashboard, to, to_ranks
from meaning import (
    BAD,
    HIGHEST,
    LINE,
    MIDDLE,
    PHASE_COLOURS,
    REFERENCE,
    THROTTLE_REASONS,
    UTILIZATION,
    WIRE_COLOURS,
    XIDS,
    Json,
)
from panels import coloured, fixed, from_query, named, reference, rows, states, target, timeseries
from series import CHOSEN_RANK, GPUS, JOINED, LARGEST_PICTURE, NO_GPU, OF, SPREAD_COLOURS, WIRED, ordered, spread
from tables import table

HOSTS = f"and on (node) node:training_ranks:count{OF}"
MOST_STATES = 12
"""Rows that can still be read."""
REASONS = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
POWER_CAP = 0x4
WINDOW = "[$__rate_interval]"


def _mean(title: str, description: str, selector: str) -> Json:
    """Four levels of "busy", from the coarsest to the one that counts."""
    levels = {
        "a kernel is resident (utilization)": ("utilization", UTILIZATION),
        "SM active": ("sm_active", "#5794F2"),
        "tensor cores active": ("tensor_active", "#FF9DA7"),
        "memory active": ("dram_active", LINE),
    }
    return timeseries(
        title, description,
        *(target(f"avg by (run) (rank:gpu_{series}:ratio_avg1m{selector})", legend) for legend, (series, _) in levels.items()),
        unit="percentunit", min=0, max=1, noValue=NO_GPU,
        overrides=[named(legend, color=fixed(colour)) for legend, (_, colour) in levels.items()],
    )  # fmt: skip


def _spread(title: str, description: str, series: str, *limit: Json, unit: str, **more: Any) -> Json:
    return timeseries(title, description, *spread(series), *limit, unit=unit, noValue=NO_GPU,
                      overrides=[*SPREAD_COLOURS, reference("limit", BAD), reference("maximum", BAD)], **more)  # fmt: skip


def _hardware() -> tuple[Json, ...]:
    return (
        _spread("Power", "Mean of the last minute, from the energy counter: the hungriest GPU, the median, the thriftiest, "
                "and the chosen rank's. A GPU that waits draws far less than one that computes, whatever its utilization says.",
                "rank:gpu_power_watts:rate1m", target('run:gpu_power_limit_watts:min{run="$run"}', "limit"),
                unit="watt", min=0),
        _spread("SM clock", "A GPU below the others computes more slowly; below the maximum for all is the power cap, which is "
                "normal for dense training.",
                "rank:gpu_sm_clock_hertz:avg1m", target('run:gpu_max_sm_clock_hertz:max{run="$run"}', "maximum"),
                unit="hertz", decimals=2),
        _spread("Temperature", "The hottest GPU, the median, the coolest, and the chosen rank's. One GPU well above its "
                "neighbours: cooling, before anything else.",
                "rank:gpu_temperature_celsius:avg1m", unit="celsius"),
    )  # fmt: skip


def _below_best(series: str) -> str:
    return f"{series} < on () group_left () max({series} * {JOINED})"


def _listed(series: str) -> str:
    return f"topk({LARGEST_PICTURE}, max by (rank, node) (({series}) * {JOINED}))"


def _faults() -> tuple[Json, ...]:
    odd = f'({REASONS} > 7 or {REASONS} == {POWER_CAP} and on () run:gpu_power_capped:ratio{{run="$run"}} < 0.5)'
    worst = f"topk({MOST_STATES}, max_over_time({odd}[$__range:15s] @ end()) and on (UUID) {GPUS})"
    capped = f"rank:gpu_power_capped:ratio{OF}"
    lowest = f"bottomk({MOST_STATES}, min_over_time({capped}[$__range] @ end()))"
    return (
        states("Throttled, unlike the other GPUs", "Ranks whose GPU was slowed down in the range shown, and by what; and those "
               "that may draw less power than the others, with what is left of their default limit. At most twelve of each. "
               "A power cap that most have is left out: it is normal for dense training.",
               target(ordered(f"max by (rank) (({odd} and on (UUID) {worst}) * {JOINED})"), "rank {{rank}}"),
               target(ordered(f"{capped} and on (run, rank) {lowest}"), "rank {{rank}}, power limit"),
               mappings=THROTTLE_REASONS, empty="no GPU is known to be held back more than the others",
               overrides=[from_query("B", mappings=[], unit="percentunit")]),
        table("PCIe links below the others", "GPUs whose link has fewer lanes, or an older generation, than the job's best: a "
              "bad riser or slot. It slows reads and copies, and nothing else shows it.",
              *(rows(_listed(_below_best(f"DCGM_FI_DEV_PCIE_LINK_{kind}"))) for kind in ("WIDTH", "GEN")),
              unit="none", noValue="no link is known to be below the others",
              columns={"rank": "Rank", "node": "Node", "Value #A": "Lanes", "Value #B": "Generation"},
              overrides=[named("Rank", links=[to_ranks("${__value.raw}")])]),
        table("XID errors", "The last error that the driver reported for a GPU, other than none, also where its rank has died of "
              "it. 79, 48 or 95: take the GPU out of the job and test it; 13 or 31 may be the program's own fault.",
              rows(f"topk({LARGEST_PICTURE}, last_over_time(rank:gpu_xid:last{OF}[$__range]) > 0)"), unit="none",
              noValue="no XID was read",
              columns={"rank": "Rank", "node": "Node", "Value": "XID"},
              overrides=[named("XID", mappings=XIDS), named("Rank", links=[to_ranks("${__value.raw}")])]),
    )  # fmt: skip


def _over_nodes(expr: str) -> list[Json]:
    """Two lines, whatever the number of nodes."""
    return [target(f"max({expr})", "worst node"), target(f"quantile(0.5, {expr})", "median node")]


_NODE_COLOURS = [named("worst node", color=fixed(HIGHEST)), named("median node", color=fixed(MIDDLE))]


def _hosts() -> tuple[Json, ...]:
    cpu = f"avg by (mode) (node:node_cpu:share_rate1m {HOSTS})"
    reads = f"rate(node_disk_reads_completed_total{WINDOW})"
    latency = f"(rate(node_disk_read_time_seconds_total{WINDOW}) / ({reads} > 0) {HOSTS})"
    pressure = f"(rate(node_pressure_io_waiting_seconds_total{WINDOW}) {HOSTS})"
    empty = "no host of this run is read"
    return (
        timeseries("CPU by mode", "Mean of the nodes. iowait is loaders waiting for storage; user near 100 % starves the "
                   "loaders, and with them the GPUs.",
                   target(cpu, "{{mode}}"), unit="percentunit", stacked=True, min=0, max=1, noValue=empty,
                   color=fixed(REFERENCE), overrides=[named("idle", color=fixed("#3B4350")), named("user", color=fixed("#37872D")),
                              named("system", color=fixed(LINE)), named("iowait", color=fixed(PHASE_COLOURS["data_wait"]))]),
        timeseries("Waiting for storage (pressure)", "Share of time in which something waited for I/O. Loaders that read "
                   "ahead always wait for some read, so it is high in health too: look for a node that differs.",
                   *_over_nodes(pressure), unit="percentunit", min=0, max=1, noValue=empty, overrides=_NODE_COLOURS),
        timeseries("Read latency", "Mean time of a read. The worst node far above the median: its mount or link. Both up: "
                   "the storage itself.",
                   *_over_nodes(latency), unit="s", min=0, noValue=empty, overrides=_NODE_COLOURS),
        timeseries("Network sent", "InfiniBand and Ethernet, per node. It falls when steps get longer, whatever the cause.",
                   target(f"quantile(0.5, sum by (node) (rate(node_infiniband_port_data_transmitted_bytes_total{WINDOW}) {HOSTS}))",
                          "InfiniBand, median node"),
                   target(f"quantile(0.5, sum by (node) (rate(node_network_transmit_bytes_total{WIRED}{WINDOW}) {HOSTS}))",
                          "Ethernet, median node"),
                   unit="Bps", min=0, noValue=empty,
                   overrides=coloured({f"{kind}, median node": WIRE_COLOURS[kind] for kind in ("InfiniBand", "Ethernet")})),
        timeseries("Memory available", "Of the node that has least, and of the median. Loader workers that leak end with the "
                   "kernel killing a rank.",
                   target(f"min(node_memory_MemAvailable_bytes {HOSTS})", "worst node"),
                   target(f"quantile(0.5, node_memory_MemAvailable_bytes {HOSTS})", "median node"),
                   unit="bytes", min=0, noValue=empty, overrides=_NODE_COLOURS),
    )  # fmt: skip


def gpus() -> Json:
    busy = _mean(
        "Busy, on four scales (nodes: ${node:text})",
        "Utilization says that a kernel was resident; the others what it did. "
        "Healthy on H100: tensor cores about as active as MFU is high. Bad: utilization stays, the others fall.",
        OF,
    )
    chosen = _mean("The same: rank $rank", "The rank chosen above. Its SMs stay active while it waits, its tensor cores do not.",
                   CHOSEN_RANK)  # fmt: skip
    throttled, links, xids = _faults()
    power, clock, temperature = _hardware()
    cpu, pressure, latency, network, memory = _hosts()
    return dashboard(
        "gpus",
        "4 · GPUs and hosts",
        "Is it the hardware? What each GPU and host reported, beside the rest of the job.",
        (
            (8, ((7, busy), (5, chosen), (6, power), (6, clock))),
            (8, ((6, temperature), (8, throttled), (10, ((4, links), (4, xids))))),
            (9, ((6, cpu), (5, pressure), (5, latency), (4, network), (4, memory))),
        ),
        [NODE, RANK],
        onward=to("ranks"),
    )  # fmt: skip
