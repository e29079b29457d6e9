"""What the pictures share: a time axis, and marks that differ by shape as well as by colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stepsim.board import target_label
from stepsim.markup import Markup, joined, tag
from stepsim.practice.alarms import Alarm
from stepsim.practice.outcome import MEANING, Outcome, moment, spoken
from stepsim.practice.scenario import Struck

LETTER_WIDTH = 7.0
"""Of the pictures' text, about."""
LEAST_WIDTH = 3.0
"""A bar is never less: what lasts an evaluation is to be seen."""
MOST_NAMED = 6
"""Label sets in a tooltip."""
TICK_STEPS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400)
TICKED: tuple[Outcome, ...] = ("hit", "further", "false", "beside")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From seconds to the picture's units; what is outside is drawn at the edge."""

    begins: float
    ends: float
    left: float
    right: float

    def x(self, seconds: float) -> float:
        share = (min(self.ends, max(self.begins, seconds)) - self.begins) / (self.ends - self.begins)
        return self.left + share * (self.right - self.left)

    def holds(self, begins: float, ends: float | None) -> bool:
        return begins < self.ends and (ends is None or ends > self.begins)

    def bar(
        self, begins: float, ends: float | None, *, y: float, height: float, class_: str, title: str = "", rx: float = 2
    ) -> Markup:
        x, last = self.x(begins), self.x(self.ends if ends is None else ends)
        told = [tag("title", title)] if title else []
        return tag("rect", *told, x=x, y=y, width=max(LEAST_WIDTH, last - x), height=height, rx=rx, class_=class_)

    def ticks(self, most: int) -> list[float]:
        """At round times after ``begins``' zero."""
        span = self.ends - self.begins
        step = next((step for step in TICK_STEPS if span / step <= most), 2 * TICK_STEPS[-1])
        first = -(-self.begins // step)
        return [number * step for number in range(int(first), int(self.ends // step) + 1)]


def words(x: float, y: float, text: str, *, class_: str = "", anchor: str = "start") -> Markup:
    return tag("text", text, x=x, y=y, class_=class_ or None, text_anchor=None if anchor == "start" else anchor)


def width_of(text: str) -> float:
    return len(text) * LETTER_WIDTH


def shortened(text: str, width: float) -> str:
    most = int(width / LETTER_WIDTH)
    return text if len(text) <= most else text[: most - 1] + "…"


def picture(name: str, *content: str, width: float, height: float, class_: str) -> Markup:
    return tag("svg", *content, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=name, class_=class_)


# Shapes ---------------------------------------------------------------------------------------------------------------

SHAPES: Mapping[str, str] = {
    "hit": "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0M-2.8 .2L-.8 2.2L3 -2",
    "further": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
    "false": "M-4.5 -4.5L4.5 4.5M4.5 -4.5L-4.5 4.5",
    "beside": "M-4 0H4",
    "miss": "M0 -6L6 0L0 6L-6 0Z",
    "visible": "M0 5L-5 -3.5H5Z",
}
"""Paths around the origin."""


def mark(kind: str, x: float, y: float, title: str = "") -> Markup:
    told = [tag("title", title)] if title else []
    return tag("path", *told, d=SHAPES[kind], transform=f"translate({x:.6g} {y:.6g})", class_=f"mark {kind}")


def hatches() -> Markup:
    """The patterns of tickets, once per page."""
    return tag("svg", tag("defs", *map(_hatch, TICKED)), width=0, height=0, class_="patterns", aria_hidden="true")


def _hatch(kind: str) -> Markup:
    ground = tag("rect", width=6, height=6, class_=f"ground {kind}")
    line = tag("line", x1=0, y1=0, x2=0, y2=6, class_=f"hatch {kind}")
    return tag("pattern", ground, line, id=f"hatch-{kind}", width=6, height=6, patternUnits="userSpaceOnUse",
               patternTransform="rotate(45)")  # fmt: skip


def legend() -> Markup:
    def key(kind: str, text: str, *shapes: str) -> Markup:
        return tag("span", tag("svg", *shapes, viewBox="0 0 26 16", class_="key"), text, class_=f"of-{kind}")

    def bar(class_: str) -> Markup:
        return tag("rect", x=1, y=3, width=24, height=10, rx=2, class_=class_)

    keys = [
        key("truth", "a fault is on", bar("truth")),
        key("visible", "it shows in the data", mark("visible", 13, 8)),
        key("miss", "missed", mark("miss", 13, 8)),
        key("silence", "meant to mislead, or a restart", bar("silence")),
        key("page", "page", bar("fired page hit")),
        key("ticket", "ticket", bar("fired ticket hit")),
        *(key(kind, MEANING[kind], mark(kind, 13, 8)) for kind in TICKED),
    ]
    return tag("p", *keys, class_="legend")


# Words on them --------------------------------------------------------------------------------------------------------


def named(incident: Struck) -> str:
    return f"{incident.fault} · {target_label(incident.target)}"


def incident_title(incident: Struck, visible: float) -> str:
    shown = "it never showed in the data" if visible == float("inf") else f"in the data from {moment(visible)}"
    what = f"{incident.fault} on {target_label(incident.target)}, severity {incident.severity:g}, expects {incident.expect}"
    lasts = spoken(incident.ends - incident.begins)
    return f"{what}\n{moment(incident.begins)} to {moment(incident.ends)} ({lasts}), {shown}"


def alarm_title(alarm: Alarm, came: Outcome) -> str:
    lasted = "to the end" if alarm.ends is None else f"{moment(alarm.ends)} ({spoken(alarm.ends - alarm.begins)})"
    sets = [_labels(dict(episode.labels)) for episode in alarm.episodes]
    more = [f"and {len(sets) - MOST_NAMED} more"] if len(sets) > MOST_NAMED else []
    return "\n".join(
        [
            f"{alarm.name}, {alarm.kind}: {MEANING[came]}",
            f"{moment(alarm.begins)} to {lasted}",
            *sets[:MOST_NAMED],
            *more,
        ]
    )


def _labels(labels: Mapping[str, str]) -> str:
    shown = ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if name != "alertname")
    return f"{{{shown}}}"


def segments(incident: Struck) -> Iterator[tuple[float, float]]:
    """When the fault is on: more than once if it comes and goes."""
    for begins, request in incident.requests():
        yield begins, begins + request["duration"]


def truth(scale: Scale, incident: Struck, visible: float, *, y: float, height: float) -> Markup:
    """A bar, wedge-shaped while the fault grows."""
    class_ = "silence" if incident.expect == "silence" else "truth"
    title = incident_title(incident, visible)
    if incident.flaps:
        around = scale.bar(incident.begins, incident.ends, y=y, height=height, class_=f"{class_} around", title=title)
        return joined(
            [
                around,
                *(scale.bar(*on, y=y, height=height, class_=class_, title=title, rx=1) for on in segments(incident)),
            ]
        )
    if not incident.ramp_seconds:
        return scale.bar(incident.begins, incident.ends, y=y, height=height, class_=class_, title=title)
    left, right = scale.x(incident.begins), max(scale.x(incident.ends), scale.x(incident.begins) + LEAST_WIDTH)
    full = min(right, scale.x(incident.begins + incident.ramp_seconds))
    points = ((left, y + height), (full, y), (right, y), (right, y + height))
    return tag("polygon", tag("title", title), points=" ".join(f"{a:.6g},{b:.6g}" for a, b in points), class_=class_)
