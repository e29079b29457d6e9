"""One drill on the page: its score, what it is made of, each seed, each incident from near, and what to look at first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from stepsim.markup import Markup, joined, prose, tag
from stepsim.practice.alarms import Alarm
from stepsim.practice.drill import rule_text
from stepsim.practice.grade import DrillGrade, Heard
from stepsim.practice.outcome import Part, counted, judged_of, moment, parts, remark, spoken, unheard
from stepsim.practice.report.closeup import closeup
from stepsim.practice.report.marks import named
from stepsim.practice.report.timeline import Lane, timeline
from stepsim.practice.rule_file import RuleFile
from stepsim.practice.score import Judged

EVEN = 0.05
"""Points: less is no difference."""


def card(grade: DrillGrade, rules: RuleFile, before: DrillGrade | None, *, alone: bool, debrief: bool) -> Markup:
    """``alone``: no other drill is on the page, so that all that never fired is told."""
    return tag(
        "section",
        tag("header", dial(grade.score.score, before.score.score if before else None), _head(grade)),
        _parts(grade, before),
        _first(grade, alone=alone),
        *_seeds(grade, before, _lanes(grade, rules, before, alone=alone)),
        *_closeups(grade, before),
        *([_debrief(grade, rules, alone=alone)] if debrief else []),
        class_="drill",
        id=grade.drill.id,
    )


def _head(grade: DrillGrade) -> Markup:
    drill = grade.drill
    return tag("div", tag("h2", drill.title), tag("p", drill.goal, class_="goal"),
               tag("p", tag("code", drill.id), f" · {remark(grade)}", class_="faint"))  # fmt: skip


# Score ----------------------------------------------------------------------------------------------------------------


def dial(score: float, before: float | None) -> Markup:
    ring: dict[str, str | float] = {"cx": 60, "cy": 60, "pathLength": 100, "transform": "rotate(-90 60 60)"}
    earlier = (
        []
        if before is None
        else [tag("circle", r=43, class_="ring before", stroke_dasharray=f"{before:.2f} 200", **ring)]
    )
    drawn = tag(
        "svg", tag("circle", r=52, class_="ring all", **ring),
        tag("circle", r=52, class_="ring", stroke_dasharray=f"{score:.2f} 200", **ring), *earlier,
        tag("text", f"{score:.1f}", x=60, y=69, text_anchor="middle"),
        viewBox="0 0 120 120", role="img", aria_label=f"score {score:.1f} of 100",
    )  # fmt: skip
    change = [] if before is None else [difference(score - before)]
    return tag("div", drawn, *change, class_="dial")


def difference(points: float) -> Markup:
    """Against before; its arrow says what its colour does."""
    if abs(points) < EVEN:
        return tag("span", "as before", class_="same")
    up = points > 0
    return tag("span", f"{'▲ +' if up else '▼ −'}{abs(points):.1f}", class_="better" if up else "worse")


def _parts(grade: DrillGrade, before: DrillGrade | None) -> Markup:
    earlier = {part.key: part for part in parts(before)} if before else {}
    rows = (piece for part in parts(grade) for piece in _part(part, earlier.get(part.key)))
    return tag("div", *rows, class_="parts compared" if before else "parts")


def _part(part: Part, before: Part | None) -> Iterator[Markup]:
    yield tag("b", part.label)
    bars = [tag("i", style=f"width:{100 * part.share:.1f}%", class_="filled")]
    if before:
        bars.append(
            tag("i", style=f"left:{100 * before.share:.1f}%", class_="earlier", title=f"before: {before.value}")
        )
    yield tag("span", *bars, class_="bar", role="img", aria_label=f"{part.label}: {part.value}")
    yield tag("span", part.value, class_="value")
    if before:
        yield difference(100 * (part.share - before.share))
    yield tag("span", part.meaning, class_="meaning")


# What to look at ------------------------------------------------------------------------------------------------------


def _first(grade: DrillGrade, *, alone: bool) -> Markup:
    rows = [(label, told) for label, told in _remarks(grade, alone=alone) if told]
    if not rows:
        return tag("p", "Nothing was missed, and nothing fired for nothing.", class_="calm")
    return tag("dl", *(piece for label, told in rows for piece in (tag("dt", label), tag("dd", *told))), class_="first")


def _remarks(grade: DrillGrade, *, alone: bool) -> Iterator[tuple[str, Sequence[Markup]]]:
    judged = judged_of(grade)
    yield "missed", [tag("p", f"{named(one.incident)}, {_at(one)}") for one in judged if not one.hit]
    late = max(judged, key=lambda one: one.delay_seconds or 0.0)
    yield "worst delay", [tag("p", _late(late))] if late.delay_seconds else []
    yield "worst false alarm", _false(grade)
    yield "beyond the first", [tag("p", *_further(*one)) for one in _repeated(judged)]
    yield "never matched", list(never_matched(unheard(grade))) if alone else []


def never_matched(alerts: Iterable[tuple[str, str]]) -> Iterator[Markup]:
    for name, why in alerts:
        yield tag("p", tag("code", name), f": {why}" if why else "")


def _at(judged: Judged) -> str:
    return f"seed {judged.seed} at {moment(judged.incident.begins)}"


def _late(judged: Judged) -> Markup:
    name = judged.hit.name if judged.hit else ""
    return joined([tag("code", name), f" came {spoken(judged.delay_seconds or 0.0)} after {named(judged.incident)} could be seen, "
                   f"seed {judged.seed}; {spoken(judged.incident.detect_within)} allowed"])  # fmt: skip


def _repeated(judged: Sequence[Judged]) -> list[tuple[str, tuple[str, ...], int]]:
    """Which faults several alarms told, the names of those in order, and at how many incidents it was so."""
    found = Counter(
        (one.incident.fault, tuple(alarm.name for alarm in one.alarms)) for one in judged if len(one.alarms) > 1
    )
    return [(fault, names, times) for (fault, names), times in found.items()]


def _further(fault: str, names: tuple[str, ...], incidents: int) -> Iterator[str]:
    yield f"{fault}, at {counted(incidents, 'incident')}: after "
    yield tag("code", names[0])
    for number, (name, times) in enumerate(Counter(names[1:]).items()):
        yield ", " if number else " also "
        yield tag("code", name)
        yield f" {times} times" if times > 1 else ""


def _false(grade: DrillGrade) -> list[Markup]:
    false = [(heard, alarm) for heard in grade.heard for alarm in heard.result.false]
    if not false:
        return []
    heard, alarm = max(false, key=lambda one: _lasted(*one))
    rest = f"; {len(false) - 1} more" if len(false) > 1 else ""
    during = _during(heard, alarm)
    return [tag("p", tag("code", alarm.name), f", a {alarm.kind}, for {spoken(_lasted(heard, alarm))} from {moment(alarm.begins)}, "
                f"seed {heard.scenario.seed}{during}{rest}")]  # fmt: skip


def _lasted(heard: Heard, alarm: Alarm) -> float:
    return (heard.scenario.seconds if alarm.ends is None else alarm.ends) - alarm.begins


def _during(heard: Heard, alarm: Alarm) -> str:
    """What it may have been about."""
    for incident in heard.scenario.incidents:
        if incident.begins <= alarm.begins <= incident.ends:
            return f", during {named(incident)}, which expects {incident.expect}"
    for restart in heard.scenario.restarts:
        if restart <= alarm.begins <= restart + 600:
            return f", {spoken(alarm.begins - restart)} after a restart"
    return ""


# Seeds ----------------------------------------------------------------------------------------------------------------


def _lanes(grade: DrillGrade, rules: RuleFile, before: DrillGrade | None, *, alone: bool) -> list[Lane]:
    """The file's alerts, in its order, then those that only the earlier rules had. Among many drills, those that fired."""
    heard = [*grade.heard, *(before.heard if before else ())]
    fired = {alarm.name: alarm.kind for one in reversed(heard) for alarm in reversed(one.alarms)}
    own = {alert.name: str(alert.kind) for alert in rules.alerts}
    gone = {name: "before" for name in fired if name not in own}
    shown = {name: fired.get(name, kind) for name, kind in own.items() if alone or name in fired}
    return [
        Lane(name=name, kind=kind, note="never matched" if name in grade.silent else "")
        for name, kind in {**shown, **gone}.items()
    ]


