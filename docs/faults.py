"""Writes docs/faults.md and its picture: which series each fault moves, measured. Run: make generate."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import yaml
from rich.console import Console
from rich.progress import track

from stepscope.phases import PHASES
from stepsim.board import FaultBoard, default_target, target_label
from stepsim.engine import Engine
from stepsim.faults import FAULTS, SimulatedFault
from stepsim.job import Job, load_job
from stepsim.pages import Pages
from stepsim.real import REAL_FAULTS

FILE = Path(__file__).with_name("faults.md")
PICTURE = FILE.parent / "pictures" / "fault-matrix.svg"
RULES = FILE.parents[1] / "prometheus" / "rules" / "alerts.yml"

SEED, EPOCH = 4, 1_700_000_000.0
HEALTHY_SECONDS = 80.0
SETTLE_SECONDS = 60.0
"""Between a fault's start and the window: a hot GPU takes about that long."""
RELATIVE = 0.10
"""A cell has moved where it differs by more than this share of the healthy one, and by more than its column's floor."""

Floats: TypeAlias = npt.NDArray[np.float64]
Value: TypeAlias = float | None
"""None where there is nothing to read: no step has ended, or the part is not there."""


# What is run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)  # each is itself, and a key
class Setup:
    """A job, how long it is watched, and the faults that are measured on it, against its own healthy row."""

    title: str
    preset: str = "cluster"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    window_seconds: float = 60.0
    faults: tuple[str, ...]

    def job(self) -> Job:
        return load_job(self.preset, **self.overrides)


OWN_SETUPS = (
    Setup(title="healthy, `vision`", preset="vision", faults=("pcie_downgrade",)),
    Setup(
        title="healthy, checkpoints",
        overrides={"schedule": {"checkpoint_every_steps": 450}},
        window_seconds=120.0,  # a stalled checkpoint takes 55 s: both rows have one that begins and ends within
        faults=("checkpoint_stall",),
    ),
)
ELSEWHERE = frozenset(name for setup in OWN_SETUPS for name in setup.faults)
SETUPS = (Setup(title="healthy", faults=tuple(name for name in FAULTS if name not in ELSEWHERE)), *OWN_SETUPS)


# What is read ---------------------------------------------------------------------------------------------------------

Scrape: TypeAlias = Mapping[str, Mapping[str, float]]
"""By a metric's name: its series by their labels, in the page's order."""

COUNTED = ("training", "referee", "node")
SAMPLED = ("training", "dcgm")
SKIPPED = ("training_step_duration_seconds", "training_memory_bytes")
NODE = re.compile(r'node="([^"]+)"')


def scrape(pages: Pages, sources: Sequence[str]) -> Scrape:
    """What a scrape of these pages gets at this moment. A node page's series get the label that its target has."""
    found: dict[str, dict[str, float]] = {}
    for source, node in pages.names():
        if source not in sources:
            continue
        target = f'node="{node}",' if source == "node" else ""
        for line in pages.text(source, node).splitlines():
            if line.startswith(("#", *SKIPPED)):
                continue
            head, _, value = line.rpartition(" ")
            name, _, labels = head.partition("{")
            found.setdefault(name, {})[target + labels] = float(value)
    return found


