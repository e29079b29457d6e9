"""The planner's answer for people, in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import floor, log10
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table

from stepsim.accelerators import GIB

PARTS = {
    "compute": "compute", "recompute": "recomputation", "tensor_parallel": "tensor-parallel communication",
    "pipeline_transfer": "pipeline transfers", "pipeline_bubble": "pipeline bubble",
    "stage_imbalance": "last stage's logits", "data_parallel": "gradients and weights, exposed",
    "waiting": "waiting for the slowest rank", "optimizer": "optimizer", "host": "host and copies",
}  # fmt: skip
SHORT = {
    "tensor_parallel": "tensor parallel", "pipeline_transfer": "transfers", "pipeline_bubble": "bubble",
    "stage_imbalance": "logits", "data_parallel": "gradients",
}  # fmt: skip
"""Where there is little room; the others are called what they are."""
BAR_CELLS = 24
SCALINGS = {"weak": "Weak scaling: every GPU keeps its tokens", "strong": "Strong scaling: the job keeps its batch"}


def report(answer: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What is printed, one after the other."""
    yield headline(answer)
    yield step_table(answer["prediction"])
    yield memory_table(answer["prediction"])
    yield from fit_lines(answer)
    yield communication_table(answer["prediction"])
    for name, title in SCALINGS.items():
        yield scaling_table(title, answer["scaling"][name]["points"])
        yield knee_sentence(answer["scaling"][name])


def headline(answer: Mapping[str, Any]) -> str:
    now, machine = answer["prediction"], answer["machine"]
    shape = f"tp {now['tp']} × pp {now['pp']} × dp {now['dp']}, {answer['request']['strategy']}"
    return (
        f"[bold]{escape(answer['model']['name'])}[/] on {now['gpus']:,} × {machine['accelerator']} "
        f"({machine['topology']}, {shape}):\n{'' if now['fits'] else '[red]does not fit[/], '}"
        f"step {seconds(now['step_seconds'])}, {now['tokens_per_second']:,.0f} tokens/s, MFU {now['mfu_ratio']:.1%}"
    )


def step_table(now: Mapping[str, Any]) -> Table:
    table = Table("where a step goes", Column("time", justify="right"), Column("share", justify="right"), "")
    for name, title in PARTS.items():
        part = now["seconds"][name]
        if part > SHOWN * now["step_seconds"]:
            share = part / now["step_seconds"]
            table.add_row(title, seconds(part), f"{share:.1%}", bar(share))
    return table


SHOWN = 5e-5
"""Of a step: less is not shown."""


def memory_table(now: Mapping[str, Any]) -> Table:
    there = now["memory_available_bytes"]
    table = Table("memory of a GPU", Column("GiB", justify="right"), Column("share", justify="right"), "")
    for name, size in now["memory_bytes"].items():
        if size and name != "total":
            table.add_row(name, f"{size / GIB:.1f}", f"{size / there:.0%}", bar(size / there))
    total = now["memory_bytes"]["total"]
    table.add_section()
    table.add_row(f"of {there / GIB:.0f} GiB", f"{total / GIB:.1f}", f"{total / there:.0%}", bar(total / there))
    return table


def fit_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    now = answer["prediction"]
    if now["fits"]:
        return
    over = (now["memory_bytes"]["total"] - now["memory_available_bytes"]) / GIB
    ways = " or ".join(answer["remedies"])
    yield f"[red]It does not fit: {over:,.1f} GiB too much.[/] " + (
        f"It would with {ways}."
        if ways
        else "No two of sharding, recomputation, tp and pp make it fit: take more GPUs."
    )


def communication_table(now: Mapping[str, Any]) -> Table:
    table = Table(
        "communication of a GPU in a step", Column("sends", justify="right"), Column("takes", justify="right")
    )
    titles = {"tensor": "tensor parallel", "pipeline": "pipeline", "data": "data parallel"}
    for name, title in titles.items():
        one = now["communication"][name]
        if one["sent_bytes_per_gpu"]:
            table.add_row(title, f"{one['sent_bytes_per_gpu'] / 1e9:,.2f} GB", seconds(one["seconds"]))
    return table


def scaling_table(title: str, points: Sequence[Mapping[str, Any]]) -> Table:
    right = [Column(name, justify="right") for name in ("GPUs", "step", "tokens/s", "efficiency", "one more")]
    table = Table(*right, "most is lost to", "fits", title=title, title_justify="left")
    for point in points:
        lost = point["largest_loss"]
        share = point["seconds"][lost] / point["step_seconds"]
        marginal = "" if point["marginal_ratio"] is None else f"{point['marginal_ratio']:.0%}"
        table.add_row(
            f"{point['gpus']:,}", seconds(point["step_seconds"]), f"{point['tokens_per_second']:,.0f}",
            f"{point['efficiency_ratio']:.1%}", marginal,
            f"{SHORT.get(lost, lost)} {share:.1%}", "yes" if point["fits"] else "[red]no[/]",
        )  # fmt: skip
    return table


def knee_sentence(scaling: Mapping[str, Any]) -> str:
    last, pays = scaling["points"][-1]["gpus"], f"{scaling['pays_ratio']:.0%} of what one does at its best size"
    if scaling["knee_is_last"]:
        return f"No knee up to {last:,} GPUs: each added GPU brings at least {pays}.\n"
    return f"The knee is at {scaling['knee_gpus']:,} GPUs: beyond it, up to {last:,}, an added GPU brings less than {pays}.\n"


def bar(share: float) -> str:
    return "█" * min(round(share * BAR_CELLS), BAR_CELLS)


def seconds(value: float) -> str:
    """With three digits, in the unit that suits."""
    unit, size = next(((unit, size) for unit, size in UNITS if value >= size), UNITS[-1])
    scaled = value / size
    return f"{scaled:,.{max(0, 2 - floor(log10(scaled))) if scaled else 0}f} {unit}"


UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
