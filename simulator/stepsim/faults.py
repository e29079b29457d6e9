"""The fault list: each fault is data and one function that changes physical parameters, and nothing else.

To add a fault: add a decorated function. It takes the parameters, the ranks it strikes and the severity, and returns
new parameters; every symptom must follow from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import hypot, log2
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from stepsim.draws import FloatArray
from stepsim.job import Job
from stepsim.params import OUTAGE_PERIOD_SECONDS, Params

TargetKind = Literal["rank", "node", "run"]
Ranks: TypeAlias = npt.NDArray[np.bool_]
"""Which ranks are struck, shape (ranks,)."""
Apply: TypeAlias = Callable[[Params, Ranks, float], Params]


@dataclass(frozen=True, kw_only=True)
class Severity:
    """What the number means, and how far it may go."""

    meaning: str
    neutral: float
    """The value that changes nothing: where a ramp begins."""
    low: float
    high: float
    mild: float
    plain: float
    severe: float


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What the catalogue says of a fault."""

    name: str
    description: str
    targets: tuple[TargetKind, ...]
    """What it can strike; by default the first."""
    severity: Severity


Need: TypeAlias = Callable[[Job], str | None]
"""Why a job cannot have the fault; None where it can."""


@dataclass(frozen=True, kw_only=True)
class SimulatedFault(Fault):
    apply: Apply
    need: Need


FAULTS: dict[str, SimulatedFault] = {}


def fault(
    description: str, *, targets: tuple[TargetKind, ...], severity: Severity, need: Need = lambda job: None
) -> Callable[[Apply], Apply]:
    """Enter a function into the fault list under its own name."""

    def enter(apply: Apply) -> Apply:
        name: str = apply.__name__
        FAULTS[name] = SimulatedFault(
            name=name, description=description, targets=targets, severity=severity, apply=apply, need=need
        )
        return apply

    return enter


def _factor(ranks: Ranks, severity: float) -> FloatArray:
    """Of each rank: 1 for those that are not struck, shape (ranks,)."""
    factor: FloatArray = np.where(ranks, severity, 1.0)
    return factor


# Computing ------------------------------------------------------------------------------------------------------------


@fault(
    "One GPU computes more slowly, forward and backward; its clock, limits and throttle bits stay as they were.",
    targets=("rank",),
    severity=Severity(
        meaning="factor on the GPU's compute time; 1.43 is a GPU at 70 %",
        neutral=1.0, low=1.0, high=20.0, mild=1.15, plain=1.43, severe=2.5,
    ),
)  # fmt: skip
def straggler(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, compute_scale=params.compute_scale * _factor(ranks, severity))


@fault(
    "Heat leaves a GPU, or all of a node, badly: a fan, a pump or dust. The temperature climbs for a minute, then the "
    "driver lowers the clock to hold it.",
    targets=("rank", "node"),
    severity=Severity(
        meaning="factor on the thermal resistance between die and coolant",
        neutral=1.0, low=1.0, high=10.0, mild=1.8, plain=2.4, severe=3.5,
    ),
)  # fmt: skip
def thermal_throttle(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, thermal_scale=params.thermal_scale * _factor(ranks, severity))


@fault(
    "A GPU, or all of a node, may draw less power than it was made for: a forgotten nvidia-smi -pl, or a rack's budget.",
    targets=("rank", "node"),
    severity=Severity(
        meaning="power limit as a share of the default one",
        neutral=1.0, low=0.25, high=1.0, mild=0.75, plain=0.55, severe=0.35,
    ),
)  # fmt: skip
def power_cap(params: Params, ranks: Ranks, severity: float) -> Params:
    capped = np.minimum(params.power_limit_watts, severity * params.job.gpu.power_limit_watts)
    return replace(params, power_limit_watts=np.where(ranks, capped, params.power_limit_watts))


@fault(
    "Kernels are no longer fused: every operation makes its own pass through the GPU's memory. All ranks alike.",
    targets=("run",),
    severity=Severity(
        meaning="factor on the bytes that kernels other than matrix products move",
        neutral=1.0, low=1.0, high=20.0, mild=2.0, plain=3.0, severe=6.0,
    ),
)  # fmt: skip
def memory_bound(params: Params, ranks: Ranks, severity: float) -> Params:
    return params.with_job("kernels", hidden_passes=params.job.kernels.hidden_passes * severity)


@fault(
    "Each rank gets fewer tokens per step. What a step costs anyway (launches, optimizer, all-reduce) is then most of it.",
    targets=("run",),
    severity=Severity(
        meaning="divisor of the tokens per GPU and step",
        neutral=1.0, low=1.0, high=256.0, mild=4.0, plain=16.0, severe=64.0,
    ),
)  # fmt: skip
def small_batch(params: Params, ranks: Ranks, severity: float) -> Params:
    job, loader = params.job, params.job.loader
    smaller = params.with_job(
        "loader", read_seconds=loader.read_seconds / severity, decode_seconds=loader.decode_seconds / severity
    )
    tokens = max(1, round(job.tokens_per_gpu / severity))
    return replace(smaller, job=smaller.job.model_copy(update={"tokens_per_gpu": tokens}))