def picked(scraped: Scrape, name: str, *labels: str) -> dict[str, float]:
    return {key: value for key, value in scraped.get(name, {}).items() if all(label in key for label in labels)}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was scraped over a window: the counters at both its ends, the gauges every second."""

    seconds: float
    first: Scrape
    last: Scrape
    samples: tuple[tuple[float, Scrape], ...]
    """Each with its time."""

    def increases(self, name: str, *labels: str) -> dict[str, float]:
        """Of every series of a counter."""
        before = picked(self.first, name, *labels)
        return {key: now - before[key] for key, now in picked(self.last, name, *labels).items() if key in before}

    def gained(self, name: str, *labels: str) -> Floats:
        return np.array(list(self.increases(name, *labels).values()))

    def by_node(self, name: str, *labels: str) -> Floats:
        sums: dict[str, float] = {}
        for key, value in self.increases(name, *labels).items():
            ((node),) = NODE.findall(key)
            sums[node] = sums.get(node, 0.0) + value
        return np.array(list(sums.values()))

    def gauge(self, name: str, *labels: str) -> Floats:
        """Shape (samples, series)."""
        return np.array([list(picked(one, name, *labels).values()) for _, one in self.samples])


def measured(setup: Setup, fault: str | None) -> Reading:
    """Healthy for a while, then with the fault, then read."""
    job = setup.job()
    engine = Engine(job, FaultBoard(job), seed=SEED, now=EPOCH)
    pages = Pages(engine, lambda: engine.now)
    engine.advance(engine.now + HEALTHY_SECONDS)
    if fault:
        engine.board.start({"fault": fault}, now=engine.now)
    engine.advance(engine.now + SETTLE_SECONDS)
    first = scrape(pages, COUNTED)
    samples = tuple(sampled(engine, pages, setup.window_seconds))
    return Reading(seconds=setup.window_seconds, first=first, last=scrape(pages, COUNTED), samples=samples)


def sampled(engine: Engine, pages: Pages, seconds: float) -> Iterator[tuple[float, Scrape]]:
    for _ in range(int(seconds)):
        engine.advance(engine.now + 1.0)
        yield engine.now, scrape(pages, SAMPLED)


# The columns ----------------------------------------------------------------------------------------------------------

Read: TypeAlias = Callable[[Reading], Value]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One number of a row, in the unit in which it is shown."""

    key: str
    label: str
    series: str
    """How it is read, with the series' exact names."""
    read: Read
    floor: float = 0.0
    """No smaller difference counts as moved."""
    digits: int = 3
    bits: bool = False
    """A bit mask: any difference counts."""
    exact: bool = False
    """A count of parts: any difference counts."""

    def rounded(self, value: Value) -> Value:
        if value is None or not math.isfinite(value) or self.bits:
            return value
        return float(f"{value:.{self.digits}g}") + 0.0 if abs(value) >= self.floor / 100 else 0.0

    def shown(self, value: Value) -> str:
        if value is None:
            return "–"
        if math.isnan(value):
            return "NaN"
        return hex(int(value)) if self.bits else plain(value)

    def moved(self, value: Value, healthy: Value) -> bool:
        """THE rule, on the numbers as they are shown."""
        if value is None or healthy is None or math.isnan(value) or math.isnan(healthy):
            return (value is None) != (healthy is None) or (value is not None and math.isnan(value))
        if self.bits or self.exact:
            return value != healthy
        return abs(value - healthy) > max(RELATIVE * abs(healthy), self.floor)


def plain(value: float) -> str:
    """Without an exponent."""
    text = f"{value:,.6f}"
    return text.rstrip("0").rstrip(".")


def gauge(name: str, fold: Callable[[Floats], Any], factor: float = 1.0) -> Read:
    def read(reading: Reading) -> Value:
        seen = reading.gauge(name)
        return factor * float(fold(seen)) if seen.size else None

    return read


def rate(name: str, fold: Callable[[Floats], Any], factor: float = 1.0) -> Read:
    def read(reading: Reading) -> Value:
        gained = reading.gained(name)
        return factor * float(fold(gained)) / reading.seconds if gained.size else None

    return read


def count(name: str) -> Read:
    """By how much a counter of the run has grown."""
    return lambda reading: float(reading.gained(name).sum())


def step_seconds(reading: Reading) -> Value:
    steps = reading.gained("training_steps_total").max()
    return reading.seconds / steps if steps else None


def mfu(reading: Reading) -> Value:
    peak = np.array(list(picked(reading.last, "training_peak_flops").values()))
    return float(100 * (reading.gained("training_model_flops_total") / peak).mean() / reading.seconds)


def path_share(phase: str) -> Read:
    def read(reading: Reading) -> Value:
        every = reading.increases("training_critical_path_seconds_total")
        spent = reading.gained("training_critical_path_seconds_total", f'phase="{phase}"').sum()
        total = sum(every.values())
        return 100 * float(spent) / total if total else None

    return read


def own_share(phase: str) -> Read:
    def read(reading: Reading) -> Value:
        total = reading.gained("training_phase_seconds_total").sum()
        spent = reading.gained("training_phase_seconds_total", f'phase="{phase}"').sum()
        return 100 * float(spent / total) if total else None

    return read


