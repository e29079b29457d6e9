"""Writes the tables of docs/planner.md: what was measured and published beside what ``stepscope plan`` predicts.

Run: python docs/planner_cases.py. To add a case: add a line to planner_cases.yml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from stepsim.accelerators import GIB
from stepsim.planner.memory import Memory, memory
from stepsim.planner.predict import predict
from stepsim.planner.request import PlanRequest, resolve

FILE = Path(__file__).with_name("planner.md")
CASES = Path(__file__).with_name("planner_cases.yml")
START, END = "<!-- measured: python docs/planner_cases.py -->\n", "<!-- end of measured -->"
UNITS = {"seconds": "s", "tokens per second and GPU": "tokens/s"}


def published() -> dict[str, Any]:
    return yaml.safe_load(CASES.read_text(encoding="utf-8"))


def predicted(unit: str, request: Mapping[str, Any]) -> float:
    """Seconds of a step, or tokens per second and GPU."""
    planned = resolve(PlanRequest.of(request))
    prediction = predict(planned.job, planned.model, planned.layout, planned.machine)
    if unit == "seconds":
        return prediction.step_seconds
    return prediction.tokens_per_second / planned.layout.gpus


def time_cases() -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Family, case, and the case's whole request."""
    for family in published()["families"]:
        for case in family["cases"]:
            yield family, case, {**family["common"], **case["request"]}


def memory_cases() -> Iterator[tuple[dict[str, Any], Memory, Memory]]:
    """Case, its memory without recomputation, and with selective recomputation and sequence parallelism."""
    told = published()["memory"]
    for case in told["cases"]:
        request = {**told["common"], **case["request"]}
        yield case, _memory(request), _memory({**request, "recompute": "selective", "sequence_parallel": True})


def _memory(request: Mapping[str, Any]) -> Memory:
    planned = resolve(PlanRequest.of(request))
    return memory(planned.model, planned.layout, planned.job.network.gradient_bytes)


def tables() -> str:
    sources = published()["sources"]
    lines: list[str] = []
    for family in published()["families"]:
        unit = UNITS[family["unit"]]
        lines += [f"**{family['title']}.** Source: {sources[family['source']]}.", "",
                  f"| model | layout | measured, {unit} | predicted, {unit} | difference |", "|---|---|--:|--:|--:|"]  # fmt: skip
        lines += [
            _row(family, case, request) for owner, case, request in time_cases() if owner["title"] == family["title"]
        ]
        lines.append("")
    return "\n".join([*lines, *_memory_table(sources)]) + "\n"


def _row(family: Mapping[str, Any], case: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    found = predicted(family["unit"], request)
    shown = f"{found:.3g}" if found < 100 else f"{found:,.0f}"
    layers = f", {request['layers']} layers" if "layers" in request else ""
    off = f"{found / case['measured'] - 1:+.1%}"
    miss = "**" if abs(found / case["measured"] - 1) > family["within"] else ""
    return f"| {request['model']}{layers} | {_layout(request)} | {case['measured']:,} | {shown} | {miss}{off}{miss} |"


def _layout(request: Mapping[str, Any]) -> str:
    names = ("gpus", "tp", "pp", "interleave", "global_batch", "tokens_per_gpu")
    said = [f"{name.replace('_', ' ')} {request[name]}" for name in names if request.get(name, 1) != 1]
    recompute = request.get("recompute", "none")
    return ", ".join([*said, *([f"{recompute} recomputation"] if recompute != "none" else [])])


def _memory_table(sources: Mapping[str, str]) -> list[str]:
    lines = [f"**Memory of a GPU, GiB, published / predicted.** Source: {sources[published()['memory']['source']]}.", "",
             "| model | weights, gradients, optimizer | activations | activations, selective and sequence parallel |",
             "|---|--:|--:|--:|"]  # fmt: skip
    for case, whole, selective in memory_cases():
        pairs = ((case["states"], whole.model_states), (case["activations"], whole.activations),
                 (case["selective"], selective.activations))  # fmt: skip
        cells = " | ".join(f"{measured:.2f} / {size / GIB:.2f}" for measured, size in pairs)
        lines.append(f"| {case['request']['model']} | {cells} |")
    return lines


def page() -> str:
    """The page with its tables written anew."""
    found = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    return found.sub(lambda _: START + "\n" + tables() + "\n" + END, FILE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
