"""How good alert rules are: whether each incident was told, how fast, of whom and for how long, and what false alarms cost.

    score = 100 · (½ · F1(recall, P) + ½ · P · quality) − noise

Recall: incidents told, by all. P = 1 / (1 + false alarms per healthy day / ``FALSE_ALARMS_ALLOWED``). Quality: the mean over
incidents of 0.4 · delay + 0.4 · culprit + 0.2 · reset, where the culprit drops out, and the rest is renormalized, if the fault
strikes the whole run; a miss is 0. Noise: a point for every further alarm per told incident, ten at most. docs/alert-practice.md
explains each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, exp, isfinite

from stepsim.practice.alarms import Alarm, Episode
from stepsim.practice.scenario import Struck

LATE_SECONDS = 60.0
"""After the fault's end an alarm may still be of it."""
SETTLING_SECONDS = 120.0
"""At the beginning of the data, where rates are not yet what they are: nothing that begins then counts."""
FALSE_ALARMS_ALLOWED = 1.0
"""Per healthy day: with so many, P is a half."""
DELAY, CULPRIT, RESET = 0.4, 0.4, 0.2
MOST_NOISE = 10.0
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One incident, and what the rules made of it."""

    incident: Struck
    seed: int
    visible: float
    """When the fault first showed in the data."""
    hit: Alarm | None
    alarms: tuple[Alarm, ...]
    """All that began in its time, of the kind that was asked for."""
    delay_seconds: float | None
    """From the first evaluation at which it could be seen."""
    reset_seconds: float | None
    """From the first evaluation after its end; None if the alarm had ended before, or did not end."""
    delay: float
    culprit: float | None
    """None where the whole run is struck."""
    reset: float

    @property
    def quality(self) -> float:
        if self.culprit is None:
            return (DELAY * self.delay + RESET * self.reset) / (DELAY + RESET)
        return DELAY * self.delay + CULPRIT * self.culprit + RESET * self.reset


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """What came of one seed."""

    seed: int
    judged: tuple[Judged, ...]
    false: tuple[Alarm, ...]
    healthy_hours: float


@dataclass(frozen=True, kw_only=True)
class Score:
    """Over all seeds of a drill. Parts are from 0 to 1, ``score`` and ``noise`` are points."""

    score: float
    recall: float
    precision: float
    delay: float
    culprit: float | None
    reset: float
    noise: float
    told: int
    incidents: int
    false_alarms: int
    healthy_hours: float
    false_per_day_bound: float
    """With 95 % confidence no more than so many false alarms come in a healthy day."""


def judge(
    alarms: Sequence[Alarm],
    incidents: Sequence[Struck],
    visible: Sequence[float],
    *,
    seed: int,
    every: float,
    seconds: float,
) -> SeedResult:
    """Match alarms and incidents of one seed; ``every`` and ``seconds`` as in the drill and its scenario."""
    expected = [incident for incident in incidents if incident.expect != "silence"]
    seen = [moment for incident, moment in zip(incidents, visible, strict=True) if incident.expect != "silence"]
    matched: list[list[Alarm]] = [[] for _ in expected]
    false: list[Alarm] = []
    for alarm in (alarm for alarm in alarms if alarm.begins >= SETTLING_SECONDS):
        home = _home(alarm, expected, matched)
        if home is not None:
            matched[home].append(alarm)
        elif not _excused(alarm, expected):
            false.append(alarm)
    judged = tuple(
        _judged(incident, moment, tuple(own), seed, every)
        for incident, moment, own in zip(expected, seen, matched, strict=True)
    )
    return SeedResult(seed=seed, judged=judged, false=tuple(false), healthy_hours=_healthy(expected, seconds) / 3600)


def total(results: Iterable[SeedResult]) -> Score:
    """The score over some seeds."""
    every = list(results)
    judged = [one for result in every for one in result.judged]
    told = [one for one in judged if one.hit]
    hours = sum(result.healthy_hours for result in every)
    false = sum(len(result.false) for result in every)
    recall = len(told) / len(judged)
    precision = 1 / (1 + false / (hours / 24) / FALSE_ALARMS_ALLOWED)
    f1 = 2 * recall * precision / (recall + precision) if told else 0.0
    quality = _mean([one.quality for one in judged])
    noise = min(MOST_NOISE, sum(len(one.alarms) - 1 for one in told) / len(told)) if told else 0.0
    culprits = [one.culprit for one in judged if one.culprit is not None]
    return Score(
        score=max(0.0, 100 * (0.5 * f1 + 0.5 * precision * quality) - noise),
        recall=recall, precision=precision,
        delay=_mean([one.delay for one in judged]), culprit=_mean(culprits) if culprits else None,
        reset=_mean([one.reset for one in judged]), noise=noise, told=len(told), incidents=len(judged),
        false_alarms=false, healthy_hours=hours, false_per_day_bound=false_alarm_bound(false, hours),
    )  # fmt: skip


def false_alarm_bound(false: int, healthy_hours: float) -> float:
    """Per day, the most that is compatible with what was counted, at 95 %: of a Poisson process that makes so few with a chance
    of 5 %. Without any it is 3 days / H, the rule of three (Hanley, Lippman-Hand: JAMA 249, 1983)."""
    low, high = 0.0, 10.0 * (false + 3)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(false, middle) > 1 - CONFIDENCE else (low, middle)
    return high / (healthy_hours / 24)


def _at_most(count: int, mean: float) -> float:
    term = chance = exp(-mean)
    for number in range(1, count + 1):
        term *= mean / number
        chance += term
    return chance


def _home(alarm: Alarm, incidents: Sequence[Struck], matched: Sequence[Sequence[Alarm]]) -> int | None:
    """The incident that an alarm is of: of those in whose time it began, one that it names, else one not yet told."""
    near = [
        index for index, one in enumerate(incidents)
        if one.expect == alarm.kind and one.begins <= alarm.begins <= one.ends + LATE_SECONDS
    ]  # fmt: skip
    if not near:
        return None
    return min(near, key=lambda index: (not _names(alarm.episodes, incidents[index]), bool(matched[index]), index))


def _names(episodes: Iterable[Episode], incident: Struck) -> bool:
    kind, value = _culprit_label(incident)
    return bool(kind) and any(episode.label(kind) == value for episode in episodes)


def _culprit_label(incident: Struck) -> tuple[str, str]:
    """Name and value; empty for the whole run."""
    ((kind, value),) = incident.target.items()
    return ("", "") if kind == "run" else (kind, str(value))


def _excused(alarm: Alarm, incidents: Sequence[Struck]) -> bool:
    """A ticket while something that is worth a page goes on is no false alarm; it earns nothing either. A page where a ticket
    would have done is one."""
    return alarm.kind == "ticket" and any(one.begins <= alarm.begins <= one.ends + LATE_SECONDS for one in incidents)


def _judged(incident: Struck, visible: float, alarms: tuple[Alarm, ...], seed: int, every: float) -> Judged:
    hit = alarms[0] if alarms else None
    culprit = _culprit(incident, alarms) if _culprit_label(incident)[0] else None
    delay, reset = (_delay(incident, visible, hit, every), _reset(incident, hit, every)) if hit else (None, None)
    return Judged(
        incident=incident, seed=seed, visible=visible, hit=hit, alarms=alarms, delay_seconds=delay, reset_seconds=reset,
        delay=_left_of(incident.detect_within, delay), culprit=culprit, reset=_left_of(incident.reset_within, reset),
    )  # fmt: skip


def _delay(incident: Struck, visible: float, hit: Alarm, every: float) -> float:
    seen = visible if isfinite(visible) else incident.begins
    return max(0.0, hit.begins - _evaluated(seen, every))


def _reset(incident: Struck, hit: Alarm, every: float) -> float | None:
    if hit.ends is None or hit.ends < incident.ends:
        return None
    return max(0.0, hit.ends - _evaluated(incident.ends, every))


def _left_of(allowed: float, taken: float | None) -> float:
    """The share of the time that was allowed; 0 where nothing came of it."""
    return 0.0 if taken is None else max(0.0, 1 - taken / allowed)


def _culprit(incident: Struck, alarms: Iterable[Alarm]) -> float:
    """1 by the position of the true one among all that are named, in order of their first firing; k at once share it."""
    kind, true = _culprit_label(incident)
    first: dict[str, float] = {}
    for episode in (episode for alarm in alarms for episode in alarm.episodes):
        value = episode.label(kind)
        if value and episode.begins < first.get(value, float("inf")):
            first[value] = episode.begins
    if true not in first:
        return 0.0
    return 1 / sum(moment <= first[true] for moment in first.values())


def _evaluated(moment: float, every: float) -> float:
    """The first evaluation at or after a moment."""
    return every * ceil(moment / every)


def _healthy(incidents: Sequence[Struck], seconds: float) -> float:
    """What is left beside the incidents and the time that their alarms have to end."""
    covered = at = SETTLING_SECONDS
    for one in sorted(incidents, key=lambda one: one.begins):
        ends = min(seconds, one.ends + max(LATE_SECONDS, one.reset_within))
        covered += max(0.0, ends - max(at, one.begins))
        at = max(at, ends)
    return seconds - covered


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
