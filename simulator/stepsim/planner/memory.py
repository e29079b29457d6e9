"""Memory of one GPU, in bytes, on the fullest pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass, fields

from stepsim.planner.layout import Layout
from stepsim.planner.models import PlannedTransformer

WEIGHT_BYTES, OPTIMIZER_BYTES = 2.0, 12.0
"""Per parameter: 16-bit weights; fp32 master weights and two Adam moments (arXiv 1910.02054, §3.1)."""
WHOLE_BYTES, SPLIT_BYTES = 10.0, 24.0
"""Activations per token, layer and hidden unit: what tensor parallelism leaves whole (layer norms, dropouts) and what it
splits (Korthikanti et al., arXiv 2205.05198, eq. 2)."""
SCORE_BYTES = 5.0
"""Attention scores, their softmax and its dropout, per token, layer, head and token attended to (the same, eq. 1)."""
LOGIT_BYTES = 6.0
"""Per token and word of the vocabulary: in bf16 and in fp32."""
FRAGMENTATION = 0.02
"""Of what is allocated, as in ``Job.memory_bytes``."""
GATHERED_LAYERS = 2
"""Whose whole weights are there at once under ZeRO-3: the one that computes and the one that is prefetched."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Whole weights of sharded layers, while they are needed."""
    activations: float
    fragmentation: float

    @property
    def model_states(self) -> float:
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))


def memory(model: PlannedTransformer, layout: Layout, gradient_bytes: float) -> Memory:
    """Parameters are taken to be spread evenly over the pipeline's stages."""
    shard, dp = layout.sharding, layout.dp
    own = model.parameters / (layout.tp * layout.pp)
    parts = {
        "weights": WEIGHT_BYTES * own / (dp if shard.weights else 1),
        "gradients": gradient_bytes * own / (dp if shard.gradients else 1),
        "optimizer": OPTIMIZER_BYTES * own / (dp if shard.optimizer else 1),
        "gathered": GATHERED_LAYERS * WEIGHT_BYTES * model.layer_parameters / layout.tp if shard.weights and dp > 1 else 0.0,
        "activations": activations(model, layout),
    }  # fmt: skip
    return Memory(**parts, fragmentation=FRAGMENTATION * sum(parts.values()))


def activations(model: PlannedTransformer, layout: Layout) -> float:
    """Of all microbatches in flight on the first stage: as many as there are stages, under 1F1B.

    A stage with several chunks holds (p−1)/(p·v) more (arXiv 2205.05198, §4.2.3). Without a pipeline the logits are there, too.
    """
    per_token = _layer_bytes(model, layout) * model.layers / layout.pp
    flying = float(min(layout.microbatches, layout.pp))
    if layout.interleave > 1:
        flying *= 1 + (layout.pp - 1) / (layout.pp * layout.interleave)
    logits = LOGIT_BYTES * model.vocabulary / layout.tp if layout.pp == 1 else 0.0
    return layout.micro_tokens * (flying * per_token + logits + _recomputed_bytes(model, layout))


def _layer_bytes(model: PlannedTransformer, layout: Layout) -> float:
    """Kept of one layer for the backward, per token."""
    if layout.recompute == "full":
        return 2.0 * model.hidden / (layout.tp if layout.sequence_parallel else 1)
    return _whole_layer(model, layout, scores=layout.recompute == "none")


def _recomputed_bytes(model: PlannedTransformer, layout: Layout) -> float:
    """Full recomputation has one layer's activations at a time."""
    return _whole_layer(model, layout, scores=True) if layout.recompute == "full" else 0.0


def _whole_layer(model: PlannedTransformer, layout: Layout, *, scores: bool) -> float:
    whole = WHOLE_BYTES / layout.tp if layout.sequence_parallel else WHOLE_BYTES
    kept = SCORE_BYTES * model.heads * model.sequence if scores and not layout.fused_attention else 0.0
    return model.hidden * (whole + SPLIT_BYTES / layout.tp) + kept / layout.tp
