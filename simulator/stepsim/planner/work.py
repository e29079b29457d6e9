"""The work of one GPU, as a job that the simulator's own model takes: its compute, its clock and its steps."""

from __future__ import annotations

from math import sqrt
from typing import Any

from stepsim.accelerators import Accelerator
from stepsim.job import Job
from stepsim.planner.layout import Layout
from stepsim.planner.machine import Machine
from stepsim.planner.memory import SPLIT_BYTES, WHOLE_BYTES
from stepsim.planner.models import PlannedTransformer

SCORE_PASSES = (15.0, 5.5)
"""Passes through HBM per attention score of 2 bytes outside fused attention, and those that recomputing it adds. Forward:
softmax reads and writes, dropout too and a mask of a byte, matmuls write and read once each, 11 bytes; backward 19."""


class PlannedJob(Job):
    """What one GPU does in a step. Not validated: it may need more memory than there is."""

    hardware: Accelerator
    hardware_flops: float
    """Of one GPU in a step, recomputation included."""

    @property
    def gpu(self) -> Accelerator:
        return self.hardware

    @property
    def flops_per_step(self) -> float:
        return self.hardware_flops


def planned_job(job: Job, model: PlannedTransformer, layout: Layout, machine: Machine, **parts: Any) -> PlannedJob:
    """``job``: what was not said otherwise, such as its kernels. Its launches scale with the layers, its loader with the
    tokens of a replica, which its GPUs read a share of each.

    Compute times vary from one microbatch to the next, each on its own, so that a step of many varies less. Nothing happens
    beside the steps, and storage does not stall.
    """
    tokens = layout.tokens / (layout.tp * layout.pp) / job.tokens_per_gpu
    loader, kernels = job.loader, job.kernels
    changes = {
        **machine.nodes(layout.gpus),
        "model": model,
        "tokens_per_gpu": layout.tokens,
        "hardware": machine.gpu,
        "hardware_flops": hardware_flops(model, layout),
        "kernels": kernels.model_copy(update={
            "hidden_passes": hidden_passes(kernels.hidden_passes, model, layout),
            "jitter": kernels.jitter / sqrt(layout.microbatches),
            "launch_seconds": kernels.launch_seconds * layout.microbatches * model.layers / job.model.layers / layout.pp,
        }),
        "loader": loader.model_copy(update={
            "read_seconds": loader.read_seconds * tokens, "decode_seconds": loader.decode_seconds * tokens,
            "stall_probability": 0.0,
        }),
        "network": job.network.model_copy(update={"nic_bytes_per_second": machine.nic_bytes_per_second}),
        "schedule": job.schedule.model_copy(update={"checkpoint_every_steps": 0, "evaluation_every_steps": 0}),
    }  # fmt: skip
    return PlannedJob.model_construct(**{**dict(job), **changes, **parts})


def hardware_flops(model: PlannedTransformer, layout: Layout) -> float:
    """PaLM's count of the forward and the backward, and what is recomputed of the forward, by tp · pp."""
    return layout.tokens * (model.flops_per_token + recomputed_flops(model, layout)) / (layout.tp * layout.pp)


def recomputed_flops(model: PlannedTransformer, layout: Layout) -> float:
    """Per token: the layers' forward, or its attention core alone. Fused attention does the latter in its own backward."""
    if layout.recompute == "full":
        return (model.flops_per_token - model.logit_flops_per_token) / 3
    if layout.recompute == "selective" and not layout.fused_attention:
        return 4.0 * model.layers * model.hidden * model.sequence
    return 0.0


def hidden_passes(passes: float, model: PlannedTransformer, layout: Layout) -> float:
    """Passes of a token's hidden vector through HBM that one GPU makes, per layer of the whole model.

    Tensor parallelism splits those whose activations it splits; scores outside fused attention come on top.
    """
    whole = WHOLE_BYTES / (WHOLE_BYTES + SPLIT_BYTES)
    share = 1.0 if layout.tp == 1 else (1 - whole) / layout.tp + whole / (layout.tp if layout.sequence_parallel else 1)
    again = 4 / 3 if layout.recompute == "full" else 1.0
    return (passes * share * again + _score_passes(model, layout) / layout.tp) / layout.pp


def _score_passes(model: PlannedTransformer, layout: Layout) -> float:
    if layout.fused_attention:
        return 0.0
    once, recomputed = SCORE_PASSES
    return (once + (recomputed if layout.recompute != "none" else 0.0)) * model.heads * model.sequence / model.hidden
