"""One prediction: a step's parts, memory and communication of one layout on some machines.

Compute and clock are ``stepsim.model.plan``'s, the step is the mean of steps that ``stepsim.model.simulate_step`` takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.phases import ALLREDUCE, FORWARD
from stepsim.draws import Draws
from stepsim.job import Job
from stepsim.model import Plan, State, buckets, hidden_seconds, plan, simulate_step
from stepsim.params import Params
from stepsim.planner.communication import DataParallel, Groups, Traffic, pipeline_traffic, tensor_traffic
from stepsim.planner.layout import Layout
from stepsim.planner.machine import Machine
from stepsim.planner.memory import Memory, memory
from stepsim.planner.models import PlannedTransformer
from stepsim.planner.work import PlannedJob, planned_job, recomputed_flops


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Seconds of a step, of the rank that the others wait for; they add up to the step."""

    compute: float
    """Forward and backward, without what is recomputed."""
    recompute: float
    tensor_parallel: float
    pipeline_transfer: float
    pipeline_bubble: float
    stage_imbalance: float
    """The pipeline waits for its last stage, which computes the logits, too."""
    data_parallel: float
    """Exposed: not under the forward or the backward."""
    waiting: float
    """For the slowest of all ranks, whose compute times vary, and for data."""
    optimizer: float
    host: float
    """Between two steps, and to copy the batch."""

    @property
    def total(self) -> float:
        return sum(vars(self).values())


@dataclass(frozen=True, kw_only=True)
class Prediction:
    layout: Layout
    parts: Parts
    memory: Memory
    tensor: Traffic
    pipeline: Traffic
    data: Traffic
    """Its seconds are all of the exchange, as if nothing ran beside it."""
    mhz: float
    model_flops: float
    """Of all GPUs in a step, by PaLM's count: what is recomputed does not count."""
    peak_flops: float
    """Of one GPU."""

    @property
    def step_seconds(self) -> float:
        return self.parts.total

    @property
    def tokens_per_second(self) -> float:
        return self.layout.tokens * self.layout.dp / self.step_seconds

    @property
    def mfu(self) -> float:
        return self.model_flops / (self.step_seconds * self.layout.gpus * self.peak_flops)


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Seconds of a step's forwards and backwards on one GPU, without the exchange among replicas."""

    compute: float
    """What is recomputed included."""
    recompute: float
    tensor: Traffic
    pipeline: Traffic
    bubble: float
    imbalance: float

    @property
    def working(self) -> float:
        return self.compute + self.tensor.seconds

    @property
    def total(self) -> float:
        return self.working + self.pipeline.seconds + self.bubble + self.imbalance

    @property
    def backward_share(self) -> float:
        """Two thirds of what is computed once, and all that is recomputed."""
        return (2 / 3 * (self.compute - self.recompute) + self.recompute) / self.compute


def predict(job: Job, model: PlannedTransformer, layout: Layout, machine: Machine) -> Prediction:
    """``job`` gives what layout and machine leave open: kernels, loader, optimizer, host."""
    groups = Groups.of(layout, machine)
    data = DataParallel.of(model, layout, groups.data, job.network.gradient_bytes)
    adam = _optimizer_seconds(job, model, layout, machine)
    optimization = job.optimization.model_copy(update={"optimizer_seconds": adam + data.updated_seconds})
    own = planned_job(job, model, layout, machine, optimization=optimization)
    alone = plan(Params.healthy(own))
    stages = _stages(alone, own, model, layout, groups)
    parts = _parts(alone, stages, data, own, adam)
    return Prediction(
        layout=layout, parts=parts, memory=memory(model, layout, job.network.gradient_bytes),
        tensor=stages.tensor, pipeline=stages.pipeline, data=_data_traffic(data),
        mhz=float(alone.compute.mhz[0]), peak_flops=machine.gpu.peak_flops,
        model_flops=model.flops_per_token * layout.tokens * layout.dp,
    )  # fmt: skip


def _stages(alone: Plan, own: PlannedJob, model: PlannedTransformer, layout: Layout, groups: Groups) -> Stages:
    compute, again = float(alone.compute.seconds[0]), recomputed_flops(model, layout)
    tensor, pipeline = tensor_traffic(model, layout, groups.tensor), pipeline_traffic(model, layout, groups.pipeline)
    return Stages(
        compute=compute,
        recompute=compute * again / (model.flops_per_token + again),
        tensor=tensor,
        pipeline=pipeline,
        bubble=layout.bubble_ratio * (compute + tensor.seconds + pipeline.seconds),
        imbalance=_imbalance_seconds(own, model, layout, float(alone.compute.mhz[0])),
    )


def _parts(alone: Plan, stages: Stages, data: DataParallel, own: PlannedJob, adam: float) -> Parts:
    """All but the waiting follows from the plan; that is what simulated steps take longer."""
    between = _between_seconds(data, stages)
    full = _with_stages(alone, data, stages.total + between, stages.backward_share)
    exposed = between + _exposed_seconds(full)
    host = own.host_gap_seconds + float(full.h2d_seconds[0])
    known = stages.total + exposed + data.updated_seconds + adam + host
    return Parts(
        compute=stages.compute - stages.recompute, recompute=stages.recompute, tensor_parallel=stages.tensor.seconds,
        pipeline_transfer=stages.pipeline.seconds, pipeline_bubble=stages.bubble, stage_imbalance=stages.imbalance,
        data_parallel=exposed + data.updated_seconds, waiting=simulated_seconds(full) - known, optimizer=adam, host=host,
    )  # fmt: skip


