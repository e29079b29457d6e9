"""One incident from near: how soon it was told, of whom, and how soon the alert went away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from stepsim.markup import Markup, tag
from stepsim.practice.alarms import Alarm
from stepsim.practice.grade import Heard
from stepsim.practice.outcome import Happened, Outcome, happened, outcome, spoken
from stepsim.practice.report.marks import (
    Scale,
    alarm_title,
    mark,
    named,
    picture,
    shortened,
    truth,
    width_of,
    words,
)
from stepsim.practice.scenario import Struck
from stepsim.practice.score import Judged

WIDTH, LEFT, RIGHT = 640.0, 74.0, 618.0
BEFORE_SECONDS, AFTER_SECONDS = 300.0, 600.0
TRUTH_HEIGHT, HEAD_HEIGHT, STRIP_HEIGHT, MEASURE_HEIGHT, AXIS_HEIGHT = 26.0, 18.0, 12.0, 30.0, 24.0
MOST_STRIPS, MOST_GROUPS = 5, 6
MOST_TICKS = 10


@dataclass(frozen=True, kw_only=True)
class Strip:
    """When one value of the culprit's label fired."""

    label: str
    true: bool
    spans: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """One alarm: a headline, and strips beneath."""

    alarm: Alarm
    came: Outcome
    strips: tuple[Strip, ...]
    more: int
    faint: bool

    @property
    def height(self) -> float:
        return HEAD_HEIGHT + STRIP_HEIGHT * (len(self.strips) + bool(self.more))


def closeup(heard: Heard, judged: Judged, before: tuple[Heard, Judged] | None = None) -> Markup:
    """From five minutes before the incident to ten after its end. ``before``: the same under earlier rules."""
    incident = judged.incident
    scale = Scale(begins=incident.begins - BEFORE_SECONDS, ends=incident.ends + AFTER_SECONDS, left=LEFT, right=RIGHT)
    around = [one for one in happened(heard) if scale.holds(one.incident.begins, one.incident.ends)]
    groups = list(_groups(heard, incident, scale)) + (list(_earlier(before, scale)) if before else [])
    top = len(around) * TRUTH_HEIGHT + 4
    measures = top + sum(group.height for group in groups) + 6
    bottom = measures + MEASURE_HEIGHT * (2 if judged.hit else 1)
    return picture(
        f"{named(incident)} from near", *_axis(scale, incident, bottom), *_band(scale, incident, bottom),
        *_around(around, scale, judged), *_seen(judged, scale, bottom), *_fired(groups, top, scale),
        *(_told(judged, judged.hit, scale, measures) if judged.hit else _missed(judged, scale, measures)),
        width=WIDTH, height=bottom + AXIS_HEIGHT, class_="closeup",
    )  # fmt: skip


def _axis(scale: Scale, incident: Struck, bottom: float) -> Iterator[Markup]:
    """In minutes after the beginning."""
    own = Scale(
        begins=scale.begins - incident.begins, ends=scale.ends - incident.begins, left=scale.left, right=scale.right
    )
    ticks = own.ticks(MOST_TICKS)
    for tick in ticks:
        x = own.x(tick)
        yield tag("line", x1=x, x2=x, y1=0, y2=bottom + 4, class_="grid")
        told = f"{tick / 60:+g}".replace("-", "−") if tick else "0 min"
        yield words(x, bottom + 18, told, class_="tick", anchor="middle")


def _band(scale: Scale, incident: Struck, bottom: float) -> Iterator[Markup]:
    yield scale.bar(incident.begins, incident.ends, y=0, height=bottom, class_="band", rx=0)


def _around(around: Sequence[Happened], scale: Scale, judged: Judged) -> Iterator[Markup]:
    for number, one in enumerate(around):
        y = number * TRUTH_HEIGHT
        drawn = truth(scale, one.incident, one.visible, y=y + 5, height=17)
        yield drawn if one.judged == judged else tag("g", drawn, class_="other")
        yield _label(one.incident, scale, y + 18)


def _label(incident: Struck, scale: Scale, y: float) -> Markup:
    """On the bar, or else behind it."""
    label, left, right = named(incident), scale.x(incident.begins), scale.x(incident.ends)
    if right - left > width_of(label):
        return words(
            (left + right) / 2, y, label, class_="truth-label" if incident.flaps else "on-truth", anchor="middle"
        )
    if right + width_of(label) < scale.right:
        return words(right + 6, y, label, class_="truth-label")
    return words(scale.right, y, label, class_="truth-label", anchor="end")


def _seen(judged: Judged, scale: Scale, bottom: float) -> Iterator[Markup]:
    if isfinite(judged.visible):
        x = scale.x(judged.visible)
        yield tag("line", tag("title", "from here on the data differ"), x1=x, x2=x, y1=4, y2=bottom, class_="seen")
        yield mark("visible", x, 4, f"in the data {spoken(judged.visible - judged.incident.begins)} after it began")


# Alarms ---------------------------------------------------------------------------------------------------------------


def _groups(heard: Heard, incident: Struck, scale: Scale) -> Iterator[Group]:
    """The hit first: of a storm, not all are drawn."""
    near = [(outcome(alarm, heard.result), alarm) for alarm in heard.alarms if scale.holds(alarm.begins, alarm.ends)]
    for came, alarm in sorted(near, key=lambda one: (one[0] != "hit", one[1].begins))[:MOST_GROUPS]:
        yield _group(alarm, came, incident, faint=False)


def _earlier(before: tuple[Heard, Judged], scale: Scale) -> Iterator[Group]:
    heard, judged = before
    for alarm in judged.alarms:
        if scale.holds(alarm.begins, alarm.ends):
            yield _group(alarm, outcome(alarm, heard.result), judged.incident, faint=True)