@fault(
    "Sequences differ in length, and each step some rank has the most tokens: all wait for it, and it is another one each time.",
    targets=("run",),
    severity=Severity(
        meaning="standard deviation of the logarithm of a rank's tokens per step",
        neutral=0.0, low=0.0, high=1.0, mild=0.1, plain=0.3, severe=0.5,
    ),
)  # fmt: skip
def sequence_imbalance(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, token_sigma=hypot(params.token_sigma, severity))


@fault(
    "Compute time varies on every rank, from step to step, at equal work: noisy neighbours, clocks that hunt.",
    targets=("run",),
    severity=Severity(
        meaning="standard deviation of a rank's compute time, relative",
        neutral=0.0, low=0.0, high=0.3, mild=0.05, plain=0.1, severe=0.2,
    ),
)  # fmt: skip
def jitter(params: Params, ranks: Ranks, severity: float) -> Params:
    return params.with_job("kernels", jitter=hypot(params.job.kernels.jitter, severity))


SLOWEST_GENERATION = 3
"""A link whose generation is limited by a riser or a slot mostly ends there."""

# Data -----------------------------------------------------------------------------------------------------------------

STALLED_SHARE = 0.04
"""Of reads: the prototype behind docs/physics.md."""


@fault(
    "Storage stalls 4 % of all reads, each for a heavy-tailed time: the late rank differs from step to step.",
    targets=("run",),
    severity=Severity(
        meaning="scale of the stalls in seconds: the shortest one",
        neutral=0.0, low=0.0, high=10.0, mild=0.3, plain=1.0, severe=2.0,
    ),
)  # fmt: skip
def data_starvation(params: Params, ranks: Ranks, severity: float) -> Params:
    if severity == 0:
        return params
    return replace(params, stall_probability=STALLED_SHARE, stall_seconds=severity)


@fault(
    "One node's storage mount reads more slowly: the data wait of its ranks takes over the critical path.",
    targets=("node",),
    severity=Severity(
        meaning="factor on the node's read time",
        neutral=1.0, low=1.0, high=100.0, mild=2.0, plain=3.0, severe=6.0,
    ),
)  # fmt: skip
def storage_node_slow(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, read_scale=params.read_scale * _factor(ranks, severity))


@fault(
    "Storage stands still for everyone, again and again: the one data fault that utilization shows, in jobs of up to some "
    "dozen GPUs.",
    targets=("run",),
    severity=Severity(
        meaning=f"seconds out of every {OUTAGE_PERIOD_SECONDS:.0f} in which no read starts",
        neutral=0.0, low=0.0, high=25.0, mild=5.0, plain=10.0, severe=20.0,
    ),
)  # fmt: skip
def storage_outage(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, outage_seconds=max(params.outage_seconds, severity))


@fault(
    "A node's CPUs run slowly, as under the governor powersave: its loader workers cannot decode as fast as the GPUs eat.",
    targets=("node",),
    severity=Severity(
        meaning="speed of the node's CPUs as a share of the configured one",
        neutral=1.0, low=0.02, high=1.0, mild=0.28, plain=0.2, severe=0.12,
    ),
)  # fmt: skip
def cpu_starvation(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, cpu_speed=params.cpu_speed * _factor(ranks, severity))


@fault(
    "One GPU's PCIe link has trained down: its batches take longer to arrive. Where a batch is large, as with images, all "
    "others wait for it.",
    targets=("rank",),
    severity=Severity(
        meaning=f"divisor of the link's bandwidth: generations go first, down to {SLOWEST_GENERATION}, then lanes; on a fast "
        "link 8 is generation 3 with 8 lanes",
        neutral=1.0, low=1.0, high=64.0, mild=4.0, plain=8.0, severe=32.0,
    ),
)  # fmt: skip
def pcie_downgrade(params: Params, ranks: Ranks, severity: float) -> Params:
    halvings = int(log2(severity))
    older = np.minimum(halvings, params.pcie_generation - SLOWEST_GENERATION)
    lanes = np.maximum(1, params.pcie_lanes >> (halvings - older))
    return replace(
        params,
        pcie_generation=np.where(ranks, params.pcie_generation - older, params.pcie_generation),
        pcie_lanes=np.where(ranks, lanes, params.pcie_lanes),
    )


# Collectives ----------------------------------------------------------------------------------------------------------


def _needs_a_network(job: Job) -> str | None:
    return (
        None if job.nodes > 1 else "needs a job of at least two nodes, and this one has one: nothing crosses a network"
    )


def _needs_a_better_way(job: Job) -> str | None:
    if job.nodes > 1 or job.gpu.nvlink:
        return None
    return f"needs a network or NVLink to fall back from, and one node of {job.accelerator} has neither"


