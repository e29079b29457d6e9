"""``stepscope straggler``: the calculator in a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from stepsim.failure import fail
from stepsim.straggler.answer import Answer, Bar, solve
from stepsim.straggler.curve import efficiency_by_size
from stepsim.straggler.picture import picture
from stepsim.straggler.question import Straggler, StragglerError

FIELDS = Straggler.model_fields
CELLS, MOST_LINES = 56, 16
SHOWN_SIZES = (8, 64, 512, 1024, 4096, 16_384)
PARTS = (
    ("load", "yellow", "░"),
    ("compute", "green", "█"),
    ("waiting", "bright_black", "╱"),
    ("allreduce", "blue", "▓"),
)


def _option(name: str) -> Any:
    return typer.Option(f"--{name.replace('_', '-')}", help=FIELDS[name].description)


def calculate_straggler(
    gpus: Annotated[int, _option("gpus")] = FIELDS["gpus"].default,
    load_ms: Annotated[float, _option("load_ms")] = FIELDS["load_ms"].default,
    compute_ms: Annotated[float, _option("compute_ms")] = FIELDS["compute_ms"].default,
    allreduce_ms: Annotated[float, _option("allreduce_ms")] = FIELDS["allreduce_ms"].default,
    slow_gpus: Annotated[int, _option("slow_gpus")] = FIELDS["slow_gpus"].default,
    slow_speed: Annotated[float, _option("slow_speed")] = FIELDS["slow_speed"].default,
    variability: Annotated[float, _option("variability")] = FIELDS["variability"].default,
    seed: Annotated[int, _option("seed")] = FIELDS["seed"].default,
    price: Annotated[float | None, _option("price")] = None,
    currency: Annotated[str, _option("currency")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the step, and the efficiency by size.")
    ] = None,
) -> None:
    """What one slow GPU, or ordinary variation, costs a job that waits for its slowest GPU."""
    try:
        question = Straggler.of(
            {
                "gpus": gpus, "load_ms": load_ms, "compute_ms": compute_ms, "allreduce_ms": allreduce_ms,
                "slow_gpus": slow_gpus, "slow_speed": slow_speed, "variability": variability, "seed": seed, "price": price,
                "currency": currency,
            }
        )  # fmt: skip
        if plot and plot.suffix != ".svg":
            raise StragglerError(f"--plot writes SVG: give a name that ends in .svg, such as {plot.stem}.svg")
    except StragglerError as error:
        raise fail(error) from None
    answer = solve(question)
    if plot:
        _draw(answer, plot)
    if as_json:
        typer.echo(json.dumps(answer.to_dict(), indent=2))
    else:
        Console(highlight=False).print(_shown(answer))
        if plot:
            Console(highlight=False).print(f"\nThe picture is in {plot}", markup=False)


def _draw(answer: Answer, plot: Path) -> None:
    try:
        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.write_text(picture(answer), encoding="utf-8")
    except OSError as error:
        raise fail(f"cannot write {plot}: {error.strerror}") from None


def _shown(answer: Answer) -> RenderableType:
    return Group(_numbers(answer), "", *_step(answer), "", _sizes(answer))


def _numbers(answer: Answer) -> Table:
    """One draw beside what is expected over many."""
    table = Table(Column(""), Column("this draw", justify="right"), Column("expected", justify="right"), box=None)
    for label, shown, expected in rows(answer):
        table.add_row(Text(label), Text(shown, "bold"), expected)
    return table


def rows(answer: Answer) -> list[tuple[str, str, str]]:
    """What is told, this draw's number and the expected one, as text."""
    hours, price = answer.gpu_hours_per_day, answer.question.price
    lost, lost_expected = answer.lost_gpu_hours_per_day, answer.lost_gpu_hours_per_day_expected
    told = [
        ("step", f"{1000 * answer.step_seconds:,.1f} ms", f"{1000 * answer.step_seconds_expected:,.1f} ms"),
        ("ideal step", f"{1000 * answer.ideal_step_seconds:,.1f} ms", ""),
        ("efficiency", f"{answer.efficiency:.2%}", f"{answer.efficiency_expected:.2%}"),
        ("useful compute", f"{answer.useful_compute_share:.1%}", ""),
        ("displayed utilization", f"{answer.displayed_utilization:.1%}", ""),
        (f"lost of {hours:,.0f} GPU-hours a day", f"{lost:,.0f}", f"{lost_expected:,.0f}"),
        ("lost GPU-hours in 30 days", f"{30 * lost:,.0f}", f"{30 * lost_expected:,.0f}"),
    ]
    if price is not None:
        money = f"lost {answer.question.currency or 'money'} in 30 days"
        told.append((money, f"{30 * lost * price:,.0f}", f"{30 * lost_expected * price:,.0f}"))
    return told


def _step(answer: Answer) -> list[Text]:
    """The step on a common axis: all GPUs of a small job, else the slowest and those around it."""
    legend = Text("one step: ").append_text(
        Text("  ").join(Text.assemble((sign, colour), f" {part}") for part, colour, sign in PARTS)
    )
    return [legend, *(_line(bar, answer.step_seconds) for bar in _chosen(answer.bars))]


def _chosen(bars: list[Bar]) -> list[Bar]:
    latest = min(range(len(bars)), key=lambda index: bars[index].waiting_seconds)
    first = max(0, min(latest - MOST_LINES // 2, len(bars) - MOST_LINES))
    return bars[first : first + MOST_LINES]


def _line(bar: Bar, step_seconds: float) -> Text:
    name = f"{bar.first}" if bar.first == bar.last else f"{bar.first}–{bar.last}"
    line, at, cell = Text(f"GPU {name:<12}"), 0.0, 0
    for part, colour, sign in PARTS:
        at += getattr(bar, f"{part}_seconds")
        end = round(at / step_seconds * CELLS)
        line.append(sign * (end - cell), colour)
        cell = end
    return line.append(" slow" if bar.slow else "", "bold red")


def _sizes(answer: Answer) -> Table:
    sizes = [(size, efficiency) for size, efficiency in efficiency_by_size(answer.question) if size in SHOWN_SIZES]
    table = Table(
        Column("GPUs", justify="right"), *(Column(f"{size:,}", justify="right") for size, _ in sizes), box=None
    )
    table.add_row("efficiency", *(f"{efficiency:.1%}" for _, efficiency in sizes))
    return table