def slowest_by_median(reading: Reading) -> Value:
    seconds = sum(
        reading.gained("training_phase_seconds_total", f'phase="{phase}"') for phase in ("forward", "backward")
    )
    median = float(np.median(seconds))
    return float(np.max(seconds)) / median if median else None


def largest_share(late: Floats) -> Value:
    return 100 * float(late.max() / late.sum()) if late.sum() else None


def token_spread(reading: Reading) -> Value:
    tokens = reading.gained("training_tokens_total")
    return 100 * float(tokens.std() / tokens.mean()) if tokens.any() else None


def in_allreduce(reading: Reading) -> Value:
    return float(reading.gauge("training_current_phase", 'phase="allreduce"').sum(axis=1).mean())


def power_limit(reading: Reading) -> Value:
    limit, default = (reading.gauge(f"DCGM_FI_DEV_POWER_MGMT_LIMIT{suffix}") for suffix in ("", "_DEF"))
    return 100 * float((limit / default).min())


def reasons(seen: Floats) -> int:
    return int(np.bitwise_or.reduce(seen.astype(int), axis=None))


def busiest(mode: str) -> Read:
    def read(reading: Reading) -> Value:
        cpus = len(picked(reading.last, "node_cpu_seconds_total", f'mode="{mode}"'))
        spent = reading.by_node("node_cpu_seconds_total", f'mode="{mode}"')
        return 100 * float(spent.max()) * len(spent) / cpus / reading.seconds

    return read


def loss_fall(reading: Reading) -> Value:
    """Ten seconds against ten seconds: a step's own loss is noisy."""
    loss = reading.gauge("training_loss")
    return 1000 * float(loss[:10].mean() - loss[-10:].mean())


def furthest_norm(reading: Reading) -> Value:
    norms = reading.gauge("training_local_gradient_norm")
    if np.isnan(norms).any():
        return math.nan
    by_median = (norms / np.median(norms, axis=1, keepdims=True)).mean(axis=0)
    return float(max(by_median, key=lambda one: abs(math.log(one))))


def oldest_step(reading: Reading) -> Value:
    return max(now - max(picked(one, "training_last_step_timestamp_seconds").values()) for now, one in reading.samples)


def every_mean(seen: Floats) -> Any:
    return seen.mean()


@dataclass(frozen=True, kw_only=True)
class Theme:
    title: str
    text: str
    columns: tuple[Column, ...]


def path_columns() -> tuple[Column, ...]:
    return tuple(
        Column(key=f"path_{phase}", label=f"{phase} %", read=path_share(phase), floor=2, digits=2,
               series=f'`training_critical_path_seconds_total{{phase="{phase}"}}`: its share of all phases')
        for phase in PHASES
    )  # fmt: skip


def own_columns() -> tuple[Column, ...]:
    return tuple(
        Column(key=f"own_{phase}", label=f"mean rank's {phase} %", read=own_share(phase), floor=2, digits=2,
               series=f'`training_phase_seconds_total{{phase="{phase}"}}`, summed over ranks: its share of all phases')
        for phase in ("data_wait", "other", "allreduce")
    )  # fmt: skip


