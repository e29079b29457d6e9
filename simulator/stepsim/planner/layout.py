"""How a job is divided among GPUs: tensor, pipeline and data parallel, sharding, microbatches, recomputation.

To add a sharding: add a row to ``SHARDINGS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepsim.job import Transformer


class LayoutError(ValueError):
    """A division that does not come out even, and why."""


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """What the data-parallel ranks share out among them instead of each having all (Rajbhandari et al., arXiv 1910.02054)."""

    optimizer: bool = False
    gradients: bool = False
    weights: bool = False


SHARDINGS: Mapping[str, Sharding] = {
    "ddp": Sharding(),
    "zero1": Sharding(optimizer=True),
    "zero2": Sharding(optimizer=True, gradients=True),
    "zero3": Sharding(optimizer=True, gradients=True, weights=True),
}
ALIASES = {"fsdp": "zero3"}
RECOMPUTATIONS = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """GPU r has tensor rank r mod tp, data rank r/tp mod dp, and pipeline rank r/(tp·dp), as in Megatron-LM."""

    gpus: int
    tp: int = 1
    pp: int = 1
    interleave: int = 1
    """Chunks of layers that each pipeline stage holds."""
    strategy: str = "ddp"
    microbatches: int = 1
    tokens: float
    """Of one data-parallel replica in a step."""
    recompute: str = "none"
    sequence_parallel: bool = False
    fused_attention: bool = True
    """Whether attention keeps no scores (FlashAttention)."""
    overlap: bool = True
    """Whether data-parallel communication runs under the backward, and tensor parallelism's repeated gathers under it."""

    @property
    def dp(self) -> int:
        return self.gpus // (self.tp * self.pp)

    @property
    def sharding(self) -> Sharding:
        return SHARDINGS[self.strategy]

    @property
    def micro_tokens(self) -> float:
        return self.tokens / self.microbatches

    @property
    def bubble_ratio(self) -> float:
        """Pipeline bubble by the time of the work: (p−1)/(m·v) (Narayanan et al., arXiv 2104.04473, §2.2)."""
        return (self.pp - 1) / (self.microbatches * self.interleave)

    def check(self, model: Transformer, gpus_per_node: int) -> None:
        """Raise ``LayoutError`` with every rule that it breaks."""
        rules = (
            (self.gpus % (self.tp * self.pp),
             f"gpus: {self.gpus} are not a multiple of tp × pp = {self.tp * self.pp}"),
            (self.gpus > gpus_per_node and self.gpus % gpus_per_node,
             f"gpus: {self.gpus} do not fill nodes of {gpus_per_node}"),
            (self.tp > gpus_per_node or gpus_per_node % self.tp,
             f"tp: {self.tp} must divide the {gpus_per_node} GPUs of a node: tensor parallelism stays inside one"),
            (model.heads % self.tp,
             f"tp: {self.tp} does not divide the {model.heads} attention heads of {model.name}"),
            (model.layers % (self.pp * self.interleave),
             f"pp: {self.pp} × interleave {self.interleave} does not divide the {model.layers} layers of {model.name}"),
            (self.interleave > 1 and self.pp == 1,
             f"interleave: {self.interleave} needs a pipeline, pp > 1"),
            (self.interleave > 1 and self.microbatches % self.pp,
             f"interleave: the schedule needs microbatches in multiples of pp = {self.pp}, not {self.microbatches}"),
            (self.sequence_parallel and self.tp == 1,
             "sequence_parallel: it shares out what tensor parallelism leaves whole, and needs tp > 1"),
        )  # fmt: skip
        broken = [message for wrong, message in rules if wrong]
        if broken:
            raise LayoutError("; ".join(broken))
