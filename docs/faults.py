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
from stepsim.faults import FAULTS, Severity, SimulatedFault
from stepsim.job import PRESETS, Job, load_job
from stepsim.pages import Pages
from stepsim.real import REAL_FAULTS

FILE = Path(__file__).with_name("faults.md")
PICTURE = FILE.parent / "pictures" / "fault-matrix.svg"
RULES = FILE.parents[1] / "prometheus" / "rules" / "alerts.yml"

SEED, EPOCH = 4, 1_700_000_000.0
HEALTHY_SECONDS = 120.0
SETTLE_SECONDS = 60.0
"""Between a fault's start and the window: a hot GPU takes about that long."""
WINDOW_SECONDS = 120.0
SCRAPE_SECONDS = 5.0
"""As in prometheus/prometheus.yml."""
RELATIVE = 0.10
"""A cell has moved where it differs by more than this share of the healthy one, and by more than its column's floor."""

Floats: TypeAlias = npt.NDArray[np.float64]
Value: TypeAlias = float | None
"""None where there is nothing to read: no step has ended, or the part is not there."""


# What is run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)  # each is itself, and a key
class Setup:
    """A job, and the faults that are measured on it, against its own healthy row."""

    title: str
    preset: str = "cluster"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[str, ...]

    def job(self) -> Job:
        return load_job(self.preset, **self.overrides)