THEMES = (
    Theme(title="Speed and GPUs", text="What the run achieves, and what its GPUs say of it.", columns=(
        Column(key="step", label="s per step", read=step_seconds, floor=0.02, series="1 / `rate(training_steps_total)`"),
        Column(key="mfu", label="MFU %", read=mfu, floor=2,
               series="`rate(training_model_flops_total)` / `training_peak_flops`, mean"),
        Column(key="util", label="GPU util %", read=gauge("DCGM_FI_DEV_GPU_UTIL", np.mean), floor=3,
               series="`DCGM_FI_DEV_GPU_UTIL`, mean"),
        Column(key="sm", label="SM active %", read=gauge("DCGM_FI_PROF_SM_ACTIVE", np.mean, 100), floor=3,
               series="`DCGM_FI_PROF_SM_ACTIVE`, mean"),
        Column(key="tensor", label="tensor %", read=gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", np.mean, 100), floor=2,
               series="`DCGM_FI_PROF_PIPE_TENSOR_ACTIVE`, mean"),
        Column(key="dram", label="DRAM %", read=gauge("DCGM_FI_PROF_DRAM_ACTIVE", np.mean, 100), floor=2,
               series="`DCGM_FI_PROF_DRAM_ACTIVE`, mean"),
        Column(key="watts", label="power W", read=gauge("DCGM_FI_DEV_POWER_USAGE", np.mean), floor=20,
               series="`DCGM_FI_DEV_POWER_USAGE`, mean"),
        Column(key="celsius", label="hottest °C", read=gauge("DCGM_FI_DEV_GPU_TEMP", np.max), floor=3,
               series="`DCGM_FI_DEV_GPU_TEMP`, maximum"),
        Column(key="clock", label="lowest clock MHz", read=gauge("DCGM_FI_DEV_SM_CLOCK", np.min), floor=50,
               series="`DCGM_FI_DEV_SM_CLOCK`, minimum"),
    )),
    Theme(title="Where the time goes", columns=(*path_columns(), *own_columns()), text="Shares of the critical path by phase; "
          "at the right the mean rank's own shares, which hide the fault: only the last arriver counts, and all others wait."),
    Theme(title="Who it is", text="One culprit stands out, or nobody does.", columns=(
        Column(key="slowest", label="slowest / median rank", read=slowest_by_median, floor=0.05,
               series='`training_phase_seconds_total`, `forward` and `backward` of each rank: largest / median increase'),
        Column(key="late_rank", label="latest rank's steps %", floor=15, digits=2,
               read=lambda r: largest_share(r.gained("training_late_steps_total")),
               series="`training_late_steps_total` by rank: largest share of the increase"),
        Column(key="late_node", label="latest node's steps %", floor=15, digits=2,
               read=lambda r: largest_share(r.by_node("training_late_steps_total")),
               series="`training_late_steps_total` by node: largest share of the increase"),
        Column(key="tokens", label="tokens' spread %", read=token_spread, floor=0.2, digits=2,
               series="`training_tokens_total` by rank: standard deviation / mean of the increase"),
        Column(key="floor", label="all-reduce floor ms", floor=1,
               read=lambda r: 1000 * min(picked(r.last, "training_allreduce_floor_seconds").values()),
               series="`training_allreduce_floor_seconds`, minimum"),
        Column(key="in_allreduce", label="ranks in allreduce", read=in_allreduce, floor=3, digits=2,
               series='`training_current_phase{phase="allreduce"}`, summed over ranks, mean'),
    )),
    Theme(title="Host, links and network", text="What was set, what the hosts do, and which way the bytes go.", columns=(
        Column(key="limit", label="power limit %", read=power_limit, floor=4,
               series="`DCGM_FI_DEV_POWER_MGMT_LIMIT` / `DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF`, minimum"),
        Column(key="reasons", label="throttle reasons", read=gauge("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", reasons), bits=True,
               series="`DCGM_FI_DEV_CLOCK_THROTTLE_REASONS`: all bits seen; 0x1 idle, 0x4 power cap, 0x20 thermal"),
        Column(key="generation", label="lowest PCIe gen", read=gauge("DCGM_FI_DEV_PCIE_LINK_GEN", np.min),
               series="`DCGM_FI_DEV_PCIE_LINK_GEN`, minimum"),
        Column(key="lanes", label="fewest PCIe lanes", read=gauge("DCGM_FI_DEV_PCIE_LINK_WIDTH", np.min),
               series="`DCGM_FI_DEV_PCIE_LINK_WIDTH`, minimum"),
        Column(key="user", label="CPU user %", read=busiest("user"), floor=5, digits=2,
               series='`rate(node_cpu_seconds_total{mode="user"})`, mean of a node\'s CPUs, largest of all nodes'),
        Column(key="iowait", label="CPU iowait %", read=busiest("iowait"), floor=5, digits=2,
               series='`rate(node_cpu_seconds_total{mode="iowait"})`, likewise'),
        Column(key="infiniband", label="InfiniBand GB/s", floor=0.2,
               read=rate("node_infiniband_port_data_transmitted_bytes_total", np.sum, 1e-9),
               series="`rate(node_infiniband_port_data_transmitted_bytes_total)`, summed over the run"),
        Column(key="ethernet", label="Ethernet GB/s", floor=0.2,
               read=rate("node_network_transmit_bytes_total", np.sum, 1e-9),
               series="`rate(node_network_transmit_bytes_total)`, summed over the run"),
        Column(key="nvlink", label="NVLink GB/s", floor=0.2, read=gauge("DCGM_FI_PROF_NVLINK_TX_BYTES", np.mean, 1e-9),
               series="`DCGM_FI_PROF_NVLINK_TX_BYTES`, mean of all GPUs"),
    )),
    Theme(title="Learning and progress", text="Whether it learns, and whether it goes on at all.", columns=(
        Column(key="fall", label="loss fell by ‰", read=loss_fall, floor=8, digits=2,
               series="`training_loss`: mean of the window's first 10 s − of its last, in thousandths"),
        Column(key="norm", label="gradient norm", read=gauge("training_gradient_norm", np.mean), floor=0.05, digits=2,
               series="`training_gradient_norm`, mean"),
        Column(key="local_norm", label="furthest local norm", read=furthest_norm, floor=0.3, digits=2,
               series="`training_local_gradient_norm` / its median over ranks, mean: the furthest rank's"),
        Column(key="rate", label="learning rate ‰", read=gauge("training_learning_rate", np.mean, 1000), floor=0.02,
               series="`training_learning_rate`, mean, in thousandths"),
        Column(key="nonfinite", label="non-finite steps", read=count("training_nonfinite_steps_total"), floor=0.5,
               series="`increase(training_nonfinite_steps_total)`"),
        Column(key="band", label="out-of-band steps", read=count("training_gradient_out_of_band_total"), floor=2,
               series="`increase(training_gradient_out_of_band_total)`"),
        Column(key="checkpoints", label="checkpoints", read=count("training_checkpoints_total"), floor=0.5,
               series="`increase(training_checkpoints_total)`"),
        Column(key="age", label="last step's age s", read=oldest_step, floor=3, digits=2,
               series="`time()` − `max(training_last_step_timestamp_seconds)`, the largest seen"),
        Column(key="ranks", label="ranks reporting", exact=True,
               read=lambda r: float(len(picked(r.last, "training_steps_total"))),
               series="`count(training_steps_total)`"),
        Column(key="xid", label="XID", read=gauge("DCGM_FI_DEV_XID_ERRORS", np.max), floor=0.5,
               series="`DCGM_FI_DEV_XID_ERRORS`, maximum"),
    )),
)  # fmt: skip
PICTURED = frozenset(
    (
        "step", "mfu", "util", "tensor", "dram", "watts", "celsius", "clock",
        "path_data_wait", "path_h2d", "path_allreduce", "path_optimizer", "path_checkpoint", "path_other",
        "own_data_wait", "slowest", "late_rank", "late_node", "tokens", "floor", "limit", "user", "iowait", "ethernet",
        "fall", "local_norm", "nonfinite", "age", "xid",
    )
)  # fmt: skip
"""What the picture has room for."""
COLUMNS = {column.key: column for theme in THEMES for column in theme.columns}