def _optimizer_seconds(job: Job, model: PlannedTransformer, layout: Layout, machine: Machine) -> float:
    """The job's own, in proportion to the parameters of one GPU, and to the bandwidth of its memory."""
    share = model.parameters / job.model.parameters / (layout.tp * layout.pp)
    faster = machine.gpu.hbm_bytes_per_second / job.gpu.hbm_bytes_per_second
    owners = layout.dp if layout.sharding.optimizer else 1
    return job.optimization.optimizer_seconds * share / faster / owners


def _imbalance_seconds(own: PlannedJob, model: PlannedTransformer, layout: Layout, mhz: float) -> float:
    """The last stage's logits come on top of its layers; the mean stage has 1/pp of them."""
    flops = layout.tokens * model.logit_flops_per_token * (1 - 1 / layout.pp) / layout.tp
    return flops / (own.gpu.peak_flops * own.kernels.matmul_efficiency * mhz / own.gpu.spec_mhz)


def _between_seconds(data: DataParallel, stages: Stages) -> float:
    """What the exchange among replicas adds to the microbatches themselves, beyond what follows the last backward."""
    layout = data.layout
    forward, backward = (share * stages.working / layout.microbatches
                         for share in (1 - stages.backward_share, stages.backward_share))  # fmt: skip
    if layout.dp == 1:
        return 0.0
    if layout.sharding.weights:
        return layout.microbatches * data.sharded_seconds(forward, backward)
    uncovered = data.reduce(data.gradient_size) - (backward if layout.overlap else 0.0)
    return (data.reductions - 1) * max(uncovered, 0.0)


def _with_stages(alone: Plan, data: DataParallel, seconds: float, backward: float) -> Plan:
    """The simulator's plan with forward and backward of so many seconds in all, and the replicas' exchange of gradients.

    Gradients are exchanged in DistributedDataParallel's buckets under the last microbatch's backward. Under ZeRO-3 the
    exchange is among ``seconds``.
    """
    ready, tail = np.ones(1), np.zeros(1)
    layout = data.layout
    if not layout.sharding.weights and layout.dp > 1:
        ready, tail = buckets(data.gradient_size, data.reduce)
        ready = 1 - (1 - ready) / layout.microbatches
        if not layout.overlap:
            ready = np.ones_like(ready)
    ranks = len(alone.forward_seconds)
    return replace(
        alone,
        forward_seconds=np.full(ranks, seconds * (1 - backward)),
        backward_seconds=np.full(ranks, seconds * backward),
        bucket_ready=ready[:, None],
        bucket_tail=tail,
        hidden_seconds=hidden_seconds(ready, tail) if layout.overlap else np.inf,
    )


def _exposed_seconds(full: Plan) -> float:
    """Of the exchange of gradients, if all ranks take the same time."""
    backward = float(full.backward_seconds[0])
    return float((full.bucket_ready[:, 0] * backward + full.bucket_tail).max()) - backward


def _data_traffic(data: DataParallel) -> Traffic:
    gathered = data.gathers * data.group.gather(data.weight_size)
    return Traffic(bytes_sent=data.bytes_sent, seconds=data.reductions * data.reduce(data.gradient_size) + gathered)


SEED = 1
RANK_STEPS = 12_288
"""Steps by ranks that are simulated: among more ranks, the slowest one varies less from step to step."""
LEAST_STEPS, MOST_STEPS = 6, 20


def simulated_seconds(full: Plan) -> float:
    """Mean step of some that ``simulate_step`` takes, always with the same draws, when the loaders have filled their queues.

    Loaders that may be too slow never fill them: they start empty, and more steps are taken.
    """
    ranks, loader = full.params.job.ranks, full.params.job.loader
    state = State.start(full, draws := Draws(SEED, ranks), now=0.0)
    batch = loader.read_seconds + loader.decode_seconds
    count, warm = min(max(RANK_STEPS // ranks, LEAST_STEPS), MOST_STEPS), 1
    if batch < loader.workers * float(full.forward_seconds[0] + full.backward_seconds[0]) * FED:
        state.ends = state.ends + 2 * loader.prefetch * batch
    else:
        warm = 4 * loader.workers * loader.prefetch
        count *= STARVED_TIMES
    for _ in range(warm):
        began = simulate_step(full, state, draws)
    worked = 0.0
    for _ in range(count):
        ended = simulate_step(full, state, draws)
        worked += float((ended.edges[ALLREDUCE] - ended.edges[FORWARD]).mean())
    # The draws' mean is not quite what was planned: a lone GPU would seem to wait, or to be early.
    luck = worked / count - float(full.forward_seconds[0] + full.backward_seconds[0])
    return (ended.last_end - began.last_end) / count - luck


FED, STARVED_TIMES = 0.8, 30
"""Workers that are busy for less of their time are quick enough; with slower ones steps vary more, and more are taken."""
