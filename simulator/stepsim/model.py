"""The step model: from the job's physical parameters to the timeline of one step of all ranks.

To change the physics: change an equation here, with its source. Each phase has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from stepscope.phases import ALLREDUCE, BACKWARD, CHECKPOINT, DATA_WAIT, FORWARD, H2D, OPTIMIZER
from stepsim.accelerators import PCIE_BYTES_PER_SECOND
from stepsim.collectives import MIB, NIC_EFFICIENCY, Group
from stepsim.draws import Draws, FloatArray
from stepsim.loader import Loader, decode_seconds
from stepsim.params import PCIE_LANES, Params
from stepsim.power import Compute, compute
from stepsim.timeline import EVALUATION, HOST, SEGMENTS, Timeline

H2D_LATENCY_SECONDS = 1e-5
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 * MIB, 25 * MIB
"""DistributedDataParallel's defaults: the first bucket is small, so that communication starts early."""
MAX_BUCKETS = 16


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Plan:
    """What of a step follows from its parameters alone. Arrays have shape (ranks,) unless said otherwise."""

    params: Params
    limit_watts: FloatArray
    """What each GPU may draw: by its power limit, or by its temperature where that is less."""
    compute: Compute
    flops: float
    """Model FLOPs of a rank with the configured tokens."""
    decode_seconds: FloatArray
    h2d_seconds: FloatArray
    forward_seconds: FloatArray
    backward_seconds: FloatArray
    bucket_ready: FloatArray
    """Share of the backward after which each gradient bucket is ready, shape (buckets, 1)."""
    bucket_tail: FloatArray
    """Seconds of communication from a bucket's start to the last one's end, shape (buckets,)."""
    hidden_seconds: float
    """A backward at least as long leaves only the last bucket's communication exposed."""
    held: npt.NDArray[np.bool_] | None
    """Ranks that do not come any further; None for none."""
    checkpoint_seconds: FloatArray
    """Rank 0 writes it, alone."""
    evaluation_seconds: FloatArray


def plan(params: Params, thermal_watts: FloatArray | None = None) -> Plan:
    """Work out all that does not change from step to step. Forward takes a third of the compute, backward the rest.

    ``thermal_watts``: what the GPUs' temperatures allow them to draw, shape (ranks,); None where that is enough.
    """
    job = params.job
    limit = params.power_limit_watts if thermal_watts is None else np.minimum(params.power_limit_watts, thermal_watts)
    done = compute(job, limit)
    seconds = done.seconds * params.compute_scale
    ready, tail = buckets(job.model.parameters * job.network.gradient_bytes, partial(_allreduce, params))
    checkpoint = np.zeros(job.ranks)
    checkpoint[0] = (
        job.model.parameters * job.schedule.checkpoint_bytes_per_parameter / job.schedule.checkpoint_bytes_per_second
    )
    return Plan(
        params=params,
        limit_watts=limit,
        compute=done,
        flops=job.flops_per_step,
        decode_seconds=decode_seconds(params),
        h2d_seconds=H2D_LATENCY_SECONDS + job.tokens_per_gpu * job.loader.bytes_per_token / _h2d_bandwidth(params),
        forward_seconds=seconds / 3,
        backward_seconds=seconds * 2 / 3,
        bucket_ready=ready[:, None],
        bucket_tail=tail,
        hidden_seconds=hidden_seconds(ready, tail),
        held=held if (held := params.stuck | params.lost).any() else None,
        checkpoint_seconds=checkpoint,
        evaluation_seconds=job.schedule.evaluation_batches * done.seconds / 3,
    )


def _h2d_bandwidth(params: Params) -> FloatArray:
    """Bytes per second from the host to each GPU: in proportion to the lanes of the link."""
    bandwidth: FloatArray = _BY_GENERATION[params.pcie_generation] * params.pcie_lanes / PCIE_LANES
    return bandwidth


_BY_GENERATION = np.array(
    [PCIE_BYTES_PER_SECOND.get(number, np.nan) for number in range(max(PCIE_BYTES_PER_SECOND) + 1)]
)