# The matrix -----------------------------------------------------------------------------------------------------------

Row: TypeAlias = Mapping[str, Value]


def runs() -> list[tuple[Setup, str | None]]:
    """In the tables' order: each setup healthy, then with its faults."""
    return [(setup, fault) for setup in SETUPS for fault in (None, *setup.faults)]


def setup_of(fault: str) -> Setup:
    return next(setup for setup in SETUPS if fault in setup.faults)


@cache
def row(setup: Setup, fault: str | None) -> Row:
    """By column, rounded: the rule and the look-alikes use what the reader sees."""
    reading = measured(setup, fault)
    return {key: column.rounded(column.read(reading)) for key, column in COLUMNS.items()}


def cell(column: Column, value: Value, healthy: Value) -> str:
    shown = column.shown(value)
    return f"**{shown}**" if column.moved(value, healthy) else shown


def table_row(setup: Setup, fault: str | None, columns: Sequence[Column]) -> str:
    values, healthy = row(setup, fault), row(setup, None)
    name = f"`{fault}`" if fault else f"*{setup.title}*"
    return table_line(name, *(cell(column, values[column.key], healthy[column.key]) for column in columns))


def table_line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def table(head: Sequence[str], align: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join((table_line(*head), f"|{'|'.join(align)}|", *rows))


def matrix(theme: Theme) -> str:
    """One theme: its table, and how each column is read."""
    head = ("", *(column.label for column in theme.columns))
    align = ("---", *("--:" for _ in theme.columns))
    rows = [table_row(setup, fault, theme.columns) for setup, fault in runs()]
    legend = [
        table_line(one.label, one.series, "any" if one.bits or one.exact else plain(one.floor)) for one in theme.columns
    ]
    return "\n\n".join((
        f"### {theme.title}", theme.text, table(head, align, rows),
        table(("column", "how it is read", "floor"), ("---", "---", "--:"), legend),
    ))  # fmt: skip


# The catalogue --------------------------------------------------------------------------------------------------------


@cache
def alerts() -> Mapping[str, str]:
    """The alert that claims each fault. Exhibits claim nothing."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "exhibit" not in rule.get("labels", {})]
    return {rule["labels"]["cause"]: rule["alert"] for rule in rules}


def catalogue_row(fault: SimulatedFault) -> str:
    severity, alert = fault.severity, alerts()[fault.name]
    return table_line(
        f"`{fault.name}`",
        " or ".join(fault.targets),
        fault.description,
        severity.meaning,
        f"{severity.mild:g} / {severity.plain:g} / {severity.severe:g}",
        f"[{alert}](runbooks/{alert}.md)",
        "yes" if fault.name in REAL_FAULTS else "",
    )


def catalogue() -> str:
    head = (
        "fault", "strikes", "what happens", "severity", "mild / plain / severe", "alert and runbook", "in real training",
    )  # fmt: skip
    return table(head, ["---"] * len(head), [catalogue_row(fault) for fault in FAULTS.values()])


# Look-alikes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LookAlikes:
    faults: tuple[str, ...]
    columns: tuple[str, ...]
    """The keys of those that tell them apart."""
    text: str


LOOK_ALIKES = (
    LookAlikes(faults=("straggler", "sequence_imbalance", "jitter"), columns=("late_rank", "slowest", "tokens"),
               text="One rank is always last, or another each time; and then the tokens differ, or they do not."),
    LookAlikes(faults=("data_starvation", "storage_node_slow", "cpu_starvation"), columns=("late_node", "user", "iowait"),
               text="Everywhere, or on one node; and there the CPUs wait for storage, or compute."),
    LookAlikes(faults=("network_degradation", "straggler"), columns=("floor", "late_rank", "slowest"),
               text="Even the last arriver spends long in the all-reduce: transfer. Or it spends nothing there: the others wait "
               "for it."),
    LookAlikes(faults=("hang", "gpu_lost"), columns=("ranks", "xid", "in_allreduce"),
               text="No step ends in either. A rank that hangs still reports; one whose GPU is lost does not."),
    LookAlikes(faults=("thermal_throttle", "power_cap"), columns=("celsius", "reasons", "limit"),
               text="The clock is low in both: too hot, or not allowed the power. A healthy H100 shows 0x4, too."),
    LookAlikes(faults=("checkpoint_stall", "storage_outage"), columns=("path_checkpoint", "path_data_wait", "age"),
               text="Everyone stands still at once: for a write, or for reads."),
    LookAlikes(faults=("memory_bound", "small_batch"), columns=("step", "dram", "path_optimizer"),
               text="MFU is low and nobody waits: the step got longer, and all of it is memory; or it got short, and what it "
               "costs anyway is most of it."),
)  # fmt: skip


def tell(column: Column, faults: Sequence[str]) -> str:
    values = " / ".join(column.shown(row(setup_of(fault), fault)[column.key]) for fault in faults)
    return f"{column.label}: **{values}** (healthy {column.shown(row(setup_of(faults[0]), None)[column.key])})"


def look_alike_row(pair: LookAlikes) -> str:
    tells = (tell(COLUMNS[key], pair.faults) for key in pair.columns)
    return table_line(" / ".join(f"`{name}`" for name in pair.faults), "<br>".join(tells), pair.text)


def look_alikes() -> str:
    head = ("look-alikes", "the numbers, in that order", "what they say")
    return table(head, ["---"] * 3, [look_alike_row(pair) for pair in LOOK_ALIKES])


# The picture ----------------------------------------------------------------------------------------------------------

LEFT, TOP, WIDE, HIGH, GAP, RIGHT, BOTTOM = 190, 216, 48, 29, 12, 100, 84
"""Pixels: where the cells begin, a cell, the gap between groups, and the margins."""
MOST_DOUBLINGS = 2.0
"""Where the colours end: a quarter, and four times."""
LESS, NONE, MORE = (33, 102, 172), (246, 246, 244), (190, 84, 10)
"""Blue and orange: all kinds of colour blindness leave them apart."""
INK, FAINT, UNKNOWN = "#24292f", "#6b7280", "#5e3c99"

Rgb: TypeAlias = tuple[int, int, int]


def doublings(column: Column, value: float, healthy: float) -> float:
    """The logarithm of the factor against healthy; the floor keeps it finite where healthy is nothing."""
    least = column.floor or 1.0
    factor = max(value, least) / max(healthy, least)
    return max(-MOST_DOUBLINGS, min(MOST_DOUBLINGS, math.log2(factor)))


def blend(share: float) -> Rgb:
    """From blue at −1 over the ground's white to orange at 1. The root shows small factors, too."""
    end, weight = (MORE if share > 0 else LESS), math.sqrt(abs(share))
    red, green, blue = (round(a + weight * (b - a)) for a, b in zip(NONE, end, strict=True))
    return red, green, blue


def ink_on(colour: Rgb) -> str:
    red, green, blue = colour
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else INK


def factor_text(column: Column, value: float, healthy: float) -> str:
    if healthy <= column.floor:  # a factor of next to nothing says nothing
        return f"{value:.3g}"
    factor = value / healthy
    return "0" if factor < 0.005 else f"×{plain(float(f'{factor:.2g}'))}"


def picture_cell(x: float, y: float, column: Column, value: Value, healthy: Value) -> str:
    if not column.moved(value, healthy):
        return box(x, y, f"rgb{NONE}")
    if value is None or healthy is None or math.isnan(value):
        return box(x, y, UNKNOWN) + text(x + WIDE / 2, y + 19, column.shown(value), fill="#ffffff")
    colour = blend(doublings(column, value, healthy) / MOST_DOUBLINGS)
    label = text(x + WIDE / 2, y + 19, factor_text(column, value, healthy), fill=ink_on(colour))
    return box(x, y, f"rgb{colour}") + label


def box(x: float, y: float, fill: str, width: float = WIDE - 2, height: float = HIGH - 2) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill.replace(" ", "")}"/>\n'


