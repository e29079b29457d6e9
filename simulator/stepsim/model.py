"""The step model: from the job's physical parameters to the timeline of one step of all ranks.

To change the physics: change an equation here, with its source. Each phase has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from stepscope.phases import ALLREDUCE, BACKWARD, CHECKPOINT, DATA_WAIT, FORWARD, H2D, OPTIMIZER
from stepsim.accelerators import PCIE_BYTES_PER_SECOND
from stepsim.collectives import MIB, hierarchical_allreduce, nvls_allreduce, ring_allreduce
from stepsim.draws import Draws, FloatArray
from stepsim.job import Job
from stepsim.loader import Loader
from stepsim.params import Params
from stepsim.power import Compute, compute
from stepsim.timeline import EVALUATION, HOST, SEGMENTS, Timeline

H2D_LATENCY_SECONDS = 1e-5
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 * MIB, 25 * MIB
"""DistributedDataParallel's defaults: the first bucket is small, so that communication starts early."""
MAX_BUCKETS = 16
GPUS_PER_SWITCH = 8


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Plan:
    """What of a step follows from its parameters alone. Arrays have shape (ranks,) unless said otherwise."""

    params: Params
    compute: Compute
    h2d_seconds: float
    forward_seconds: FloatArray
    backward_seconds: FloatArray
    bucket_ready: FloatArray
    """Share of the backward after which each gradient bucket is ready, shape (buckets, 1)."""
    bucket_tail: FloatArray
    """Seconds of communication from a bucket's start to the last one's end, shape (buckets,)."""
    hidden_seconds: float
    """A backward at least as long leaves only the last bucket's communication exposed."""
    checkpoint_seconds: FloatArray
    """Rank 0 writes it, alone."""
    evaluation_seconds: float


def plan(params: Params) -> Plan:
    """Work out all that does not change from step to step. Forward takes a third of the compute, backward the rest."""
    job = params.job
    done = compute(job)
    seconds = done.seconds * params.compute_scale
    ready, tail = _buckets(job)
    checkpoint = np.zeros(job.ranks)
    checkpoint[0] = (
        job.model.parameters * job.schedule.checkpoint_bytes_per_parameter / job.schedule.checkpoint_bytes_per_second
    )
    return Plan(
        params=params,
        compute=done,
        h2d_seconds=H2D_LATENCY_SECONDS
        + job.tokens_per_gpu * job.loader.bytes_per_token / PCIE_BYTES_PER_SECOND[job.gpu.pcie_generation],
        forward_seconds=seconds / 3,
        backward_seconds=seconds * 2 / 3,
        bucket_ready=ready[:, None],
        bucket_tail=tail,
        hidden_seconds=float(((tail - tail[-1])[:-1] / (1 - ready)[:-1]).max(initial=0.0)),
        checkpoint_seconds=checkpoint,
        evaluation_seconds=job.schedule.evaluation_batches * done.seconds / 3,
    )


def _buckets(job: Job) -> tuple[FloatArray, FloatArray]:
    """Gradient buckets in the order in which the backward fills them; equal ones are grouped to ``MAX_BUCKETS``."""
    total = job.model.parameters * job.network.gradient_bytes
    first = min(FIRST_BUCKET_BYTES, total)
    count = ceil((total - first) / BUCKET_BYTES)
    groups = min(MAX_BUCKETS - 1, count)
    sizes = np.array([first] + [(total - first) / groups for _ in range(groups)])
    each = _allreduce(job, (total - first) / count) if count else 0.0
    times = np.array([_allreduce(job, first)] + [count / groups * each for _ in range(groups)])
    return np.cumsum(sizes) / total, np.cumsum(times[::-1])[::-1]


def _allreduce(job: Job, size: float) -> float:
    gpu, ranks = job.gpu, job.gpus_per_node
    if job.ranks == 1:
        return 0.0
    if job.nodes > 1:
        return hierarchical_allreduce(
            size, nodes=job.nodes, gpus_per_node=ranks, busbw=gpu.busbw_bytes_per_second,
            nic=job.network.nic_bytes_per_second, hop=gpu.hop_seconds,
        )  # fmt: skip
    if gpu.nvls and ranks == GPUS_PER_SWITCH:
        return nvls_allreduce(size)
    return ring_allreduce(size, ranks, bandwidth=gpu.busbw_bytes_per_second, hop=gpu.hop_seconds)


@dataclass(kw_only=True, slots=True)
class State:
    """Where the job stands between two steps."""

    step: int
    ends: FloatArray
    """When each rank ended its last step, seconds since the epoch, shape (ranks,)."""
    first_end: float
    loader: Loader

    @classmethod
    def start(cls, plan: Plan, draws: Draws, *, now: float, step: int = 0) -> State:
        ends = np.full(plan.params.job.ranks, now)
        return cls(step=step, ends=ends, first_end=now, loader=Loader.start(plan.params, draws, now))

    def shift(self, seconds: float) -> None:
        """Move everything in time."""
        self.ends = self.ends + seconds
        self.first_end += seconds
        self.loader.shift(seconds)


def simulate_step(plan: Plan, state: State, draws: Draws) -> Timeline:
    """Take all ranks through one step, and leave ``state`` at its end."""
    params, schedule = plan.params, plan.params.job.schedule
    edges = np.empty((len(SEGMENTS) + 1, params.job.ranks))
    pace = 1 + params.job.kernels.jitter * draws.next_jitter()
    checkpoint = _due(state.step, schedule.checkpoint_every_steps)
    evaluation = _due(state.step, schedule.evaluation_every_steps)

    edges[DATA_WAIT] = state.ends
    edges[H2D] = state.loader.take(state.ends, params, draws)
    edges[FORWARD] = edges[H2D] + plan.h2d_seconds
    edges[BACKWARD] = edges[FORWARD] + plan.forward_seconds * pace
    edges[ALLREDUCE] = edges[BACKWARD] + plan.backward_seconds * pace
    edges[OPTIMIZER] = _exit(plan, edges[BACKWARD], edges[ALLREDUCE])
    edges[CHECKPOINT] = edges[OPTIMIZER] + params.job.optimization.optimizer_seconds
    edges[EVALUATION] = edges[CHECKPOINT] + plan.checkpoint_seconds if checkpoint else edges[CHECKPOINT]
    edges[HOST] = edges[EVALUATION] + plan.evaluation_seconds if evaluation else edges[EVALUATION]
    np.add(edges[HOST], params.host_gap_seconds, out=edges[-1])

    state.ends = edges[-1]
    state.first_end, last_end = float(state.ends.min()), float(state.ends.max())
    timeline = Timeline(step=state.step, edges=edges, last_end=last_end, checkpointed=checkpoint)
    state.step += 1
    return timeline


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
