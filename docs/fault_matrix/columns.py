"""The matrix's columns: how each number is read, shown, and held against the healthy one. To add one: add it to its theme."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fault_matrix.measuring import NODE, RANK, WINDOW_SECONDS, Floats, Reading, picked
from stepscope.phases import PHASES

RELATIVE = 0.10
"""A cell has moved where it differs by more than this share of the healthy one, and by more than its column's floor."""

Value: TypeAlias = float | None
"""None where there is nothing to read: no step has ended, or the part is not there."""
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
COLUMNS = {column.key: column for theme in THEMES for column in theme.columns}
