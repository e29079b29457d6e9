"""The matrix as a heat map, in SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

from fault_matrix.columns import THEMES, Column, Theme, Value
from fault_matrix.measuring import SETUPS, Setup
from fault_matrix.rows import row

PICTURED = frozenset(
    (
        "step", "mfu", "util", "tensor", "dram", "watts", "celsius", "clock",
        "path_data_wait", "path_h2d", "path_allreduce", "path_optimizer", "path_checkpoint", "path_other",
        "own_data_wait", "own_allreduce", "own_other",
        "slowest", "late_rank", "late_seconds", "accused", "tokens", "floor",
        "limit", "user", "iowait", "ethernet",
        "progress", "local_norm", "nonfinite", "age", "xid",
    )
)  # fmt: skip
"""What the picture has room for."""

LEFT, TOP, WIDE, HIGH, GAP, RIGHT, BOTTOM = 190, 216, 48, 29, 12, 100, 84
"""Pixels: where the cells begin, a cell, the gap between groups, and the margins."""
MOST_DOUBLINGS = 2.0
"""Where the colours end: a quarter, and four times."""
LESS, NONE, MORE = (33, 102, 172), (246, 246, 244), (190, 84, 10)
"""Blue and orange: all kinds of colour blindness leave them apart."""
INK, FAINT, UNKNOWN = "#24292f", "#6b7280", "#5e3c99"

Rgb: TypeAlias = tuple[int, int, int]


def doublings(column: Column, value: float, healthy: float) -> float:
    """The logarithm of the factor against healthy; the floor keeps it finite where healthy is nothing."""
    if value <= 0:
        return -MOST_DOUBLINGS
    least = column.floor or 1.0
    factor = max(value, least) / max(healthy, least)
    return max(-MOST_DOUBLINGS, min(MOST_DOUBLINGS, math.log2(factor)))


def blend(share: float) -> Rgb:
    """From blue at −1 over the ground's white to orange at 1. The root shows small factors, too."""
    end, weight = (MORE if share > 0 else LESS), math.sqrt(abs(share))
    red, green, blue = (round(a + weight * (b - a)) for a, b in zip(NONE, end, strict=True))
    return red, green, blue


def ink_on(colour: Rgb) -> str:
    red, green, blue = colour
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else INK


def picture_cell(x: float, y: float, column: Column, value: Value, healthy: Value) -> str:
    if not column.moved(value, healthy):
        return box(x, y, f"rgb{NONE}")
    if value is None or healthy is None or math.isnan(value):
        return box(x, y, UNKNOWN) + text(x + WIDE / 2, y + 19, column.shown(value), fill="#ffffff")
    colour = blend(doublings(column, value, healthy) / MOST_DOUBLINGS)
    label = text(x + WIDE / 2, y + 19, column.distance(value, healthy) or column.shown(value), fill=ink_on(colour))
    return box(x, y, f"rgb{colour}") + label


def box(x: float, y: float, fill: str, width: float = WIDE - 2, height: float = HIGH - 2) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill.replace(" ", "")}"/>\n'


def text(
    x: float, y: float, words: str, *, fill: str = INK, size: int = 12, anchor: str = "middle", more: str = ""
) -> str:
    escaped = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{more}>{escaped}</text>\n'


def pictured() -> list[tuple[float, Theme, tuple[Column, ...]]]:
    """The picture's columns by theme, and where each theme begins."""
    placed, x = [], float(LEFT)
    for theme in THEMES:
        columns = tuple(column for column in theme.columns if column.key in PICTURED)
        placed.append((x, theme, columns))
        x += len(columns) * WIDE + GAP
    return placed


def picture_rows() -> list[tuple[float, Setup, str]]:
    placed, y = [], float(TOP + HIGH + GAP)
    for setup in SETUPS:
        for fault in setup.faults:
            placed.append((y, setup, fault))
            y += HIGH
        y += GAP if len(setup.faults) > 1 else 0
    return placed


def picture_head() -> Iterator[str]:
    for x, theme, columns in pictured():
        width = len(columns) * WIDE
        yield box(x, TOP - 8, "#c9ced6", width - 2, 3)
        for place, column in enumerate(columns):
            at = x + (place + 0.5) * WIDE
            yield text(
                at, TOP - 16, column.label, size=13, anchor="start", more=f' transform="rotate(-45 {at:g} {TOP - 16})"'
            )
        yield text(x + width / 2, picture_bottom() + 20, theme.title, size=13, fill=FAINT, more=' font-weight="600"')


def picture_bottom() -> float:
    return picture_rows()[-1][0] + HIGH


def picture_healthy() -> Iterator[str]:
    yield text(LEFT - 10, TOP + 19, SETUPS[0].title, fill=FAINT, size=14, anchor="end")
    for x, _, columns in pictured():
        for place, column in enumerate(columns):
            shown = column.shown(row(SETUPS[0], None)[column.key]).replace(",", "")
            yield text(x + (place + 0.5) * WIDE - 1, TOP + 19, shown, fill=FAINT)


def picture_body() -> Iterator[str]:
    for y, setup, fault in picture_rows():
        yield text(LEFT - 10, y + 19, fault, size=14, anchor="end")
        values, healthy = row(setup, fault), row(setup, None)
        for x, _, columns in pictured():
            for place, column in enumerate(columns):
                yield picture_cell(x + place * WIDE, y, column, values[column.key], healthy[column.key])


KEY_SHARES = ((-1.0, "¼ or less"), (-0.5, "½"), (0.0, "not moved"), (0.5, "× 2"), (1.0, "× 4 or more"))


def picture_key() -> Iterator[str]:
    y = picture_bottom() + 40
    for place, (share, words) in enumerate(KEY_SHARES):
        x = LEFT + place * 130
        yield box(x, y, f"rgb{blend(share)}") + text(x + WIDE + 6, y + 18, words, anchor="start")
    x = LEFT + len(KEY_SHARES) * 130 + 20
    yield box(x, y, UNKNOWN) + text(x + WIDE + 6, y + 18, "– nothing to read, or not a number", anchor="start")
    own = "The last two rows are held against a healthy job of their own: see the tables."
    yield text(x + 330, y + 18, own, fill=FAINT, anchor="start")


def picture() -> str:
    x, _, columns = pictured()[-1]
    width, height = x + len(columns) * WIDE + RIGHT, picture_bottom() + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'font-family="Inter, Helvetica, Arial, sans-serif">\n<rect width="100%" height="100%" fill="#ffffff"/>\n',
        text(24, 44, "Which fault moves which series", size=24, anchor="start", more=' font-weight="700"'),
        text(24, 68, "How far from healthy, at plain severity, measured:", size=14, fill=FAINT, anchor="start"),
        text(24, 86, "× a factor, ± points, alone if it was nothing in health.", size=14, fill=FAINT, anchor="start"),
        *picture_head(), *picture_healthy(), *picture_body(), *picture_key(), "</svg>\n",
    ]  # fmt: skip
    return "".join(parts)