def _group(alarm: Alarm, came: Outcome, incident: Struck, *, faint: bool) -> Group:
    strips = sorted(_strips(alarm, incident), key=lambda strip: (not strip.true, strip.spans[0]))
    kept = strips[: 1 if faint else MOST_STRIPS]
    return Group(alarm=alarm, came=came, strips=tuple(kept), more=0 if faint else len(strips) - len(kept), faint=faint)


def _strips(alarm: Alarm, incident: Struck) -> Iterator[Strip]:
    ((kind, value),) = incident.target.items()
    spans: dict[str, list[tuple[float, float | None]]] = {}
    for episode in alarm.episodes:
        spans.setdefault(episode.label(kind), []).append((episode.begins, episode.ends))
    for label, own in spans.items():
        shown = f"{kind} {label}" if kind == "rank" and label else label
        yield Strip(label=shown, true=bool(label) and label == str(value), spans=tuple(own))


def _fired(groups: Sequence[Group], top: float, scale: Scale) -> Iterator[Markup]:
    y = top
    for group in groups:
        yield _drawn(group, y, scale)
        y += group.height


def _drawn(group: Group, y: float, scale: Scale) -> Markup:
    title = alarm_title(group.alarm, group.came)
    head = f"before: {group.alarm.name}" if group.faint else group.alarm.name
    x = max(scale.left + 8, scale.x(group.alarm.begins) - 8)
    room = scale.right - scale.x(group.alarm.begins)
    label = words(max(scale.left + 18, x + 10), y + 13, shortened(f"{head} · {group.alarm.kind}", room), class_="lane")
    class_ = f"fired {group.alarm.kind} {group.came}"
    return tag(
        "g", mark(group.came, x, y + 9, title), label,
        *(piece for row, strip in enumerate(group.strips)
          for piece in _strip(strip, y + HEAD_HEIGHT + row * STRIP_HEIGHT, class_, title, scale)),
        *([words(x + 10, y + group.height - 2, f"and {group.more} more", class_="faint small")] if group.more else []),
        class_="before" if group.faint else None,
    )  # fmt: skip


def _strip(strip: Strip, y: float, class_: str, title: str, scale: Scale) -> Iterator[Markup]:
    label = shortened(strip.label, LEFT - 12) + (" ✓" if strip.true else "")
    yield words(LEFT - 6, y + 9, label, class_="small strong" if strip.true else "small faint", anchor="end")
    for begins, ends in strip.spans:
        if scale.holds(begins, ends):
            yield scale.bar(begins, ends, y=y + 1, height=STRIP_HEIGHT - 3,
                            class_=class_ if strip.true or not strip.label else f"{class_} victim", title=title)  # fmt: skip


# Measures -------------------------------------------------------------------------------------------------------------


def _told(judged: Judged, hit: Alarm, scale: Scale, y: float) -> Iterator[Markup]:
    delay = judged.delay_seconds or 0.0
    incident = judged.incident
    yield from _measure(scale, hit.begins - delay, hit.begins, incident.detect_within, y, "delay")
    words_ = f"told after {spoken(delay)}" if delay else "told at once"
    at = scale.x(max(hit.begins, hit.begins - delay + incident.detect_within)) + 8
    yield words(at, y + 17, f"{words_} · {spoken(incident.detect_within)} allowed", class_="measured")
    y += MEASURE_HEIGHT
    if judged.reset_seconds is None:
        never = hit.ends is None
        text = (
            "fires to the end of the data"
            if never
            else f"ended {spoken(incident.ends - (hit.ends or 0))} before the fault did"
        )
        yield words(scale.x(incident.ends) - 8, y + 17, text, class_="measured", anchor="end")
        return
    over = (hit.ends or 0.0) - judged.reset_seconds
    yield from _measure(scale, over, over + judged.reset_seconds, incident.reset_within, y, "reset")
    gone = f"gone after {spoken(judged.reset_seconds)}" if judged.reset_seconds else "gone at once"
    yield words(
        scale.x(over) - 8, y + 17, f"{gone} · {spoken(incident.reset_within)} allowed", class_="measured", anchor="end"
    )


def _measure(scale: Scale, begins: float, ends: float, allowed: float, y: float, what: str) -> Iterator[Markup]:
    """The time that was taken, as an arrow over the time that was allowed."""
    yield scale.bar(
        begins, begins + allowed, y=y + 6, height=14, class_="allowed", title=f"{what}: {spoken(allowed)} allowed"
    )
    left, right, middle = scale.x(begins), scale.x(ends), y + 13
    if ends > begins:
        head = min(6.0, right - left)
        yield tag(
            "path", tag("title", f"{what}: {spoken(ends - begins)}"), class_=f"arrow {what}",
            d=f"M{left:.6g} {y + 7:.6g}v12M{left:.6g} {middle:.6g}H{right:.6g}m{-head:.6g} -4l{head:.6g} 4l{-head:.6g} 4",
        )  # fmt: skip


def _missed(judged: Judged, scale: Scale, y: float) -> Iterator[Markup]:
    incident = judged.incident
    begins = judged.visible if isfinite(judged.visible) else incident.begins
    yield scale.bar(begins, begins + incident.detect_within, y=y + 6, height=14, class_="allowed",
                    title=f"{spoken(incident.detect_within)} allowed")  # fmt: skip
    x = scale.x(begins + incident.detect_within) + 12
    yield mark("miss", x, y + 13)
    yield words(x + 11, y + 17, f"missed: no {incident.expect} began in its time", class_="measured")
