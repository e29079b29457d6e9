"""A grade in words: what each alarm came to, and what each part of a score means. Tables, pages and JSON say it alike.

To add a part: give ``parts`` another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stepsim.practice.alarms import Alarm
from stepsim.practice.grade import DrillGrade, Heard
from stepsim.practice.scenario import Struck
from stepsim.practice.score import CULPRIT, DELAY, MOST_NOISE, RESET, Judged, SeedResult

Outcome: TypeAlias = Literal["hit", "further", "false", "beside"]
MEANING: dict[Outcome, str] = {
    "hit": "told an incident",
    "further": "told again what was told",
    "false": "false alarm",
    "beside": "a ticket beside a page: costs nothing, earns nothing",
}
GOOD_SCORE = 90.0
"""Above it nothing is worth a remark."""
SHORT_SECONDS = 600.0
"""Up to here seconds are told as such."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Of a score. ``share`` is from 0 to 1, more is better."""

    key: str
    label: str
    share: float
    value: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Happened:
    """An incident, when it showed, and what was made of it: None where silence was right."""

    incident: Struck
    visible: float
    judged: Judged | None


def outcome(alarm: Alarm, result: SeedResult) -> Outcome:
    if alarm in result.false:
        return "false"
    if any(alarm == judged.hit for judged in result.judged):
        return "hit"
    return "further" if any(alarm in judged.alarms for judged in result.judged) else "beside"


def happened(heard: Heard) -> Iterator[Happened]:
    """All incidents of a seed, those among them that were only to mislead."""
    judged = iter(heard.result.judged)
    for incident, visible in zip(heard.scenario.incidents, heard.visible, strict=True):
        told = None if incident.expect == "silence" else next(judged)
        yield Happened(incident=incident, visible=visible, judged=told)


def judged_of(grade: DrillGrade) -> list[Judged]:
    return [judged for heard in grade.heard for judged in heard.result.judged]


def unheard(grade: DrillGrade) -> list[tuple[str, str]]:
    """Alerts that never fired, and why, where that was found out."""
    why = {dead.alert: dead.why for dead in grade.dead}
    return [(name, why.get(name, "")) for name in dict.fromkeys((*why, *sorted(grade.silent), *grade.too_short))]


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# Words ----------------------------------------------------------------------------------------------------------------


def spoken(seconds: float) -> str:
    """A span of time: ``90 s``, ``21 min``, ``6 h 40 min``."""
    if seconds <= SHORT_SECONDS:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def moment(seconds: float) -> str:
    """A time after the seed's beginning: ``6:40:30``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# Parts ----------------------------------------------------------------------------------------------------------------


def parts(grade: DrillGrade) -> list[Part]:
    """In the score's order. Culprit is absent where faults strike the whole run."""
    score = grade.score
    found = [
        _part("recall", "told", score.recall, f"told {score.told} of {score.incidents}"),
        _part("precision", "no false alarm", score.precision, false_words(grade)),
        _part("delay", "soon", score.delay, _delay_words(grade)),
        _part("reset", "gone in time", score.reset, _reset_words(grade)),
    ]
    if score.culprit is not None:
        found.insert(3, _part("culprit", "culprit named", score.culprit, _culprit_words(grade)))
    return [*found, _noise(grade)]


def _part(key: str, label: str, share: float, meaning: str) -> Part:
    return Part(key=key, label=label, share=share, value=f"{100 * share:.0f} %", meaning=meaning)


def false_words(grade: DrillGrade) -> str:
    score = grade.score
    return (f"{counted(score.false_alarms, 'false alarm')} in {score.healthy_hours:.1f} healthy hours: "
            f"at most {score.false_per_day_bound:.1f} a day (95 %)")  # fmt: skip


def _delay_words(grade: DrillGrade) -> str:
    taken = mean(one.delay_seconds for one in judged_of(grade))
    allowed = _allowed(grade, lambda incident: incident.detect_within)
    return f"after {spoken(taken)} on average, {allowed} allowed" if taken is not None else f"never; {allowed} allowed"


def _reset_words(grade: DrillGrade) -> str:
    told = [one for one in judged_of(grade) if one.hit]
    taken, early = mean(one.reset_seconds for one in told), sum(one.reset_seconds is None for one in told)
    allowed = _allowed(grade, lambda incident: incident.reset_within)
    wrong = f"{early} of {len(told)} ended too early or never" if early else ""
    gone = f"{spoken(taken)} after the fault on average" if taken is not None else ""
    return (
        ", ".join(filter(None, [gone, wrong])) + f"; {allowed} allowed"
        if told
        else f"nothing to end; {allowed} allowed"
    )


def _allowed(grade: DrillGrade, limit: Callable[[Struck], float]) -> str:
    limits = sorted({limit(one.incident) for one in judged_of(grade)})
    return " to ".join(spoken(one) for one in dict.fromkeys((limits[0], limits[-1])))


def _culprit_words(grade: DrillGrade) -> str:
    asked = [one.culprit for one in judged_of(grade) if one.culprit is not None]
    alone, never = sum(one == 1 for one in asked), sum(one == 0 for one in asked)
    words = f"first and alone in {alone} of {len(asked)}"
    return f"{words}, not named in {never}" if never else words


def _noise(grade: DrillGrade) -> Part:
    further, lost = sum(len(one.alarms) - 1 for one in judged_of(grade) if one.hit), grade.score.noise
    meaning = f"{counted(further, 'alarm')} beyond the first" if further else "no alarm beyond the first"
    return Part(key="noise", label="no noise", share=1 - lost / MOST_NOISE, value=f"−{lost:.1f}" if lost else "0",
                meaning=meaning)  # fmt: skip


def remark(grade: DrillGrade) -> str:
    """What costs most, in a word."""
    score = grade.score
    if score.score >= GOOD_SCORE:
        return "good"
    if not any(heard.alarms for heard in grade.heard):
        return "silent"
    lost = {
        "misses": 1 - score.recall,
        "false alarms": 1 - score.precision,
        "late": DELAY * (score.recall - score.delay),
        "culprit": CULPRIT * (score.recall - score.culprit) if score.culprit is not None else 0.0,
        "lingers": RESET * (score.recall - score.reset),
        "noise": score.noise / 50,
    }
    return max(lost, key=lambda word: lost[word])


def mean_score(grades: Sequence[DrillGrade]) -> float:
    return mean(grade.score.score for grade in grades) or 0.0
