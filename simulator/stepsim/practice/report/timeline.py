"""One seed, from its beginning to its end: what happened, and beneath it a lane per alert."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from stepsim.markup import Markup, tag
from stepsim.practice.alarms import Alarm
from stepsim.practice.grade import Heard
from stepsim.practice.outcome import Happened, happened, moment, outcome
from stepsim.practice.report.marks import (
    Scale,
    alarm_title,
    incident_title,
    mark,
    named,
    picture,
    shortened,
    truth,
    width_of,
    words,
)
from stepsim.practice.scenario import DOWN_SECONDS

WIDTH, LEFT, RIGHT = 1200.0, 240.0, 1184.0
TRUTH_HEIGHT, LANE_HEIGHT, BEFORE_HEIGHT, AXIS_HEIGHT = 28.0, 24.0, 8.0, 24.0
MOST_TICKS = 12


@dataclass(frozen=True, kw_only=True)
class Lane:
    """An alert, and what is known of it: ``note`` stands in its lane where it never fired."""

    name: str
    kind: str
    note: str


def timeline(heard: Heard, lanes: Sequence[Lane], before: Heard | None = None) -> Markup:
    """``before``: the same seed under earlier rules, fainter and thinner."""
    scale = Scale(begins=0.0, ends=heard.scenario.seconds, left=LEFT, right=RIGHT)
    rows = _packed(happened(heard), scale)
    top = len(rows) * TRUTH_HEIGHT
    lane = LANE_HEIGHT + (BEFORE_HEIGHT if before else 0)
    bottom = top + max(1, len(lanes)) * lane
    return picture(
        f"What happened on seed {heard.scenario.seed}, and what fired", *_axis(scale, bottom), *_behind(heard, scale, bottom),
        *_restarts(heard.scenario.restarts, rows[0], scale), *_truths(rows, scale),
        *(_lane(one, heard, before, scale, top + number * lane, lane) for number, one in enumerate(lanes)),
        *([] if lanes else [words(LEFT + 8, top + 16, "nothing fired", class_="faint")]),
        width=WIDTH, height=bottom + AXIS_HEIGHT, class_="timeline",
    )  # fmt: skip


def _packed(incidents: Iterable[Happened], scale: Scale) -> list[list[Happened]]:
    """In rows, so that neither bars nor their labels meet."""
    rows: list[list[Happened]] = [[]]
    reach = [0.0]
    for one in sorted(incidents, key=lambda one: one.incident.begins):
        first, last = _extent(one, scale)
        row = next((number for number, end in enumerate(reach) if end <= first), len(rows))
        if row == len(rows):
            rows.append([])
            reach.append(0.0)
        rows[row].append(one)
        reach[row] = last + 14
    return rows


def _extent(one: Happened, scale: Scale) -> tuple[float, float]:
    """Bar and label; at the right edge the label stands before the bar."""
    first, last, label = scale.x(one.incident.begins), scale.x(one.incident.ends), width_of(named(one.incident)) + 24
    return (first - label, last) if last + label > scale.right else (first, last + label)


def _axis(scale: Scale, bottom: float) -> Iterator[Markup]:
    ticks = scale.ticks(MOST_TICKS)
    hours = ticks[1] >= 3600
    for tick in ticks:
        x = scale.x(tick)
        yield tag("line", x1=x, x2=x, y1=0, y2=bottom + 4, class_="grid")
        told = f"{tick / 3600:g} h" if hours else f"{tick / 60:g} min"
        yield words(min(x, scale.right - 12), bottom + 18, told, class_="tick", anchor="middle")


def _behind(heard: Heard, scale: Scale, bottom: float) -> Iterator[Markup]:
    """Restarts, and a band where an alert is right."""
    for restart in heard.scenario.restarts:
        title = f"the job is restarted at {moment(restart)}"
        yield scale.bar(
            restart, restart + DOWN_SECONDS, y=0, height=bottom, class_="silence restart", title=title, rx=0
        )
    for judged in heard.result.judged:
        yield scale.bar(judged.incident.begins, judged.incident.ends, y=0, height=bottom, class_="band", rx=0)


def _restarts(restarts: Iterable[float], row: Sequence[Happened], scale: Scale) -> Iterator[Markup]:
    """Their names, where the first row has place for them."""
    for x in (scale.x(restart + DOWN_SECONDS) + 5 for restart in restarts):
        last = x + width_of("restart")
        if last < scale.right and all(last < first or end < x for first, end in (_extent(one, scale) for one in row)):
            yield words(x, 18, "restart", class_="faint")


def _truths(rows: Sequence[Sequence[Happened]], scale: Scale) -> Iterator[Markup]:
    yield words(LEFT - 10, 18, "what happened", class_="lane faint", anchor="end")
    for number, row in enumerate(rows):
        for one in row:
            yield from _truth(one, scale, number * TRUTH_HEIGHT)


def _truth(one: Happened, scale: Scale, y: float) -> Iterator[Markup]:
    yield truth(scale, one.incident, one.visible, y=y + 7, height=14)
    missed = one.judged is not None and one.judged.hit is None
    label = named(one.incident) + (", to mislead" if one.judged is None else "")
    edge = scale.right - width_of(label) - 24
    right = scale.x(one.incident.ends) <= edge
    x = scale.x(one.incident.ends) + 8 if right else scale.x(one.incident.begins) - 8
    if missed:
        yield mark("miss", x + (5 if right else -5), y + 14, "missed: nothing told it")
        x += 16 if right else -16
    yield words(x, y + 18, label, class_="truth-label" if one.judged else "faint", anchor="start" if right else "end")
    if isfinite(one.visible) and one.judged:
        yield mark("visible", scale.x(one.visible), y + 4, incident_title(one.incident, one.visible))


def _lane(lane: Lane, heard: Heard, before: Heard | None, scale: Scale, y: float, height: float) -> Markup:
    label = tag("text", shortened(lane.name, LEFT - 52), tag("title", f"{lane.name}, {lane.kind}"), x=LEFT - 46, y=y + 16,
                text_anchor="end", class_="lane")  # fmt: skip
    kind = words(LEFT - 10, y + 16, lane.kind, class_="faint small", anchor="end")
    own = [alarm for alarm in heard.alarms if alarm.name == lane.name]
    earlier = [alarm for alarm in before.alarms if alarm.name == lane.name] if before else []
    note = lane.note if not own else ""
    return tag(
        "g", tag("line", x1=LEFT, x2=scale.right, y1=y + height, y2=y + height, class_="floor"), label, kind,
        *([words(LEFT + 8, y + 16, note, class_="faint note")] if note else []),
        *(_earlier(alarm, before, scale, y + LANE_HEIGHT - 1) for alarm in earlier if before),
        *(_bar(alarm, heard, scale, y) for alarm in own), *(_shape(alarm, heard, scale, y) for alarm in own),
    )  # fmt: skip


def _bar(alarm: Alarm, heard: Heard, scale: Scale, y: float) -> Markup:
    came = outcome(alarm, heard.result)
    return scale.bar(alarm.begins, alarm.ends, y=y + 6, height=12, class_=f"fired {alarm.kind} {came}",
                     title=alarm_title(alarm, came))  # fmt: skip


def _shape(alarm: Alarm, heard: Heard, scale: Scale, y: float) -> Markup:
    """Before its bar, where there is place."""
    came = outcome(alarm, heard.result)
    return mark(came, max(scale.left + 6, scale.x(alarm.begins) - 9), y + 12, alarm_title(alarm, came))


def _earlier(alarm: Alarm, before: Heard, scale: Scale, y: float) -> Markup:
    came = outcome(alarm, before.result)
    return scale.bar(alarm.begins, alarm.ends, y=y, height=4, class_=f"fired before {came}",
                     title=f"before: {alarm_title(alarm, came)}", rx=1)  # fmt: skip