def buckets(total: float, seconds: Callable[[float], float]) -> tuple[FloatArray, FloatArray]:
    """``total`` bytes of gradients in the order in which the backward fills their buckets; equal ones are grouped to
    ``MAX_BUCKETS``. ``seconds``: how long the collective of so many bytes takes.

    Gives the share of the backward after which each is ready, and the seconds from its start to the last one's end.
    """
    first = min(FIRST_BUCKET_BYTES, total)
    count = ceil((total - first) / BUCKET_BYTES)
    groups = min(MAX_BUCKETS - 1, count)
    sizes = np.array([first] + [(total - first) / groups for _ in range(groups)])
    each = seconds((total - first) / count) if count else 0.0
    times = np.array([seconds(first)] + [count / groups * each for _ in range(groups)])
    return np.cumsum(sizes) / total, np.cumsum(times[::-1])[::-1]


def hidden_seconds(ready: FloatArray, tail: FloatArray) -> float:
    """How long a backward must be to leave only the last bucket's communication exposed."""
    return float(((tail - tail[-1])[:-1] / (1 - ready)[:-1]).max(initial=0.0))


def _allreduce(params: Params, size: float) -> float:
    """A way to fall back to is no quicker than what it takes the place of."""
    job, gpu, ranks, fallback = params.job, params.job.gpu, params.job.gpus_per_node, params.fallback_bytes_per_second
    nic = job.network.nic_bytes_per_second * float(params.nic_scale.min())
    busbw = gpu.busbw_bytes_per_second
    if fallback is not None:
        # Of each GPU, so that the node's sockets reach that in all; in a job of one node it is PCIe.
        nic = min(nic, fallback / (ranks * NIC_EFFICIENCY))
        busbw = min(busbw, fallback) if job.nodes == 1 else busbw
    nvls = gpu.nvls and fallback is None
    return Group(
        ranks=job.ranks, nodes=job.nodes, gpus_per_node=ranks, busbw=busbw, nic=nic, hop=gpu.hop_seconds, nvls=nvls
    ).allreduce(size)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Begun:
    """A step on its way to the all-reduce, before it is known when stuck ranks go on. Arrays have shape (ranks,)."""

    step: int
    ready: FloatArray
    """When each rank has its batch, if it is not stuck."""
    share: FloatArray | float
    """Its tokens by the configured ones."""
    pace: FloatArray
    """Its compute time by the planned one."""
    pause_seconds: FloatArray | float
    """Of its host, after the step."""
    edges: FloatArray
    """The timeline's, known up to the all-reduce: infinite from the batch on for ranks that are stuck."""


@dataclass(kw_only=True, slots=True)
class State:
    """Where the job stands between two steps, or in one that waits for a stuck rank."""

    step: int
    ends: FloatArray
    """When each rank ended its last step, seconds since the epoch, shape (ranks,)."""
    first_end: float
    """Infinite while the step waits for a rank that is stuck."""
    loader: Loader
    waiting: Begun | None = None
    """The step that a stuck rank keeps from ending."""

    @classmethod
    def start(cls, plan: Plan, draws: Draws, *, now: float, step: int = 0) -> State:
        ends = np.full(plan.params.job.ranks, now)
        return cls(step=step, ends=ends, first_end=now, loader=Loader.start(plan.params, draws, now))

    def shift(self, seconds: float) -> None:
        """Move everything in time."""
        self.ends = self.ends + seconds
        self.first_end += seconds
        self.loader.shift(seconds)
        if self.waiting:
            self.waiting = replace(self.waiting, edges=self.waiting.edges + seconds, ready=self.waiting.ready + seconds)


def simulate_step(plan: Plan, state: State, draws: Draws) -> Timeline:
    """Take all ranks through one step, and leave ``state`` at its end.

    A step with a stuck rank has no end: its timeline holds infinities, and ``state`` waits. ``resume_step`` takes it
    up again.
    """
    return _finish(plan, state, _begin(plan, state, draws))


def resume_step(plan: Plan, state: State, now: float) -> Timeline:
    """Take up the step that waits: ranks that are no longer stuck get their batch at ``now``.

    The others have got as far as they have, whatever has changed since then.
    """
    begun = state.waiting
    assert begun is not None, "no step waits"
    edges = _underway(plan, begun.edges[DATA_WAIT], np.maximum(begun.ready, now), begun.pace)
    stay = np.isfinite(begun.edges[H2D]) | plan.params.stuck | plan.params.lost
    edges[:OPTIMIZER] = np.where(stay, begun.edges[:OPTIMIZER], edges[:OPTIMIZER])
    return _finish(plan, state, replace(begun, edges=edges), now)


