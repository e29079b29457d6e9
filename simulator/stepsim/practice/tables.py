"""Grades in the terminal: a drill's scorecard, a table over drills, and where the rules fired against the truth.

Shapes say what colours say, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeAlias

from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Column, Table
from rich.text import Text

from stepsim.board import target_label
from stepsim.markup import printable
from stepsim.practice.grade import DrillGrade, Heard
from stepsim.practice.outcome import (
    Outcome,
    Part,
    happened,
    judged_of,
    mean,
    mean_score,
    outcome,
    parts,
    remark,
    spoken,
    unheard,
)

Cell: TypeAlias = tuple[str, str]
"""A character and its style."""

DIGITS = {
    "0": ("█▀█", "█ █", "▀▀▀"), "1": ("▀█ ", " █ ", "▀▀▀"), "2": ("▀▀█", "█▀▀", "▀▀▀"), "3": ("▀▀█", " ▀█", "▀▀▀"),
    "4": ("█ █", "▀▀█", "  ▀"), "5": ("█▀▀", "▀▀█", "▀▀▀"), "6": ("█▀▀", "█▀█", "▀▀▀"), "7": ("▀▀█", "  █", "  ▀"),
    "8": ("█▀█", "█▀█", "▀▀▀"), "9": ("█▀█", "▀▀█", "▀▀▀"), ".": (" ", " ", "▀"),
}  # fmt: skip
BAR_CELLS = 20
EIGHTHS = " ▏▎▍▌▋▊▉"
TRUTH, RESTART, SILENCE, QUIET = "█", "┊", "░", "·"
MARKS: dict[Outcome, Cell] = {
    "hit": ("█", "green"), "further": ("▒", "yellow"), "false": ("×", "bold red"), "beside": ("-", "bright_black"),
}  # fmt: skip
RANK: dict[Outcome, int] = {"beside": 0, "further": 1, "hit": 2, "false": 3}
"""Which of two alarms in one cell is drawn."""
LEAST_CELLS = 20
TICK_CELLS = 10
"""Between two marks of the time axis, at least."""
TICK_HOURS = (1 / 12, 0.25, 0.5, 1, 2, 3, 4, 6, 12, 24)


# Scores ---------------------------------------------------------------------------------------------------------------


def scorecard(grade: DrillGrade) -> RenderableType:
    """Tells nothing of sealed seeds."""
    head = Text.assemble((printable(grade.drill.title), "bold"), ("  " + grade.drill.id, "bright_black"), "\n",
                         printable(grade.drill.goal), "\n", (remark(grade), "italic"))  # fmt: skip
    rows = Table.grid(padding=(0, 2))
    for part in parts(grade):
        rows.add_row(part.label, _bar(part), Text(part.value, justify="right"), Text(part.meaning, "bright_black"))
    dead = [
        Text.assemble(("never fired  ", "bold"), printable(name + (f": {why}" if why else "")))
        for name, why in unheard(grade)
    ]
    return Group(Columns([_big(grade.score.score), head], padding=(0, 3)), "", rows, *dead)


def _big(score: float) -> Text:
    shown = f"{score:.1f}"
    return Text("\n".join(" ".join(DIGITS[digit][row] for digit in shown) for row in range(3)), "bold cyan")


def _bar(part: Part) -> Text:
    whole, rest = divmod(round(part.share * BAR_CELLS * 8), 8)
    filled = "█" * whole + (EIGHTHS[rest] if rest else "")
    return Text.assemble((filled, "cyan"), ("╌" * (BAR_CELLS - len(filled)), "bright_black"))


def overview(grades: Sequence[DrillGrade]) -> Table:
    """In the drills' order, with the mean at the end."""
    table = Table(Column("drill", no_wrap=True), _right("score"), _right("told"), _right("false/day"), _right("delay"),
                  _right("culprit"), _right("reset"), "remark", show_footer=len(grades) > 1)  # fmt: skip
    table.columns[0].footer, table.columns[1].footer = Text("mean", "bold"), Text(f"{mean_score(grades):.1f}", "bold")
    for grade in grades:
        table.add_row(*_row(grade))
    return table


def _right(head: str) -> Column:
    return Column(head, justify="right", no_wrap=True)


def _row(grade: DrillGrade) -> Iterator[Text]:
    score = grade.score
    delay = mean(one.delay_seconds for one in judged_of(grade))
    reset = mean(one.reset_seconds for one in judged_of(grade))
    yield Text(grade.drill.id)
    yield Text(f"{score.score:.1f}", "bold")
    yield Text(f"{score.told}/{score.incidents}")
    yield Text(f"{score.false_alarms / score.healthy_hours * 24:.1f}")
    yield Text("–" if delay is None else spoken(delay))
    yield Text("" if score.culprit is None else f"{100 * score.culprit:.0f} %")
    yield Text("–" if reset is None else spoken(reset))
    yield Text(remark(grade), "italic")


# Times ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Where a moment is on a line of text."""

    seconds: float
    width: int

    def at(self, moment: float) -> int:
        return min(self.width - 1, max(0, int(moment / self.seconds * self.width)))

    def span(self, begins: float, ends: float | None) -> range:
        """At least one."""
        last = self.seconds if ends is None else ends
        return range(self.at(begins), max(self.at(begins), self.at(last - 1e-6)) + 1)


