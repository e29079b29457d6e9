"""What one GPU communicates in a step: bytes that it sends, and seconds on its critical path. Sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from stepsim.collectives import Group
from stepsim.planner.layout import Layout
from stepsim.planner.machine import Machine
from stepsim.planner.memory import WEIGHT_BYTES
from stepsim.planner.models import PlannedTransformer

ACTIVATION_BYTES = 2.0
"""Of one number: bf16 or fp16."""
REDUCTIONS = 4
"""All-reduces of a layer's activations under tensor parallelism: two forward, two backward (Shoeybi et al., arXiv 1909.08053)."""
RECOMPUTED_REDUCTIONS = 2
EMBEDDING_LAYERS = 0.5
"""The embedding reduces once forward and the logits once backward: half as often as a layer."""
REPEATED_GATHERS = 2
"""With sequence parallelism the backward gathers the inputs of two blocks again, under its matmuls (arXiv 2205.05198, §4.2.2)."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Of one kind, in a whole step."""

    bytes_sent: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups that one GPU belongs to."""

    tensor: Group
    data: Group
    pipeline: Group
    """As far apart as neighbouring stages are."""

    @classmethod
    def of(cls, layout: Layout, machine: Machine) -> Groups:
        stage = layout.tp * layout.dp
        return cls(
            tensor=machine.group(layout.tp, stride=1),
            data=machine.group(layout.dp, stride=layout.tp, groups=layout.pp),
            pipeline=machine.group(layout.pp, stride=min(stage, machine.gpus_per_node + 1)),
        )


def tensor_traffic(model: PlannedTransformer, layout: Layout, group: Group) -> Traffic:
    """All-reduces of a layer's activations, or as many reduce-scatters and all-gathers with sequence parallelism."""
    if layout.tp == 1:
        return Traffic(bytes_sent=0.0, seconds=0.0)
    size = layout.micro_tokens * model.hidden * ACTIVATION_BYTES
    calls = layout.microbatches * (model.layers + EMBEDDING_LAYERS) / layout.pp
    reductions = REDUCTIONS + (RECOMPUTED_REDUCTIONS if layout.recompute == "full" else 0)
    if not layout.sequence_parallel:
        return Traffic(
            bytes_sent=calls * reductions * group.allreduce_bytes(size),
            seconds=calls * reductions * group.allreduce(size),
        )
    exposed = 2 * reductions + (0 if layout.overlap else REPEATED_GATHERS)
    return Traffic(
        bytes_sent=calls * (2 * reductions + REPEATED_GATHERS) * group.gather_bytes(size),
        seconds=calls * exposed * group.gather(size),
    )


def pipeline_traffic(model: PlannedTransformer, layout: Layout, group: Group) -> Traffic:
    """Activations forward and their gradients backward, per microbatch and chunk; each tensor rank sends its share
    (arXiv 2104.04473, §4.1). Not overlapped."""
    if layout.pp == 1:
        return Traffic(bytes_sent=0.0, seconds=0.0)
    size = layout.micro_tokens * model.hidden * ACTIVATION_BYTES / layout.tp
    sends = 2 * layout.microbatches * layout.interleave
    return Traffic(bytes_sent=sends * size, seconds=sends * group.send(size))


@dataclass(frozen=True, kw_only=True)
class DataParallel:
    """The exchange of gradients and weights among replicas."""

    group: Group
    gradient_size: float
    """Of one GPU's parameters."""
    weight_size: float
    layout: Layout
    layers: float
    """On one GPU."""

    @classmethod
    def of(cls, model: PlannedTransformer, layout: Layout, group: Group, gradient_bytes: float) -> DataParallel:
        own = model.parameters / (layout.tp * layout.pp)
        return cls(group=group, gradient_size=own * gradient_bytes, weight_size=own * WEIGHT_BYTES, layout=layout,
                   layers=model.layers / layout.pp)  # fmt: skip

    def reduce(self, size: float) -> float:
        """Seconds to reduce so many bytes of gradients: to all replicas, or to the one that owns them."""
        return self.group.gather(size) if self.layout.sharding.optimizer else self.group.allreduce(size)

    @property
    def reductions(self) -> int:
        """Per step: gradients that are sharded do not stay until the last microbatch."""
        return self.layout.microbatches if self.layout.sharding.gradients else 1

    @property
    def gathers(self) -> int:
        """Of all weights per step: under ZeRO-3 for every forward and every backward, else after the optimizer if it is
        sharded."""
        shard = self.layout.sharding
        return 2 * self.layout.microbatches if shard.weights else int(shard.optimizer)

    @property
    def bytes_sent(self) -> float:
        once = self.group.gather_bytes(self.gradient_size) * (1 if self.layout.sharding.optimizer else 2)
        return self.reductions * once + self.gathers * self.group.gather_bytes(self.weight_size)

    @property
    def updated_seconds(self) -> float:
        """To gather the weights that each replica updated its share of; not overlapped."""
        shard = self.layout.sharding
        return self.group.gather(self.weight_size) if shard.optimizer and not shard.weights else 0.0

    def sharded_seconds(self, forward: float, backward: float) -> float:
        """What ZeRO-3 adds to the forward and the backward of a microbatch, which last so long without it.

        A layer's gather runs under the computation of the one before it, its reduce-scatter under the one after it; exposed
        are the first gather, what is longer than the computation, and the last reduce-scatter. The last layer stays for its
        backward. Without overlap everything is exposed.
        """
        gather = self.group.gather(self.weight_size / self.layers)
        scatter = self.group.gather(self.gradient_size / self.layers)
        if not self.layout.overlap:
            return self.layers * (2 * gather + scatter)
        steady = max(gather - forward / self.layers, 0.0) + max(gather + scatter - backward / self.layers, 0.0)
        return gather + (self.layers - 1) * steady + scatter