def _begin(plan: Plan, state: State, draws: Draws) -> Begun:
    params = plan.params
    pace = np.maximum(1 + params.job.kernels.jitter * draws.next_jitter(), QUICKEST)
    share = np.exp(params.token_sigma * draws.next_tokens() - params.token_sigma**2 / 2) if params.token_sigma else 1.0
    pace = pace * share
    ready = state.loader.take(state.ends, params, plan.decode_seconds, draws)
    return Begun(
        step=state.step,
        ready=ready,
        share=share,
        pace=pace,
        pause_seconds=_pauses(draws.next_pause(), params) if params.pause_probability else 0.0,
        edges=_underway(plan, state.ends, ready if plan.held is None else np.where(plan.held, np.inf, ready), pace),
    )


def _underway(plan: Plan, asked: FloatArray, ready: FloatArray, pace: FloatArray) -> FloatArray:
    """The edges of a timeline, up to the all-reduce, of ranks that ask for a batch and get it then."""
    edges = np.empty((len(SEGMENTS) + 1, len(asked)))
    edges[DATA_WAIT] = asked
    edges[H2D] = ready
    edges[FORWARD] = edges[H2D] + plan.h2d_seconds
    edges[BACKWARD] = edges[FORWARD] + plan.forward_seconds * pace
    edges[ALLREDUCE] = edges[BACKWARD] + plan.backward_seconds * pace
    return edges


QUICKEST = 0.25
"""Of the planned time: a normal distribution has no lower end, and a GPU has."""


def _pauses(uniform: FloatArray, params: Params) -> FloatArray:
    """Between half and one and a half of the mean, for the ranks whose draw is below the probability."""
    drawn = params.pause_seconds * (0.5 + uniform / params.pause_probability)
    return np.where(uniform < params.pause_probability, drawn, 0.0)


def _finish(plan: Plan, state: State, begun: Begun, now: float = -inf) -> Timeline:
    """``now``: the all-reduce ends no earlier. A GPU that is lost keeps it from ending wherever its rank was."""
    params, schedule, edges = plan.params, plan.params.job.schedule, begun.edges
    checkpoint = _due(begun.step, schedule.checkpoint_every_steps)
    evaluation = _due(begun.step, schedule.evaluation_every_steps)
    waits = plan.held is not None and bool((params.lost | np.isinf(edges[H2D])).any())

    edges[OPTIMIZER] = inf if waits else max(now, _exit(plan, edges[BACKWARD], edges[ALLREDUCE]))
    edges[CHECKPOINT] = edges[OPTIMIZER] + params.job.optimization.optimizer_seconds
    edges[EVALUATION] = edges[CHECKPOINT] + plan.checkpoint_seconds if checkpoint else edges[CHECKPOINT]
    edges[HOST] = edges[EVALUATION] + plan.evaluation_seconds if evaluation else edges[EVALUATION]
    np.add(edges[HOST], params.host_gap_seconds, out=edges[-1])
    if params.pause_probability:
        edges[-1] += begun.pause_seconds

    state.ends = edges[-1]
    state.first_end, last_end = float(state.ends.min()), float(state.ends.max())
    state.step = begun.step + 1
    state.waiting = begun if waits else None
    return Timeline(step=begun.step, edges=edges, last_end=last_end, checkpointed=checkpoint, token_share=begun.share)


def _exit(plan: Plan, begin: FloatArray, end: FloatArray) -> float:
    """When the last bucket is reduced: a bucket starts when the slowest rank has filled it and the link is free.

    Mostly only the last bucket is left over at the end of the backward: the others' communication fits under what
    remains of even the shortest backward, and then needs no second look.
    """
    seconds = end - begin
    if seconds.min() >= plan.hidden_seconds:
        return float(end.max() + plan.bucket_tail[-1])
    ready = (begin + plan.bucket_ready * seconds).max(axis=1)
    return float((ready + plan.bucket_tail).max())


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == every - 1
