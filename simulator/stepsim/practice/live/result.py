"""What a blind drill comes to once it is revealed: the truth, what was told of it, and how that is published.

To publish more: add a row to ``PRACTICE``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from stepscope.metrics import Metric, Values
from stepsim.board import target_label
from stepsim.practice.alarms import Alarm
from stepsim.practice.live.grading import Told
from stepsim.practice.live.plan import Secret
from stepsim.practice.scenario import Struck
from stepsim.practice.score import Judged, Score

Verdict = Literal["told", "missed", "not begun", "no alert wanted", "not graded"]

CHECK = "sha256 of the salt followed by the seed is the commitment that was told at the start; the incidents follow from the seed"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An incident, and what became of it. Times are seconds after the drill's beginning."""

    number: int
    fault: str
    target: dict[str, Any]
    severity: float
    begins_seconds: float
    ends_seconds: float
    """As it was planned."""
    expect: str
    verdict: Verdict
    alert: str | None = None
    """The first that told it."""
    delay_seconds: float | None = None
    reset_seconds: float | None = None
    culprit: float | None = None
    """1 if it was named first, less if others were, 0 if it was not; None where the whole run is struck."""


@dataclass(frozen=True, kw_only=True)
class FalseAlarm:
    alert: str
    kind: str
    begins_seconds: float
    ends_seconds: float | None
    """None: it had not ended."""


@dataclass(frozen=True, kw_only=True)
class Revealed:
    """A drill that is over."""

    secret: Secret
    drill: str | None
    """None: any fault."""
    minutes: float
    began: float
    """Seconds since the epoch."""
    seconds: float
    """After which it was ended."""
    rules: Literal["yours", "the lab's"]
    """Whose alerts were graded."""
    incidents: tuple[Outcome, ...]
    false_alarms: tuple[FalseAlarm, ...]
    score: Score | None
    ungraded: str | None
    """Why there is no score."""

    @property
    def parts(self) -> dict[str, float | None]:
        score = self.score
        names = ("recall", "precision", "delay", "culprit", "reset")
        return {name: getattr(score, name) for name in names} if score else {}

    def to_dict(self) -> dict[str, Any]:
        return {
            "drill": self.drill,
            "minutes": self.minutes,
            "began": self.began,
            "seconds": self.seconds,
            "early": self.seconds < 60 * self.minutes,
            "seed": self.secret.seed,
            "salt": self.secret.salt,
            "commitment": self.secret.commitment,
            "check": CHECK,
            "rules": self.rules,
            "incidents": [asdict(one) for one in self.incidents],
            "false_alarms": [asdict(one) for one in self.false_alarms],
            "grade": self._grade(),
            "ungraded": self.ungraded,
        }

    def _grade(self) -> dict[str, Any] | None:
        score = self.score
        if score is None:
            return None
        return {"score": score.score, **self.parts, "noise": score.noise, "told": score.told,
                "incidents": score.incidents, "false_alarms": score.false_alarms}  # fmt: skip


def outcomes(plan: Iterable[Struck], told: Told | None, seconds: float, *, graded: bool) -> tuple[Outcome, ...]:
    """In order of time, of a drill that ended after so many seconds."""
    judged = {one.incident.begins: one for one in told.judged.judged} if told else {}
    return tuple(
        _outcome(number, one, judged.get(one.begins), begun=one.begins < seconds, graded=graded)
        for number, one in enumerate(plan, 1)
    )


def _outcome(number: int, one: Struck, judged: Judged | None, *, begun: bool, graded: bool) -> Outcome:
    hit = judged.hit if judged else None
    return Outcome(
        number=number, fault=one.fault, target=one.target, severity=one.severity, begins_seconds=round(one.begins, 1),
        ends_seconds=round(one.ends, 1), expect=one.expect, verdict=_verdict(one, hit, begun, graded),
        alert=hit.name if hit else None,
        delay_seconds=_tenths(judged.delay_seconds) if judged else None,
        reset_seconds=_tenths(judged.reset_seconds) if judged else None, culprit=judged.culprit if judged else None,
    )  # fmt: skip


def _verdict(one: Struck, hit: Alarm | None, begun: bool, graded: bool) -> Verdict:
    if not begun:
        return "not begun"
    if not graded:
        return "not graded"
    if one.expect == "silence":
        return "no alert wanted"
    return "told" if hit else "missed"


def false_alarms(told: Told | None) -> tuple[FalseAlarm, ...]:
    return tuple(
        FalseAlarm(alert=one.name, kind=one.kind, begins_seconds=round(one.begins, 1), ends_seconds=_tenths(one.ends))
        for one in (told.judged.false if told else ())
    )


def _tenths(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


class Drills(Protocol):
    """What is published of."""

    @property
    def result(self) -> Revealed | None:
        """Of the last drill that was revealed."""

    def running(self) -> bool | None:
        """None before the first drill."""


def _of_result(value: Callable[[Revealed], Values]) -> Callable[[Drills], Values]:
    return lambda drills: value(drills.result) if drills.result else []


def _infos(result: Revealed) -> Iterator[tuple[tuple[str, ...], list[float | None]]]:
    for one in result.incidents:
        if one.verdict in ("told", "missed"):
            yield (
                str(one.number), one.fault, target_label(one.target), one.alert or "", _text(one.delay_seconds), _text(one.culprit),
                one.verdict,
            ), [1]  # fmt: skip


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


PRACTICE: tuple[Metric, ...] = (
    Metric(
        name="lab_practice_running", kind="gauge", scope="run",
        help="1 while a blind drill is on, else 0; absent before the first one.",
        values=lambda drills: [((), [None if drills.running() is None else int(drills.running())])],
    ),
    Metric(
        name="lab_practice_score", kind="gauge", scope="run",
        help="Points of the last blind drill that was revealed, 100 at most; absent if nothing could be graded.",
        values=_of_result(lambda result: [((), [result.score.score if result.score else None])]),
    ),
    Metric(
        name="lab_practice_part_ratio", kind="gauge", scope="run", labels=("part",),
        help="What its score is made of, each from 0 to 1; no culprit where none could be named.",
        values=_of_result(lambda result: [((part,), [value]) for part, value in result.parts.items()]),
    ),
    Metric(
        name="lab_practice_false_alarms", kind="gauge", scope="run",
        help="Its alarms that belonged to no incident.",
        values=_of_result(lambda result: [((), [result.score.false_alarms if result.score else None])]),
    ),
    Metric(
        name="lab_practice_incident_info", kind="gauge", scope="run",
        labels=("number", "fault", "target", "alert", "delay_seconds", "culprit", "verdict"),
        help="1 for each of its incidents: what told it, after how long, and whether it was missed.",
        values=_of_result(_infos),
    ),
)  # fmt: skip
"""Read from ``Drills``."""