OWN_SETUPS = (
    Setup(title="healthy, `vision`", preset="vision", faults=("pcie_downgrade",)),
    Setup(
        title="healthy, checkpoints",
        # A stalled checkpoint takes 55 s: both rows have one that begins and ends in the window.
        overrides={"schedule": {"checkpoint_every_steps": 600}},
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
NODE = re.compile(r'\bnode="([^"]+)"')
RANK = re.compile(r'\brank="([^"]+)"')


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
    """What was scraped over a window: the counters at both its ends, the gauges every few seconds."""

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

    def by(self, part: re.Pattern[str], name: str, *labels: str) -> dict[str, float]:
        """A counter's increase, summed over all that share a node or a rank."""
        sums: dict[str, float] = {}
        for key, value in self.increases(name, *labels).items():
            (whose,) = part.findall(key)
            sums[whose] = sums.get(whose, 0.0) + value
        return sums

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
    samples = tuple(sampled(engine, pages))
    return Reading(first=first, last=scrape(pages, COUNTED), samples=samples)


def sampled(engine: Engine, pages: Pages) -> Iterator[tuple[float, Scrape]]:
    for _ in range(int(WINDOW_SECONDS / SCRAPE_SECONDS)):
        engine.advance(engine.now + SCRAPE_SECONDS)
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
    points: bool = False
    """How far it moved is said as a difference; of others as a factor."""

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

    def distance(self, value: Value, healthy: Value) -> str:
        """How far it moved; empty where there is nothing to hold it against."""
        if value is None or healthy is None or math.isnan(value) or self.bits:
            return ""
        if self.points:
            return signed(float(f"{value - healthy:.2g}"))
        return times(value / healthy) if healthy > self.floor / 2 else ""


def plain(value: float) -> str:
    """Without an exponent."""
    text = f"{value:,.6f}"
    return text.rstrip("0").rstrip(".")


def signed(value: float) -> str:
    return f"{'+' if value > 0 else '−'}{plain(abs(value))}"


def times(factor: float) -> str:
    return "×0" if abs(factor) < 0.005 else f"×{plain(float(f'{factor:.2g}'))}"


def gauge(name: str, fold: Callable[[Floats], Any], factor: float = 1.0) -> Read:
    def read(reading: Reading) -> Value:
        seen = reading.gauge(name)
        return factor * float(fold(seen)) if seen.size else None

    return read


def rate(name: str, fold: Callable[[Floats], Any], factor: float = 1.0) -> Read:
    def read(reading: Reading) -> Value:
        gained = reading.gained(name)
        return factor * float(fold(gained)) / WINDOW_SECONDS if gained.size else None

    return read


def count(name: str) -> Read:
    """By how much a counter of the run has grown."""
    return lambda reading: float(reading.gained(name).sum())


def step_seconds(reading: Reading) -> Value:
    steps = reading.gained("training_steps_total").max()
    return WINDOW_SECONDS / steps if steps else None


def mfu(reading: Reading) -> Value:
    peak = np.array(list(picked(reading.last, "training_peak_flops").values()))
    return float(100 * (reading.gained("training_model_flops_total") / peak).mean() / WINDOW_SECONDS)


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


def latest_share(part: re.Pattern[str], name: str = "training_late_steps_total") -> Read:
    def read(reading: Reading) -> Value:
        late = reading.by(part, name).values()
        return 100 * max(late) / sum(late) if sum(late) else None

    return read


def allreduce_ms(of: Callable[[Mapping[str, float], str], float]) -> Read:
    """Per step; ``of`` gets every rank's exposed all-reduce, and the rank that was late most often."""

    def read(reading: Reading) -> Value:
        late = reading.by(RANK, "training_late_steps_total")
        waits = reading.by(RANK, "training_phase_seconds_total", 'phase="allreduce"')
        steps = sum(late.values())
        return 1000 * of(waits, max(late, key=lambda rank: late[rank])) / steps if steps else None

    return read


def of_others(waits: Mapping[str, float], accused: str) -> float:
    return float(np.median([seconds for rank, seconds in waits.items() if rank != accused]))


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
        spent = reading.by(NODE, "node_cpu_seconds_total", f'mode="{mode}"')
        return 100 * max(spent.values()) * len(spent) / cpus / WINDOW_SECONDS

    return read


def last_loss(reading: Reading) -> Value:
    """A step's own loss is noisy: half a minute's mean."""
    return float(reading.gauge("training_loss")[-6:].mean())


def progress(reading: Reading) -> Value:
    """By the logarithm of the step, so that neither the age nor the speed of the training matters."""
    loss, steps = (reading.gauge(f"training_{name}")[:, 0] for name in ("loss", "global_step"))
    if steps[0] == steps[-1]:
        return None
    return math.nan if np.isnan(loss).any() else -float(np.polyfit(np.log(steps), loss, 1)[0])


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
        Column(key=f"path_{phase}", label=f"{phase} %", read=path_share(phase), floor=2, digits=2, points=True,
               series=f'`training_critical_path_seconds_total{{phase="{phase}"}}`: its share of all phases')
        for phase in PHASES
    )  # fmt: skip


def own_columns() -> tuple[Column, ...]:
    return tuple(
        Column(key=f"own_{phase}", label=f"mean {phase} %", read=own_share(phase), floor=1, digits=2, points=True,
               series=f'`training_phase_seconds_total{{phase="{phase}"}}`, summed over ranks: its share of all phases')
        for phase in ("data_wait", "h2d", "allreduce", "checkpoint", "other")
    )  # fmt: skip


THEMES = (
    Theme(title="Speed and GPUs", text="What the run achieves, and what its GPUs say of it.", columns=(
        Column(key="step", label="s per step", read=step_seconds, floor=0.02, series="1 / `rate(training_steps_total)`"),
        Column(key="mfu", label="MFU %", read=mfu, floor=2,
               series="`rate(training_model_flops_total)` / `training_peak_flops`, mean"),
        Column(key="util", label="GPU util %", read=gauge("DCGM_FI_DEV_GPU_UTIL", np.mean), floor=3, points=True,
               series="`DCGM_FI_DEV_GPU_UTIL`, mean"),
        Column(key="sm", label="SM active %", read=gauge("DCGM_FI_PROF_SM_ACTIVE", np.mean, 100), floor=3,
               series="`DCGM_FI_PROF_SM_ACTIVE`, mean"),
        Column(key="tensor", label="tensor %", read=gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", np.mean, 100), floor=2,
               series="`DCGM_FI_PROF_PIPE_TENSOR_ACTIVE`, mean"),
        Column(key="dram", label="DRAM %", read=gauge("DCGM_FI_PROF_DRAM_ACTIVE", np.mean, 100), floor=2,
               series="`DCGM_FI_PROF_DRAM_ACTIVE`, mean"),
        Column(key="watts", label="power W", read=gauge("DCGM_FI_DEV_POWER_USAGE", np.mean), floor=20,
               series="`DCGM_FI_DEV_POWER_USAGE`, mean"),
        Column(key="celsius", label="hottest °C", read=gauge("DCGM_FI_DEV_GPU_TEMP", np.max), floor=3, points=True,
               series="`DCGM_FI_DEV_GPU_TEMP`, maximum"),
        Column(key="clock", label="lowest clock MHz", read=gauge("DCGM_FI_DEV_SM_CLOCK", np.min), floor=50,
               series="`DCGM_FI_DEV_SM_CLOCK`, minimum"),
    )),
    Theme(title="Where the time goes", columns=path_columns(), text="Shares of the critical path: the step as the rank lived it "
          "that arrived last. It names the phase."),
    Theme(title="The mean rank", columns=own_columns(), text="The same phases, averaged over all ranks. What one rank does is "
          "divided by their number, and all that the others do is wait: every fault of one rank at a time reads as all-reduce."),
    Theme(title="Who it is", text="One culprit stands out, or nobody does.", columns=(
        Column(key="slowest", label="slowest / median rank", read=slowest_by_median, floor=0.05,
               series='`training_phase_seconds_total`, `forward` and `backward` of each rank: largest / median increase'),
        Column(key="late_rank", label="latest rank's steps %", read=latest_share(RANK), floor=15, digits=2, points=True,
               series="`training_late_steps_total` by rank: largest share of the increase"),
        Column(key="late_node", label="latest node's steps %", read=latest_share(NODE), floor=15, digits=2, points=True,
               series="`training_late_steps_total` by node: largest share of the increase"),
        Column(key="late_seconds", label="latest node's seconds %", floor=60, digits=2, points=True,
               read=latest_share(NODE, "training_late_seconds_total"),
               series="`training_late_seconds_total` by node: largest share of the increase"),
        Column(key="accused", label="its all-reduce ms", read=allreduce_ms(lambda waits, accused: waits[accused]),
               floor=4, digits=2,
               series='`training_phase_seconds_total{phase="allreduce"}` per step, of the rank that was late most often'),
        Column(key="others", label="the others' ms", read=allreduce_ms(of_others), floor=4, digits=2,
               series="the same of the median of all other ranks"),
        Column(key="tokens", label="tokens' spread %", read=token_spread, floor=0.2, digits=2,
               series="`training_tokens_total` by rank: standard deviation / mean of the increase"),
        Column(key="floor", label="all-reduce floor ms", floor=1,
               read=lambda r: 1000 * min(picked(r.last, "training_allreduce_floor_seconds").values()),
               series="`training_allreduce_floor_seconds`, minimum"),
        Column(key="in_allreduce", label="ranks in allreduce", read=in_allreduce, floor=3, digits=2,
               series='`training_current_phase{phase="allreduce"}`, summed over ranks, mean'),
    )),
    Theme(title="Host, links and network", text="What was set, what the hosts do, and which way the bytes go.", columns=(
        Column(key="limit", label="power limit %", read=power_limit, floor=4, points=True,
               series="`DCGM_FI_DEV_POWER_MGMT_LIMIT` / `DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF`, minimum"),
        Column(key="reasons", label="throttle reasons", read=gauge("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", reasons), bits=True,
               series="`DCGM_FI_DEV_CLOCK_THROTTLE_REASONS`: all bits seen; 0x1 idle, 0x4 power cap, 0x20 thermal"),
        Column(key="generation", label="lowest PCIe gen", read=gauge("DCGM_FI_DEV_PCIE_LINK_GEN", np.min),
               series="`DCGM_FI_DEV_PCIE_LINK_GEN`, minimum"),
        Column(key="lanes", label="fewest PCIe lanes", read=gauge("DCGM_FI_DEV_PCIE_LINK_WIDTH", np.min),
               series="`DCGM_FI_DEV_PCIE_LINK_WIDTH`, minimum"),
        Column(key="user", label="CPU user %", read=busiest("user"), floor=5, digits=2, points=True,
               series='`rate(node_cpu_seconds_total{mode="user"})`, mean of a node\'s CPUs, largest of all nodes'),
        Column(key="iowait", label="CPU iowait %", read=busiest("iowait"), floor=5, digits=2, points=True,
               series='`rate(node_cpu_seconds_total{mode="iowait"})`, likewise'),
        Column(key="infiniband", label="InfiniBand GB/s", floor=0.2,
               read=rate("node_infiniband_port_data_transmitted_bytes_total", np.sum, 1e-9),
               series="`rate(node_infiniband_port_data_transmitted_bytes_total)`, summed over the run"),
        Column(key="ethernet", label="Ethernet GB/s", floor=0.2,
               read=rate("node_network_transmit_bytes_total", np.sum, 1e-9),
               series="`rate(node_network_transmit_bytes_total)`, summed over the run"),
        Column(key="nvlink", label="NVLink GB/s", floor=0.2, read=gauge("DCGM_FI_PROF_NVLINK_TX_BYTES", np.mean, 1e-9),
               series="`DCGM_FI_PROF_NVLINK_TX_BYTES`, mean of all GPUs"),
        Column(key="pcie", label="PCIe GB/s", floor=0.2, read=gauge("DCGM_FI_PROF_PCIE_RX_BYTES", np.mean, 1e-9),
               series="`DCGM_FI_PROF_PCIE_RX_BYTES`, mean of all GPUs"),
    )),
    Theme(title="Learning and progress", text="Whether it learns, and whether it goes on at all.", columns=(
        Column(key="loss", label="loss", read=last_loss, floor=0.05,
               series="`training_loss`, mean of the window's last half minute"),
        Column(key="progress", label="loss fall per e-fold", read=progress, floor=0.15, digits=2,
               series="slope of `training_loss` over the logarithm of `training_global_step`, negated"),
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
        Column(key="age", label="last step's age s", read=oldest_step, floor=3, digits=2,
               series="`time()` − `max(training_last_step_timestamp_seconds)`, the largest seen"),
        Column(key="ranks", label="ranks reporting", exact=True, points=True,
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
        "own_data_wait", "own_allreduce", "own_other",
        "slowest", "late_rank", "late_seconds", "accused", "tokens", "floor",
        "limit", "user", "iowait", "ethernet",
        "progress", "local_norm", "nonfinite", "age", "xid",
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
    if not column.moved(value, healthy):
        return "·"
    return f"**{column.shown(value)}** {column.distance(value, healthy)}".rstrip()


def table_row(setup: Setup, fault: str | None, columns: Sequence[Column]) -> str:
    values, healthy = row(setup, fault), row(setup, None)
    if fault is None:
        return table_line(f"*{setup.title}*", *(column.shown(healthy[column.key]) for column in columns))
    return table_line(f"`{fault}`", *(cell(column, values[column.key], healthy[column.key]) for column in columns))


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


def grades(severity: Severity) -> str:
    return f"{severity.mild:g} / {severity.plain:g} / {severity.severe:g}"


def catalogue_row(fault: SimulatedFault) -> str:
    alert, real = alerts()[fault.name], REAL_FAULTS.get(fault.name)
    return table_line(
        f"`{fault.name}`",
        " or ".join(fault.targets),
        fault.description,
        fault.severity.meaning,
        grades(fault.severity),
        f"[{alert}](runbooks/{alert}.md)",
        grades(real.severity) if real else "",
    )


def catalogue() -> str:
    head = (
        "fault", "strikes", "what happens", "severity", "mild / plain / severe", "alert and runbook", "in real training",
    )  # fmt: skip
    return table(head, ["---"] * len(head), [catalogue_row(fault) for fault in FAULTS.values()])


def impossible() -> str:
    """A line for every fault that some presets cannot have: which ones, and why."""
    jobs = {preset: load_job(preset) for preset in PRESETS}
    why = {
        name: {preset: reason for preset, job in jobs.items() if (reason := fault.need(job))}
        for name, fault in FAULTS.items()
    }
    return "\n".join(
        f"- `{name}`, in {', '.join(f'`{preset}`' for preset in reasons)}: it {next(iter(reasons.values()))}."
        for name, reasons in why.items()
        if reasons
    )


# Look-alikes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LookAlikes:
    one: str
    other: str
    columns: tuple[str, ...]
    """The keys of the one or two that tell them apart."""
    text: str


LOOK_ALIKES = (
    LookAlikes(one="straggler", other="jitter", columns=("late_rank", "slowest"),
               text="All wait in all-reduce for one that computes. Either it is the same rank each time, or they take turns."),
    LookAlikes(one="jitter", other="sequence_imbalance", columns=("tokens",),
               text="Another rank is late each time. Either at equal work, or because it had more tokens: even their sums over a "
               "while differ."),
    LookAlikes(one="straggler", other="thermal_throttle", columns=("clock", "celsius"),
               text="One GPU computes more slowly. Either its clock says why, and its temperature, or nothing on it does."),
    LookAlikes(one="thermal_throttle", other="power_cap", columns=("limit", "celsius"),
               text="One GPU's clock is low. Either it is too hot, or somebody does not allow it the power. Bit 0x4 alone says "
               "nothing: a healthy H100 sets it."),
    LookAlikes(one="straggler", other="pcie_downgrade", columns=("path_h2d", "generation"),
               text="One rank is always last. Either it computes longer, or its batches arrive more slowly."),
    LookAlikes(one="straggler", other="network_degradation", columns=("accused", "floor"),
               text="Most ranks spend long in all-reduce. Either one comes last and hardly waits there itself, or all of them, "
               "the last one too, are busy with the transfer."),
    LookAlikes(one="network_degradation", other="nccl_fallback", columns=("infiniband", "ethernet"),
               text="The transfer takes long for everyone. Either the same way is slower, or the bytes have moved to another one."),
    LookAlikes(one="data_starvation", other="storage_node_slow", columns=("late_node", "iowait"),
               text="The last arriver waits for data. Either it is a rank of any node, or always of one, whose CPUs wait for "
               "storage more than all others."),
    LookAlikes(one="storage_node_slow", other="cpu_starvation", columns=("iowait", "user"),
               text="One node's ranks wait for data. Either its CPUs wait for storage, or they are saturated by decoding."),
    LookAlikes(one="data_starvation", other="storage_outage", columns=("util", "path_data_wait"),
               text="All nodes wait for data. Either one rank at a time, which utilization hides, or many at once, which shows."),
    LookAlikes(one="data_starvation", other="gc_pause", columns=("path_data_wait", "path_other"),
               text="The late rank changes, and it was not computing. Either its loader had nothing, or its host paused."),
    LookAlikes(one="storage_outage", other="checkpoint_stall", columns=("path_data_wait", "path_checkpoint"),
               text="The run stands still now and then. Either for reads, or for a write."),
    LookAlikes(one="memory_bound", other="small_batch", columns=("step", "path_optimizer"),
               text="MFU is low and nobody is late. Either the step got longer, and all of it is memory, or it got short, and what "
               "it costs anyway is most of it."),
    LookAlikes(one="hang", other="gpu_lost", columns=("ranks", "xid"),
               text="No step ends, and all others wait at full utilization. Either the rank still reports, or it has gone with its "
               "GPU."),
    LookAlikes(one="gradient_explosion", other="silent_corruption", columns=("nonfinite", "local_norm"),
               text="The hardware looks well and what is learned does not. Either all ranks go astray together, or one departs "
               "from its peers."),
)  # fmt: skip


def tell(key: str, pair: LookAlikes) -> str:
    column, setups = COLUMNS[key], (setup_of(pair.one), setup_of(pair.other))
    one, other = (
        column.shown(row(setup, fault)[key]) for setup, fault in zip(setups, (pair.one, pair.other), strict=True)
    )
    healthy = dict.fromkeys(column.shown(row(setup, None)[key]) for setup in setups)
    return f"{column.label}: **{one}** against **{other}** (healthy {' and '.join(healthy)})"


def look_alike(pair: LookAlikes) -> str:
    numbers = "; ".join(tell(key, pair) for key in pair.columns)
    return f"**`{pair.one}` or `{pair.other}`?** {pair.text} Told by {numbers}."


def look_alikes() -> str:
    return "\n\n".join(map(look_alike, LOOK_ALIKES))


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
    if value <= 0:
        return -MOST_DOUBLINGS
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


def picture_cell(x: float, y: float, column: Column, value: Value, healthy: Value) -> str:
    if not column.moved(value, healthy):
        return box(x, y, f"rgb{NONE}")
    if value is None or healthy is None or math.isnan(value):
        return box(x, y, UNKNOWN) + text(x + WIDE / 2, y + 19, column.shown(value), fill="#ffffff")
    colour = blend(doublings(column, value, healthy) / MOST_DOUBLINGS)
    label = text(x + WIDE / 2, y + 19, column.distance(value, healthy) or column.shown(value), fill=ink_on(colour))
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
    placed, y = [], float(TOP + HIGH + GAP)
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


def picture_healthy() -> Iterator[str]:
    yield text(LEFT - 10, TOP + 19, SETUPS[0].title, fill=FAINT, size=14, anchor="end")
    for x, _, columns in pictured():
        for place, column in enumerate(columns):
            shown = column.shown(row(SETUPS[0], None)[column.key]).replace(",", "")
            yield text(x + (place + 0.5) * WIDE - 1, TOP + 19, shown, fill=FAINT)


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
    own = "The last two rows are held against a healthy job of their own: see the tables."
    yield text(x + 330, y + 18, own, fill=FAINT, anchor="start")


def picture() -> str:
    x, _, columns = pictured()[-1]
    width, height = x + len(columns) * WIDE + RIGHT, picture_bottom() + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'font-family="Inter, Helvetica, Arial, sans-serif">\n<rect width="100%" height="100%" fill="#ffffff"/>\n',
        text(24, 44, "Which fault moves which series", size=24, anchor="start", more=' font-weight="700"'),
        text(24, 68, "How far from healthy, at plain severity, measured:", size=14, fill=FAINT, anchor="start"),
        text(24, 86, "× a factor, ± points, alone if it was nothing in health.", size=14, fill=FAINT, anchor="start"),
        *picture_head(), *picture_healthy(), *picture_body(), *picture_key(), "</svg>\n",
    ]  # fmt: skip
    return "".join(parts)


# The page -------------------------------------------------------------------------------------------------------------

HEAD = """\
# Which series each fault moves

Generated by `make generate` from the fault list and from the simulator: edit `docs/faults.py`, not this page.

![A heat map, faults by series: each fault has a pattern of its own, and GPU utilization has none for most of
them](pictures/fault-matrix.svg)

## The faults

Start one with `stepscope fault start NAME`; the severity is *plain* unless you say otherwise. *In real training* has mild,
plain and severe of those that `make lab-real` can do, too: there `stepscope fault catalogue` says what they mean.
[How often each strikes in real clusters](incidents.md).

{catalogue}

What a preset cannot have:

{impossible}

## Look-alikes

A number or two tell each pair apart; they are cells of the matrix below.

{look_alikes}

## The matrix

Measured: each fault at plain severity on its default target ({targets}). The job runs in health for
{healthy:.0f} s, the fault starts, {settle:.0f} s later the window begins; it lasts {window:.0f} s. Counters are read at
both its ends, gauges every {scrape:.0f} s, all from the pages that Prometheus scrapes. The job is `cluster`: 32 H100 on
four nodes. Two faults need another one, and are held against a healthy row of its own: `pcie_downgrade` strikes `vision`,
where batches are large, and `checkpoint_stall` a `cluster` that writes a checkpoint every {every} steps, so that one falls
into the window.

**Bold**: it moved, by more than {relative:.0f} % of the healthy value and by more than the column's floor, in the numbers
as shown. Beside it how far: a factor (×), or, for shares and degrees, points (+, −); nothing where it was nothing in health.
A value that comes or goes counts as moved, and so does a NaN; where the floor is "any", so does any difference. "·": it did
not move. "–": there is nothing to read. No step ends in `hang` and `gpu_lost`, so that no counter of steps moves: see the
ranks in allreduce, the last step's age, and who reports. `small_batch` makes so many steps that a regular checkpoint falls
into its window. A step is booked when it ends, and may have begun before the window. One seed, {seed}: what comes by chance,
as stalls and who is late in health, differs a little from one to another.

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
        impossible=impossible(),
        look_alikes=look_alikes(),
        targets=targets(),
        healthy=HEALTHY_SECONDS,
        settle=SETTLE_SECONDS,
        window=WINDOW_SECONDS,
        scrape=SCRAPE_SECONDS,
        every=stalled.job().schedule.checkpoint_every_steps,
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