@dataclass(frozen=True, kw_only=True)
class Row:
    """``cells`` draws the line at a width."""

    label: str
    cells: Callable[[Cells], list[Cell]]
    note: Text


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """As wide as the terminal: what happened on each seed, and under it a line per alert."""

    heard: Sequence[Heard]
    alerts: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        seeds = [list(_rows(heard, self.alerts)) for heard in self.heard]
        label, note = (
            min(options.max_width // 4, longest) for longest in _longest(row for rows in seeds for row in rows)
        )
        width = max(LEAST_CELLS, options.max_width - label - note - 2)
        for heard, rows in zip(self.heard, seeds, strict=True):
            cells = Cells(seconds=heard.scenario.seconds, width=width)
            for row in rows:
                yield _line(row, label, cells, note)
            yield Text(" " * (label + 1) + _axis(cells), "bright_black", no_wrap=True)
            yield Text()
        yield _legend()


def timeline(heard: Sequence[Heard], alerts: Iterable[str] | None = None) -> Timeline:
    """Tells everything: for seeds that need not be hidden. ``alerts``: all names, in the file's order; else those that fired or
    never matched, by name."""
    known = {alarm.name for one in heard for alarm in one.alarms} | {name for one in heard for name in one.silent}
    return Timeline(heard=heard, alerts=list(dict.fromkeys(sorted(known) if alerts is None else alerts)))


def _rows(heard: Heard, alerts: Sequence[str]) -> Iterator[Row]:
    yield Row(label=f"seed {heard.scenario.seed}", cells=partial(_truth, heard), note=_faults(heard))
    for name in alerts:
        yield Row(label=printable(name), cells=partial(_fired, heard, name), note=_note(heard, name))


def _longest(rows: Iterable[Row]) -> tuple[int, int]:
    """Label and note."""
    sizes = [(cell_len(row.label), row.note.cell_len) for row in rows]
    return max(label for label, _ in sizes), max(note for _, note in sizes)


def _line(row: Row, label: int, cells: Cells, note: int) -> Text:
    before, after = Text(row.label), row.note.copy()
    before.truncate(label, overflow="ellipsis", pad=True)
    after.truncate(note, overflow="ellipsis")
    runs = [("".join(mark for mark, _ in run), style)
            for style, run in groupby(row.cells(cells), key=lambda cell: cell[1])]  # fmt: skip
    return Text.assemble(before, " ", *runs, " ", after, no_wrap=True, overflow="crop")


def _truth(heard: Heard, cells: Cells) -> list[Cell]:
    line = [(" ", "")] * cells.width
    for restart in heard.scenario.restarts:
        line[cells.at(restart)] = (RESTART, "bright_black")
    for one in happened(heard):
        mark = (TRUTH, "blue") if one.judged else (SILENCE, "bright_black")
        for cell in cells.span(one.incident.begins, one.incident.ends):
            line[cell] = mark
    return line


def _faults(heard: Heard) -> Text:
    told = [one.incident for one in happened(heard) if one.judged]
    return Text(", ".join(f"{one.fault} {target_label(one.target)}" for one in told), "blue")


def _fired(heard: Heard, name: str, cells: Cells) -> list[Cell]:
    line = [(QUIET, "bright_black")] * cells.width
    raised = [(outcome(alarm, heard.result), alarm) for alarm in heard.alarms if alarm.name == name]
    for came, alarm in sorted(raised, key=lambda one: RANK[one[0]]):
        for cell in cells.span(alarm.begins, alarm.ends):
            line[cell] = MARKS[came]
    return line


def _note(heard: Heard, name: str) -> Text:
    """How soon it told, and how often for nothing."""
    delays = [one.delay_seconds for one in heard.result.judged if one.hit and one.hit.name == name]
    false = sum(alarm.name == name for alarm in heard.result.false)
    told = "after " + ", ".join(f"{delay:.0f}" for delay in delays) + " s" if delays else ""
    if name in heard.silent:
        return Text("never matches", "bright_black")
    return Text(", ".join(filter(None, [told, f"{false} false" if false else ""])), "bold red" if false else "")


def _axis(cells: Cells) -> str:
    hours, most = cells.seconds / 3600, cells.width / TICK_CELLS
    step = next((step for step in TICK_HOURS if hours / step <= most), TICK_HOURS[-1] * 2)
    line = [" "] * (cells.width + TICK_CELLS)
    for number in range(int(hours / step) + 1):
        place = int(number * step * 3600 / cells.seconds * cells.width)
        told = f"└{number * step:g} h" if step >= 1 else f"└{number * step * 60:.0f} min"
        if place + len(told) <= cells.width:
            line[place : place + len(told)] = told
    return "".join(line[: cells.width])


def _legend() -> Text:
    shown = [(TRUTH, "blue", "fault"), (SILENCE, "bright_black", "to mislead"), (RESTART, "bright_black", "restart"),
             (*MARKS["hit"], "told"), (*MARKS["further"], "told again"), (*MARKS["false"], "false alarm"),
             (*MARKS["beside"], "ticket beside a page")]  # fmt: skip
    return Text("   ").join(Text.assemble((mark, style), (f" {words}", "bright_black")) for mark, style, words in shown)