def text(
    x: float, y: float, words: str, *, fill: str = INK, size: int = 12, anchor: str = "middle", more: str = ""
) -> str:
    escaped = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{more}>{escaped}</text>\n'


def pictured() -> list[tuple[float, Theme, tuple[Column, ...]]]:
    """The picture's columns by theme, and where each theme begins."""
    placed, x = [], float(LEFT)
    for theme in THEMES:
        columns = tuple(column for column in theme.columns if column.key in PICTURED)
        placed.append((x, theme, columns))
        x += len(columns) * WIDE + GAP
    return placed


def picture_rows() -> list[tuple[float, Setup, str]]:
    placed, y = [], float(TOP)
    for setup in SETUPS:
        for fault in setup.faults:
            placed.append((y, setup, fault))
            y += HIGH
        y += GAP if len(setup.faults) > 1 else 0
    return placed


def picture_head() -> Iterator[str]:
    for x, theme, columns in pictured():
        width = len(columns) * WIDE
        yield box(x, TOP - 8, "#c9ced6", width - 2, 3)
        for place, column in enumerate(columns):
            at = x + (place + 0.5) * WIDE
            yield text(
                at, TOP - 16, column.label, size=13, anchor="start", more=f' transform="rotate(-45 {at:g} {TOP - 16})"'
            )
        yield text(x + width / 2, picture_bottom() + 20, theme.title, size=13, fill=FAINT, more=' font-weight="600"')


