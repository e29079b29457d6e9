"""What a run can suffer from: how each cause is measured, what it costs, and what it is mistaken for.

Whether a cause is at work decides its alert, in prometheus/rules/alerts.yml; here is what is said about it. To add a
fault: add a row to ``CAUSES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepscope.diagnosis.report import Unit


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number that speaks for or against a cause.

    In its query ``$run`` stands for the run's label, and ``$target`` for the labels of the run and of whom is accused.
    """

    what: str
    query: str
    unit: Unit
    healthy: str
    """Where a healthy run's number lies, in words; its bound is the alert's."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The first measure is of the whole run; the others are of the accused."""

    summary: str
    """``{who}`` is the accused: ``rank 5 on node-0``, ``node-2`` or ``the run``."""
    lost: str
    """Query: share of the run's GPUs that it costs."""
    measures: tuple[Measure, ...]
    look_alikes: tuple[str, ...]
    tell: Measure | None = None
    """What rules it out, of the whole run; without one, the first measure."""
    told_from: Mapping[str, Measure] = field(default_factory=dict)
    """By look-alike: what rules that one out, where what does so elsewhere is out of its band here as well."""

    @property
    def telling(self) -> Measure:
        return self.tell or self.measures[0]


LATE_SHARE = "sum(rank:training_late_share:rate1m{$target})"
"""Of a node: its ranks' together."""
ALL = "vector(1)"
"""No step is made, or none that is worth keeping."""


def _lost(phases: str) -> str:
    """Beyond the run's own best hours."""
    return f'sum(run:training_lost_gpus:by_phase{{$run,phase=~"{phases}"}}) / max(run:training_ranks:count{{$run}})'


def _path(what: str, phase: str, healthy: str) -> Measure:
    return Measure(what=f"critical path's {what}", unit="ratio", healthy=healthy,
                   query=f'run:training_critical_path_share:rate1m{{$run,phase="{phase}"}}')  # fmt: skip


UTILIZATION = Measure(what="average GPU utilization, which shows nothing of it", unit="ratio", healthy="above 95 %",
                      query="run:gpu_utilization:ratio_avg1m{$run}")  # fmt: skip
MFU = Measure(what="MFU", unit="ratio", healthy="36 to 46 % on an H100", query="run:training_mfu:ratio_rate1m{$run}")
COMPUTE_EXCESS = Measure(what="its forward and backward beyond the median rank's", unit="ratio", healthy="below 5 %",
                         query="rank:training_compute_excess:ratio_rate1m{$target}")  # fmt: skip
LATE = Measure(
    what="share of the run's time in which all wait for it", unit="ratio", healthy="below 8 %", query=LATE_SHARE
)
TEMPERATURE = Measure(what="its temperature", unit="celsius", healthy="65 to 72 °C",
                      query="max(rank:gpu_temperature_celsius:avg1m{$target})")  # fmt: skip
CLOCK = Measure(
    what="its SM clock", unit="hertz", healthy="that of its peers", query="min(rank:gpu_sm_clock_hertz:avg1m{$target})"
)
PEER_CLOCK = Measure(what="the fastest GPU's SM clock", unit="hertz", healthy="the same",
                     query="max(rank:gpu_sm_clock_hertz:avg1m{$run})")  # fmt: skip
DATA_WAIT = _path("data wait", "data_wait", "below 15 %")
CPU_USER = Measure(what="user time of the busiest node's CPUs", unit="ratio", healthy="below 70 %",
                   query="max(node:training_cpu_user:share_rate1m{$run})")  # fmt: skip
TOGETHER = Measure(what="mean rank's data wait", unit="ratio", healthy="below 5 %",
                   query='run:training_phase_share:rate1m{$run,phase="data_wait"}')  # fmt: skip
ALLREDUCE = _path("all-reduce, which is transfer alone", "allreduce", "below 5 %")
TRANSFER = Measure(what="transfer per step", unit="seconds", healthy="below 3 times the run's best",
                   query='run:training_critical_path_seconds:per_step_rate1m{$run,phase="allreduce"}')  # fmt: skip
