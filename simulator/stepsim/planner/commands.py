"""``stepscope plan``: how a job would run on GPUs that one does not have yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepsim.accelerators import ACCELERATORS
from stepsim.failure import fail
from stepsim.job import JobError, load_job
from stepsim.planner.answer import answer
from stepsim.planner.models import MODELS
from stepsim.planner.request import PlanError, PlanRequest
from stepsim.planner.tables import report

MODEL_PANEL, MACHINE_PANEL, LAYOUT_PANEL = "Model", "Machines", "Layout"
Option = typer.Option


def plan_scaling(
    model: Annotated[str | None, Option(help=f"One of: {', '.join(MODELS)}. Default: Llama 3 8B.",
                                        rich_help_panel=MODEL_PANEL)] = None,
    parameters: Annotated[float | None, Option(help="In place of the model's.", rich_help_panel=MODEL_PANEL)] = None,
    layers: Annotated[int | None, Option(help="In place of the model's.", rich_help_panel=MODEL_PANEL)] = None,
    heads: Annotated[int | None, Option(help="In place of the model's.", rich_help_panel=MODEL_PANEL)] = None,
    head_dim: Annotated[int | None, Option(help="In place of the model's.", rich_help_panel=MODEL_PANEL)] = None,
    sequence: Annotated[int | None, Option(help="Tokens of a sequence.", rich_help_panel=MODEL_PANEL)] = None,
    vocabulary: Annotated[int | None, Option(help="In place of the model's.", rich_help_panel=MODEL_PANEL)] = None,
    job_file: Annotated[Path | None, Option("--job", help="YAML file of a simulated job: its model, machines and kernels.",
                                            rich_help_panel=MODEL_PANEL)] = None,
    preset: Annotated[str | None, Option(help="A preset of the simulator, in the same way.",
                                         rich_help_panel=MODEL_PANEL)] = None,
    accelerator: Annotated[str | None, Option(help=f"One of: {', '.join(ACCELERATORS)}. Default: H100 SXM.",
                                              rich_help_panel=MACHINE_PANEL)] = None,
    gpus: Annotated[int | None, Option(help="Default: 64.", rich_help_panel=MACHINE_PANEL)] = None,
    gpus_per_node: Annotated[int | None, Option(help="Default: 8.", rich_help_panel=MACHINE_PANEL)] = None,
    topology: Annotated[str | None, Option(help="nvswitch or pcie. Default: as the accelerator is sold.",
                                           rich_help_panel=MACHINE_PANEL)] = None,
    nics_per_node: Annotated[int | None, Option(help="Default: one for every GPU.", rich_help_panel=MACHINE_PANEL)] = None,
    nic_gbps: Annotated[float | None, Option(help="Gigabits per second of a NIC. Default: 400.",
                                             rich_help_panel=MACHINE_PANEL)] = None,
    matmul_efficiency: Annotated[float | None, Option(help="Of the peak at the actual clock. Default: as measured.",
                                                      rich_help_panel=MACHINE_PANEL)] = None,
    strategy: Annotated[str | None, Option(help="ddp, zero1, zero2, or zero3 (fsdp). Default: zero3.",
                                           rich_help_panel=LAYOUT_PANEL)] = None,
    tp: Annotated[int | None, Option(help="Tensor parallel GPUs.", rich_help_panel=LAYOUT_PANEL)] = None,
    pp: Annotated[int | None, Option(help="Pipeline stages.", rich_help_panel=LAYOUT_PANEL)] = None,
    interleave: Annotated[int | None, Option(help="Chunks of layers per stage.", rich_help_panel=LAYOUT_PANEL)] = None,
    microbatch: Annotated[int | None, Option(help="Sequences. Default: 1 in a pipeline, else all.",
                                             rich_help_panel=LAYOUT_PANEL)] = None,
    global_batch: Annotated[int | None, Option(help="Sequences of the job in a step.", rich_help_panel=LAYOUT_PANEL)] = None,
    tokens_per_gpu: Annotated[int | None, Option(help="In a step; instead of --global-batch. Default: 8192.",
                                                 rich_help_panel=LAYOUT_PANEL)] = None,
    recompute: Annotated[str | None, Option(help="none, selective or full.", rich_help_panel=LAYOUT_PANEL)] = None,
    sequence_parallel: Annotated[bool | None, Option("--sequence-parallel", help="Beside tensor parallelism.",
                                                     rich_help_panel=LAYOUT_PANEL)] = None,
    fused_attention: Annotated[bool | None, Option("--fused-attention/--unfused-attention",
                                                   help="Unfused attention keeps its scores.",
                                                   rich_help_panel=LAYOUT_PANEL)] = None,
    overlap: Annotated[bool | None, Option("--overlap/--no-overlap", help="Communication under the backward.",
                                           rich_help_panel=LAYOUT_PANEL)] = None,
    gradient_bytes: Annotated[int | None, Option(help="Per parameter: 2, or 4 as Megatron-LM keeps them.",
                                                 rich_help_panel=LAYOUT_PANEL)] = None,
    max_gpus: Annotated[int | None, Option(help="Where the scaling curve ends. Default: 1024.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Predict step time, memory and communication of a training job, and up to how many GPUs it scales."""
    given = {name: value for name, value in locals().items() if name in PlanRequest.model_fields}
    try:
        job = load_job(preset or "cluster", job_file) if preset or job_file else None
        answered = answer(PlanRequest.of(given, job), job)
    except (JobError, PlanError) as error:
        raise fail(error) from None
    if as_json:
        typer.echo(json.dumps(answered))
        return
    out = Console(highlight=False)
    for part in report(answered):
        out.print(part)