def picture_bottom() -> float:
    return picture_rows()[-1][0] + HIGH


def picture_body() -> Iterator[str]:
    for y, setup, fault in picture_rows():
        yield text(LEFT - 10, y + 19, fault, size=14, anchor="end")
        values, healthy = row(setup, fault), row(setup, None)
        for x, _, columns in pictured():
            for place, column in enumerate(columns):
                yield picture_cell(x + place * WIDE, y, column, values[column.key], healthy[column.key])


KEY_SHARES = ((-1.0, "¼ or less"), (-0.5, "½"), (0.0, "not moved"), (0.5, "× 2"), (1.0, "× 4 or more"))


def picture_key() -> Iterator[str]:
    y = picture_bottom() + 40
    for place, (share, words) in enumerate(KEY_SHARES):
        x = LEFT + place * 130
        yield box(x, y, f"rgb{blend(share)}") + text(x + WIDE + 6, y + 18, words, anchor="start")
    x = LEFT + len(KEY_SHARES) * 130 + 20
    yield box(x, y, UNKNOWN) + text(x + WIDE + 6, y + 18, "– nothing to read, or not a number", anchor="start")


def picture() -> str:
    x, _, columns = pictured()[-1]
    width, height = x + len(columns) * WIDE + RIGHT, picture_bottom() + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'font-family="Inter, Helvetica, Arial, sans-serif">\n<rect width="100%" height="100%" fill="#ffffff"/>\n',
        text(24, 44, "Which fault moves which series", size=24, anchor="start", more=' font-weight="700"'),
        text(24, 68, "Factor against healthy, at plain severity, measured", size=14, fill=FAINT, anchor="start"),
        text(24, 86, "A number without × was nothing in health", size=14, fill=FAINT, anchor="start"),
        *picture_head(), *picture_body(), *picture_key(), "</svg>\n",
    ]  # fmt: skip
    return "".join(parts)