@fault(
    "The fabric, or the rail of one GPU's NIC, carries less: every all-reduce takes longer, and nobody is late.",
    targets=("run", "rank"),
    severity=Severity(
        meaning="divisor of the bandwidth; below about 8 the backward still hides the transfer",
        neutral=1.0, low=1.0, high=1000.0, mild=16.0, plain=24.0, severe=60.0,
    ),
    need=_needs_a_network,
)  # fmt: skip
def network_degradation(params: Params, ranks: Ranks, severity: float) -> Params:
    if ranks.all():  # congestion: the links themselves are as fast as ever
        return params.with_job("network", nic_bytes_per_second=params.job.network.nic_bytes_per_second / severity)
    return replace(params, nic_scale=params.nic_scale / _factor(ranks, severity))


RDMA_GB = 50.0
"""At 400 Gb/s there is nothing to fall back from."""


@fault(
    "NCCL falls back to a slower way: sockets instead of RDMA between nodes, or, in a job of one node, PCIe through host "
    "memory instead of NVLink.",
    targets=("run",),
    severity=Severity(
        meaning="GB/s that the way reaches: all sockets of a node, or the PCIe ring",
        neutral=RDMA_GB, low=0.1, high=RDMA_GB, mild=8.0, plain=4.0, severe=1.5,
    ),
    need=_needs_a_better_way,
)  # fmt: skip
def nccl_fallback(params: Params, ranks: Ranks, severity: float) -> Params:
    return params if severity >= RDMA_GB else replace(params, fallback_bytes_per_second=severity * 1e9)


# The host -------------------------------------------------------------------------------------------------------------


@fault(
    "Checkpoints are written to slow storage: every one of them keeps the whole job waiting; in between all is well.",
    targets=("run",),
    severity=Severity(
        meaning="factor on the time that a checkpoint takes",
        neutral=1.0, low=1.0, high=1000.0, mild=8.0, plain=15.0, severe=40.0,
    ),
)  # fmt: skip
def checkpoint_stall(params: Params, ranks: Ranks, severity: float) -> Params:
    return params.with_job(
        "schedule", checkpoint_bytes_per_second=params.job.schedule.checkpoint_bytes_per_second / severity
    )


PAUSED_SHARE = 0.01
"""Of a rank's steps. A full collection comes after so many allocations, on each rank at another step."""


@fault(
    "The hosts pause now and then, unplanned, each rank at another step: a full garbage collection of a large heap.",
    targets=("run",),
    severity=Severity(
        meaning="mean length of a pause in seconds; one in 100 of a rank's steps has one",
        neutral=0.0, low=0.0, high=30.0, mild=0.25, plain=0.5, severe=2.0,
    ),
)  # fmt: skip
def gc_pause(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, pause_probability=PAUSED_SHARE if severity else 0.0, pause_seconds=severity)


@fault(
    "One rank stops arriving: its loader deadlocks. All others wait in the all-reduce, at 100 % utilization. Stopping the "
    "fault releases it.",
    targets=("rank",),
    severity=Severity(meaning="1: the rank is stuck", neutral=0.0, low=0.0, high=1.0, mild=1.0, plain=1.0, severe=1.0),
)
def hang(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, stuck=params.stuck | (ranks & (severity > 0)))


@fault(
    "A GPU falls off the bus (XID 79): its series vanish, its process dies, and the others wait. Stopping the fault brings "
    "them back.",
    targets=("rank",),
    severity=Severity(meaning="1: the GPU is gone", neutral=0.0, low=0.0, high=1.0, mild=1.0, plain=1.0, severe=1.0),
)
def gpu_lost(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, lost=params.lost | (ranks & (severity > 0)))


# Learning -------------------------------------------------------------------------------------------------------------


@fault(
    "The learning rate is multiplied and gradient clipping is off: the loss overflows while all hardware looks well. "
    "Give no ramp: over minutes the network adapts. Stopping the fault reloads the last finite checkpoint.",
    targets=("run",),
    severity=Severity(
        meaning="factor on the learning rate; up to 3 the loss recovers by itself, from 4 on it overflows",
        neutral=1.0, low=1.0, high=1000.0, mild=2.0, plain=10.0, severe=20.0,
    ),
)  # fmt: skip
def gradient_explosion(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, learning_rate_scale=params.learning_rate_scale * severity, clip=None)


@fault(
    "Updates no longer reach the weights, as when layers are frozen by mistake: the loss stops falling at full speed.",
    targets=("run",),
    severity=Severity(
        meaning="share of an update that reaches the weights",
        neutral=1.0, low=0.0, high=1.0, mild=0.05, plain=0.0, severe=0.0,
    ),
)  # fmt: skip
def loss_plateau(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, update_share=params.update_share * severity)


@fault(
    "One GPU computes wrong gradients, silently: its own gradient's norm departs from its peers', and all train on it.",
    targets=("rank",),
    severity=Severity(
        meaning="factor on the rank's own gradient",
        neutral=1.0, low=0.0, high=1000.0, mild=2.0, plain=4.0, severe=8.0,
    ),
)  # fmt: skip
def silent_corruption(params: Params, ranks: Ranks, severity: float) -> Params:
    return replace(params, gradient_scale=params.gradient_scale * _factor(ranks, severity))
