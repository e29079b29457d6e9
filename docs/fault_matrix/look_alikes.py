"""Pairs of faults that are mistaken for one another, and the numbers that tell them apart. To add a pair: add a row."""

from __future__ import annotations

from dataclasses import dataclass

from fault_matrix.columns import COLUMNS
from fault_matrix.rows import row, setup_of


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
