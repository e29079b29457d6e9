"""The calculator's answer as an SVG picture: the step of every GPU on one axis, and the efficiency by size."""

from __future__ import annotations

from math import log2

from stepsim.markup import Markup, tag
from stepsim.straggler.answer import Answer, Bar
from stepsim.straggler.curve import efficiency_by_size

WIDTH, LEFT, RIGHT = 960, 90, 34
TOP, ROWS, CURVE, GAP = 70, 384, 170, 70
PARTS = ("load", "compute", "waiting", "allreduce")
STYLE = """
svg { font: 13px system-ui, sans-serif; background: #fff; color: #1c2024; }
text { fill: currentColor } .dim { fill: #5b6570 } .big { font-size: 17px; font-weight: 600 } .end { text-anchor: end }
.load { fill: #e69f00 } .compute { fill: #009e73 } .slow { fill: #d55e00 } .waiting { fill: #c3c9cf } .allreduce { fill: #0072b2 }
.axis { stroke: #9aa3ad } .curve { fill: none; stroke: #0072b2; stroke-width: 2 } .mark { fill: #d55e00 }
"""


def picture(answer: Answer) -> str:
    """A whole SVG document."""
    height = TOP + ROWS + GAP + CURVE + 50
    return tag(
        "svg", tag("style", Markup(STYLE)), *_head(answer), *_bars(answer), *_curve(answer),
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height}", width=WIDTH, height=height,
    )  # fmt: skip


def _head(answer: Answer) -> list[Markup]:
    lost = f"{answer.lost_gpu_hours_per_day:,.0f} of {answer.gpu_hours_per_day:,.0f} GPU-hours a day are lost"
    shares = (
        f"useful compute {answer.useful_compute_share:.1%}, displayed utilization {answer.displayed_utilization:.1%}"
    )
    legend = [
        piece
        for number, part in enumerate(PARTS)
        for piece in (
            tag("rect", x=LEFT + 110 * number, y=TOP - 20, width=12, height=12, class_=part),
            tag("text", part.replace("allreduce", "all-reduce"), x=LEFT + 110 * number + 18, y=TOP - 9.5),
        )
    ]
    return [
        tag("text", f"{answer.question.gpus:,} GPUs: efficiency {answer.efficiency:.1%}, {lost}", x=LEFT, y=24, class_="big"),
        tag("text", f"step {1000 * answer.step_seconds:,.0f} ms, ideal {1000 * answer.ideal_step_seconds:,.0f} ms; {shares}",
            x=LEFT, y=42, class_="dim"),
        *legend,
    ]  # fmt: skip


def _bars(answer: Answer) -> list[Markup]:
    height = ROWS / len(answer.bars)
    rows = [piece for row, bar in enumerate(answer.bars) for piece in _bar(answer, bar, TOP + row * height, height)]
    ends = (("GPU 0", TOP + 10.0), (f"GPU {answer.question.gpus - 1}", TOP + ROWS)) if answer.question.gpus > 1 else ()
    return [*rows, *(tag("text", name, x=LEFT - 8, y=y, class_="end dim") for name, y in ends)]


def _bar(answer: Answer, bar: Bar, y: float, height: float) -> list[Markup]:
    at, pieces = 0.0, []
    for part in PARTS:
        seconds = getattr(bar, f"{part}_seconds")
        pieces.append(
            tag("rect", x=_x(answer, at), y=y, width=_x(answer, at + seconds) - _x(answer, at), height=0.9 * height,
                class_="slow" if part == "compute" and bar.slow else part)
        )  # fmt: skip
        at += seconds
    return pieces


def _x(answer: Answer, seconds: float) -> float:
    return LEFT + seconds / answer.step_seconds * (WIDTH - LEFT - RIGHT)


def _curve(answer: Answer) -> list[Markup]:
    sizes = efficiency_by_size(answer.question)
    top, first, last = TOP + ROWS + GAP, log2(sizes[0][0]), log2(sizes[-1][0])

    def x(size: float) -> float:
        return LEFT + (log2(size) - first) / max(1.0, last - first) * (WIDTH - LEFT - RIGHT)

    def y(efficiency: float) -> float:
        return top + (1 - efficiency) * CURVE

    points = " ".join(f"{x(size):.1f},{y(efficiency):.1f}" for size, efficiency in sizes)
    here = max(sizes[0][0], answer.question.gpus)
    return [
        tag("text", "expected efficiency by the number of GPUs", x=LEFT, y=top - 14, class_="dim"),
        *(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(level), y2=y(level), class_="axis", stroke_width=0.5)
          for level in (0, 0.5, 1)),
        *(tag("text", f"{level:.0%}", x=LEFT - 8, y=y(level) + 4, class_="end dim") for level in (0, 0.5, 1)),
        *(tag("text", f"{size:,}", x=x(size), y=top + CURVE + 18, class_="dim", text_anchor="middle") for size, _ in sizes),
        tag("polyline", points=points, class_="curve"),
        tag("circle", cx=x(here), cy=y(answer.efficiency_expected), r=5, class_="mark"),
    ]  # fmt: skip