RDMA = Measure(what="bytes by RDMA", unit="bytes_per_second", healthy="nearly all",
               query="run:training_rdma_bytes_per_second:rate1m{$run}")  # fmt: skip
PORTS = Measure(what="slowest InfiniBand port's rate by the fastest's", unit="ratio", healthy="100 %; less: that rail alone",
                query="min(node_infiniband_rate_bytes_per_second and on (node) training_rank_info{$run}) / "
                      "max(node_infiniband_rate_bytes_per_second and on (node) training_rank_info{$run})")  # fmt: skip
LOSS = Measure(what="loss", unit="number", healthy="finite, and falling", query="max(training_loss{$run})")
COMPUTE_IMBALANCE = Measure(what="the critical path's compute beyond the mean rank's", unit="ratio", healthy="below 8 %",
                            query="run:training_compute_imbalance:ratio_rate1m{$run}")  # fmt: skip
CONCENTRATION = Measure(what="largest rank's share of the lateness", unit="ratio", healthy="an equal share of all",
                        query="run:training_late_concentration:max_rank{$run}")  # fmt: skip
OFTEN_LATE = Measure(what="how much more often than others one node's ranks come last", unit="ratio", healthy="below 18 %",
                     query="max(node:training_late_steps_excess:rate1m{$run})")  # fmt: skip