def _seeds(grade: DrillGrade, before: DrillGrade | None, lanes: Sequence[Lane]) -> Iterator[Markup]:
    earlier = {heard.scenario.seed: heard for heard in before.heard} if before else {}
    for heard in grade.heard:
        told = sum(one.hit is not None for one in heard.result.judged)
        words = (f"told {told} of {len(heard.result.judged)}, false alarms: {len(heard.result.false)}, "
                 f"{heard.result.healthy_hours:.1f} healthy hours")  # fmt: skip
        caption = tag("figcaption", tag("b", f"Seed {heard.scenario.seed}"), f" {words}")
        yield tag("figure", caption, timeline(heard, lanes, earlier.get(heard.scenario.seed)), class_="seed")


def _closeups(grade: DrillGrade, before: DrillGrade | None) -> Iterator[Markup]:
    earlier = {heard.scenario.seed: heard for heard in before.heard} if before else {}
    drawn = [_closeup(heard, number, earlier.get(heard.scenario.seed))
             for heard in grade.heard for number in range(len(heard.result.judged))]  # fmt: skip
    yield tag("div", *drawn, class_="closeups")


def _closeup(heard: Heard, number: int, before: Heard | None) -> Markup:
    judged = heard.result.judged[number]
    earlier = (before, before.result.judged[number]) if before else None
    came = tag("b", judged.hit.name) if judged.hit else tag("b", "missed")
    caption = tag(
        "figcaption", came, f" {named(judged.incident)}, seed {heard.scenario.seed} at {moment(judged.incident.begins)}"
    )
    return tag("figure", caption, closeup(heard, judged, earlier))


# Debrief --------------------------------------------------------------------------------------------------------------


def _debrief(grade: DrillGrade, rules: RuleFile, *, alone: bool) -> Markup:
    """The drill's own words, and rules that do well beside those that were submitted."""
    reference = rule_text(grade.drill.reference, grade.drill.id)
    both = tag("div", _file("Yours", rules.text), _file("Reference", reference), class_="pair")
    rest = tag("details", tag("summary", "Reference rules beside yours"), both, open="" if alone else None)
    return tag(
        "div", tag("h3", "Debrief"), tag("div", prose(grade.drill.debrief), class_="prose"), rest, class_="debrief"
    )


def _file(title: str, text: str) -> Markup:
    return tag("div", tag("h4", title), tag("pre", tag("code", text)))