# The page -------------------------------------------------------------------------------------------------------------

HEAD = """\
# Which series each fault moves

Generated by `make generate` from the fault list and from the simulator: edit `docs/faults.py`, not this page.

![A heat map, faults by series: each fault has a pattern of its own, and GPU utilization has none for most of
them](pictures/fault-matrix.svg)

## The faults

Start one with `stepscope fault start NAME`; the severity is *plain* unless you say otherwise. *In real training* are those
that `make lab-real` can do, too, with severities of its own. [How often each strikes in real clusters](incidents.md).

{catalogue}

## Look-alikes

{look_alikes}

## The matrix

Measured: each fault at plain severity on its default target ({targets}).
The job runs in health for {healthy:.0f} s, the fault starts, {settle:.0f} s later the window begins; it lasts {window:.0f} s.
Counters are read at both its ends, gauges every second, all from the pages that Prometheus scrapes. The job is `cluster`:
32 H100 on four nodes. Two faults need another one, and are held against a healthy row of its own: `pcie_downgrade` strikes
`vision`, where batches are large, and `checkpoint_stall` a `cluster` that writes a checkpoint every {every} steps,
over {long_window:.0f} s, so that one falls into the window.

**Bold**: it moved, by more than {relative:.0f} % of the healthy value and by more than the column's floor, in the numbers
as shown. A value that comes or goes counts, and so does a NaN; where the floor is "any", so does any difference. "–": there
is nothing to read. No step ends in `hang` and `gpu_lost`, so that no counter of steps moves: see the ranks in allreduce, the
last step's age, and who reports. `small_batch` makes so many steps that a regular checkpoint falls into its window. A step is
booked when it ends, and may have begun before the window. One seed, {seed}.

{matrix}
"""


def targets() -> str:
    """What a request without a target strikes."""
    job = SETUPS[0].job()
    by_kind = {fault.targets[0]: target_label(default_target(fault, job)) for fault in FAULTS.values()}
    return f"{by_kind['rank']}, {by_kind['node']} or the whole run"


def page() -> str:
    stalled = setup_of("checkpoint_stall")
    return HEAD.format(
        catalogue=catalogue(),
        look_alikes=look_alikes(),
        targets=targets(),
        healthy=HEALTHY_SECONDS,
        settle=SETTLE_SECONDS,
        window=SETUPS[0].window_seconds,
        every=stalled.job().schedule.checkpoint_every_steps,
        long_window=stalled.window_seconds,
        relative=100 * RELATIVE,
        seed=SEED,
        matrix="\n\n".join(map(matrix, THEMES)),
    )


def main() -> None:
    for setup, fault in track(runs(), "Measuring the faults", console=Console(stderr=True)):
        row(setup, fault)
    FILE.write_text(page(), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