CAUSES: dict[str, Cause] = {
    "hang": Cause(
        summary="No step ends any more, because {who} does not arrive; the other GPUs read busy while they wait.",
        lost=ALL,
        measures=(
            Measure(what="age of the last step", unit="seconds", healthy="below 60 s",
                    query="run:training_last_step_age_seconds:min{$run}"),
            Measure(what="for how long it has been in its phase", unit="seconds", healthy="less than a step",
                    query="time() - min(training_current_phase_started_timestamp_seconds{$target})"),
            UTILIZATION,
        ),
        look_alikes=("gpu_lost", "checkpoint_stall"),
    ),
    "gpu_lost": Cause(
        summary="{Who} has vanished, its process and perhaps its GPU, and the others wait for it.",
        lost=ALL,
        measures=(
            Measure(what="ranks that took part in the job's last steps and are gone", unit="count", healthy="0",
                    query="count(rank:training_missing:last1h{$run}) or vector(0)"),
            Measure(what="the last XID of its GPU", unit="count", healthy="0; 79: it fell off the bus",
                    query="max(rank:gpu_xid:last{$target})"),
        ),
        look_alikes=("hang",),
    ),
    "data_starvation": Cause(
        summary="Training waits for data, on a different rank each step, and all others wait for that rank.",
        lost=_lost("data_wait"),
        measures=(
            DATA_WAIT,
            Measure(what="the mean rank's own data wait", unit="ratio", healthy="near 0: the mean hides it",
                    query='run:training_phase_share:rate1m{$run,phase="data_wait"}'),
            OFTEN_LATE,
            UTILIZATION,
        ),
        look_alikes=("cpu_starvation", "storage_node_slow", "storage_outage", "straggler"),
    ),
    "storage_node_slow": Cause(
        summary="The data of {who} arrives late, and all nodes wait for it.",
        lost=LATE_SHARE,
        measures=(
            Measure(what="largest share of the run's time that one node's data costs", unit="ratio", healthy="below 8 %",
                    query='max(node:training_late_share:rate1m{$run,phase="data_wait"}) or vector(0)'),
            LATE, UTILIZATION,
        ),
        look_alikes=("cpu_starvation", "data_starvation", "straggler"),
        tell=OFTEN_LATE,
        told_from={"data_starvation": OFTEN_LATE},
    ),
    "storage_outage": Cause(
        summary="Storage stands still again and again, and all ranks wait for data at once.",
        lost=_lost("data_wait"),
        measures=(
            TOGETHER,
            DATA_WAIT,
            Measure(what="average GPU utilization", unit="ratio", healthy="above 95 %",
                    query="run:gpu_utilization:ratio_avg1m{$run}"),
        ),
        look_alikes=("data_starvation", "checkpoint_stall"),
        told_from={"data_starvation": TOGETHER},
    ),
    "cpu_starvation": Cause(
        summary="The CPUs of {who} cannot prepare data as fast as its GPUs take it.",
        lost=LATE_SHARE,
        measures=(
            CPU_USER,
            Measure(what="its CPUs' time in iowait", unit="ratio", healthy="small: it does not wait for storage",
                    query='sum(node:node_cpu:share_rate1m{$node,mode="iowait"})'),
            DATA_WAIT, LATE,
        ),
        look_alikes=("storage_node_slow", "data_starvation"),
        told_from={"storage_node_slow": CPU_USER, "data_starvation": CPU_USER},
    ),
    "memory_bound": Cause(
        summary="Kernels wait for memory instead of multiplying, on all GPUs alike, and nobody waits for anybody.",
        lost=_lost("forward|backward"),
        measures=(
            Measure(what="DRAM activity by tensor core activity", unit="number", healthy="below 1.5",
                    query="run:gpu_dram_by_tensor:ratio_avg1m{$run}"),
            Measure(what="tensor core activity", unit="ratio", healthy="about MFU",
                    query="avg(rank:gpu_tensor_active:ratio_avg1m{$run})"),
            MFU, UTILIZATION,
        ),
        look_alikes=("small_batch", "network_degradation"),
    ),
    "small_batch": Cause(
        summary="Most of a step is what it costs anyway: its batch is too small for this model and these GPUs.",
        lost="max(run:training_fixed_cost:share_rate1m{$run})",
        measures=(
            Measure(what="share of the step that does not depend on the batch", unit="ratio", healthy="below 15 %",
                    query="run:training_fixed_cost:share_rate1m{$run}"),
            Measure(what="tokens per step and rank", unit="count", healthy="what was configured",
                    query="max(rate(training_tokens_total{$run}[1m]) / (rate(training_steps_total{$run}[1m]) > 0))"),
            MFU, UTILIZATION,
        ),
        look_alikes=("memory_bound", "network_degradation"),
        told_from={"network_degradation": TRANSFER},
    ),
    "thermal_throttle": Cause(
        summary="{Who} is too hot: its driver lowers the clock, and all others wait.",
        lost=LATE_SHARE,
        measures=(
            Measure(what="GPUs throttled for heat", unit="count", healthy="0",
                    query="sum(rank:gpu_thermally_throttled:bool{$run})"),
            TEMPERATURE,
            CLOCK, PEER_CLOCK,
        ),
        look_alikes=("power_cap", "straggler"),
    ),
    "power_cap": Cause(
        summary="{Who} may draw less power than the others: its clock is lower, and all others wait.",
        lost=LATE_SHARE,
        measures=(
            Measure(what="lowest power limit by its default", unit="ratio", healthy="the same on all, within 5 %",
                    query="min(rank:gpu_power_limit:ratio{$run})"),
            TEMPERATURE,
            CLOCK, PEER_CLOCK,
        ),
        look_alikes=("thermal_throttle", "straggler"),
    ),
    "pcie_downgrade": Cause(
        summary="The PCIe link of {who} has trained down; where batches are large, all others wait for its copies.",
        lost=LATE_SHARE,
        measures=(
            Measure(what="narrowest link by its maximum", unit="ratio", healthy="above 90 %",
                    query="min(rank:gpu_link:ratio{$run})"),
            Measure(what="its share of time in host-to-device copies", unit="ratio", healthy="that of its peers",
                    query='rank:training_phase_share:rate1m{$target,phase="h2d"}'),
            LATE,
        ),
        look_alikes=("straggler", "data_starvation"),
    ),
    "network_degradation": Cause(
        summary="The all-reduce takes longer for everyone: it is the transfer, and nobody is late.",
        lost=_lost("allreduce"),
        measures=(
            ALLREDUCE,
            TRANSFER,
            Measure(what="the run's best", unit="seconds", healthy="about the same",
                    query='run:training_critical_path_seconds:base6h{$run,phase="allreduce"}'),
            PORTS,
            UTILIZATION,
        ),
        look_alikes=("nccl_fallback", "straggler", "small_batch"),
    ),
    "nccl_fallback": Cause(
        summary="NCCL no longer takes its fast way: its bytes go through sockets, or over PCIe.",
        lost=_lost("allreduce"),
        measures=(
            Measure(what="bytes through sockets", unit="bytes_per_second", healthy="far below RDMA's",
                    query="run:training_sockets_bytes_per_second:rate1m{$run}"),
            RDMA,
            Measure(what="sent by each GPU over NVLink", unit="bytes_per_second", healthy="nearly all",
                    query="avg(rank:gpu_nvlink_bytes_per_second:avg1m{$run})"),
            Measure(what="sent by each GPU over PCIe", unit="bytes_per_second", healthy="far below NVLink's",
                    query="avg(rank:gpu_pcie_sent_bytes_per_second:avg1m{$run})"),
            ALLREDUCE,
        ),
        look_alikes=("network_degradation", "straggler"),
        told_from={"network_degradation": RDMA},
    ),
    "straggler": Cause(
        summary="{Who} computes more slowly than all others, and they wait for it in all-reduce.",
        lost=LATE_SHARE,
        measures=(
            Measure(what="largest share of the run's time that one rank's compute costs", unit="ratio", healthy="below 8 %",
                    query='max(sum by (rank) (rank:training_late_share:rate1m{$run,phase=~"forward|backward"})) or vector(0)'),
            LATE, COMPUTE_EXCESS, UTILIZATION,
        ),
        look_alikes=("thermal_throttle", "power_cap", "sequence_imbalance", "jitter", "network_degradation"),
    ),
    "sequence_imbalance": Cause(
        summary="Sequences are unequal: every step waits for whoever has the most tokens, another rank each time.",
        lost="run:training_late_share:rate1m{$run}",
        measures=(
            Measure(what="spread of the ranks' tokens per step", unit="ratio", healthy="below 0.2 %",
                    query="run:training_tokens_spread:ratio_rate1m{$run}"),
            COMPUTE_IMBALANCE, CONCENTRATION,
        ),
        look_alikes=("straggler", "jitter"),
    ),
    "jitter": Cause(
        summary="Compute time varies on all ranks at equal work: every step waits for whoever is slowest.",
        lost="run:training_late_share:rate1m{$run}",
        measures=(
            COMPUTE_IMBALANCE, CONCENTRATION,
        ),
        look_alikes=("straggler", "sequence_imbalance"),
        tell=CONCENTRATION,
    ),
    "checkpoint_stall": Cause(
        summary="A checkpoint keeps the whole job waiting; between checkpoints all is well.",
        lost='sum(increase(training_critical_path_seconds_total{$run,phase="checkpoint"}[5m])) / 300',
        measures=(
            Measure(what="seconds of the last five minutes spent on checkpoints", unit="seconds", healthy="below 15 s",
                    query='sum(increase(training_critical_path_seconds_total{$run,phase="checkpoint"}[5m]))'),
            Measure(what="checkpoints in that time", unit="count", healthy="as scheduled",
                    query="max(round(increase(training_checkpoints_total{$run}[5m])))"),
        ),
        look_alikes=("hang", "storage_outage", "gc_pause"),
    ),
    "gc_pause": Cause(
        summary="The host of {who} pauses between steps, and all others wait.",
        lost="sum(run:training_pauses:share_rate1m{$run})",
        measures=(
            Measure(what="pauses that not all ranks have at once", unit="ratio", healthy="below 8 %",
                    query="sum(run:training_pauses:share_rate1m{$run})"),
            Measure(what="the mean rank's own", unit="ratio", healthy="about 1 %: the mean hides it",
                    query='run:training_phase_share:rate1m{$run,phase="other"}'),
        ),
        look_alikes=("straggler", "checkpoint_stall"),
    ),
    "gradient_explosion": Cause(
        summary="The gradient has left its band; hardware and throughput look perfectly well.",
        lost=ALL,
        measures=(
            Measure(what="steps of the last minute out of band or not finite", unit="count", healthy="3 or fewer",
                    query="round(sum(increase(training_gradient_out_of_band_total{$run}[1m])))"),
            Measure(what="steps of the last minute that were not finite", unit="count",
                    healthy="0; now and then 1 with loss scaling for fp16",
                    query="round(sum(increase(training_nonfinite_steps_total{$run}[1m])))"),
            LOSS,
        ),
        look_alikes=("silent_corruption",),
    ),
    "loss_plateau": Cause(
        summary="The loss has stopped falling, at full speed and full learning rate.",
        lost=ALL,
        measures=(
            Measure(what="how fast the loss falls, by the run's own best", unit="ratio", healthy="above 10 %",
                    query="max(run:training_learning_progress:5m{$run}) / "
                          "max(quantile_over_time(0.9, run:training_learning_progress:5m{$run}[6h]))"),
            Measure(what="learning rate by its usual one", unit="ratio", healthy="above 12 %: the schedule has not ended",
                    query="max(training_learning_rate{$run}) / max(quantile_over_time(0.9, training_learning_rate{$run}[6h]))"),
            LOSS,
        ),
        look_alikes=("gradient_explosion",),
    ),
    "silent_corruption": Cause(
        summary="{Who} computes other gradients than its peers, and all train on them.",
        lost=ALL,
        measures=(
            Measure(what="furthest gradient norm of a rank by the median one", unit="number", healthy="from 0.67 to 1.5",
                    query="max(rank:training_gradient_departure:median1m{$run})"),
            Measure(what="its own", unit="number", healthy="1", query="rank:training_gradient_departure:median1m{$target}"),
            UTILIZATION,
        ),
        look_alikes=("gradient_explosion",),
    ),
}  # fmt: skip

STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Is progress made at all?", ("hang", "gpu_lost")),
    ("Are the GPUs starved?", ("data_starvation", "storage_node_slow", "storage_outage", "cpu_starvation", "pcie_downgrade")),
    ("Bound by compute, memory or overhead?", ("memory_bound", "small_batch")),
    ("Clocks and limits?", ("thermal_throttle", "power_cap")),
    ("The collective: transfer, or waiting for whom?",
     ("network_degradation", "nccl_fallback", "straggler", "jitter", "sequence_imbalance")),
    ("Something periodic?", ("checkpoint_stall", "gc_pause")),
    ("Is it learning?", ("gradient_explosion", "loss_plateau", "silent_corruption")),
)  # fmt: skip
"""The order in which to look at a slow job; every cause belongs to one step."""

EXPLAINS: tuple[tuple[frozenset[str], frozenset[str], tuple[str, ...]], ...] = (
    (frozenset({"thermal_throttle", "power_cap"}), frozenset({"straggler"}), ("node",)),
    (frozenset({"gpu_lost"}), frozenset(CAUSES) - {"gpu_lost"}, ()),
    (frozenset({"hang"}), frozenset(CAUSES) - {"gpu_lost", "hang"}, ()),
    (frozenset({"nccl_fallback"}), frozenset({"network_degradation"}), ()),
    (frozenset({"cpu_starvation"}), frozenset({"storage_node_slow"}), ("node",)),
    (frozenset({"cpu_starvation", "storage_outage"}), frozenset({"data_starvation"}), ()),
    (frozenset({"silent_corruption"}), frozenset({"gradient_explosion", "loss_plateau"}), ()),
    (frozenset({"gradient_explosion"}), frozenset({"loss_plateau"}), ()),
)
"""Causes, the symptoms that they explain, and further labels than the run's that both must share. alertmanager.yml inhibits
by the same."""
