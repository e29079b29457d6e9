"""Blind drills on the running job: faults strike that nobody is told of, until they are revealed and the alerts are graded.

Whoever owns the machine can peek: the seed is in this process's memory. All that is kept is here, so a restart ends a drill.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepsim.board import Board, FaultBoard, FaultError
from stepsim.incidents import Incidents
from stepsim.job import Job
from stepsim.practice.drill import Drill, DrillError, drills
from stepsim.practice.drill import Incident as Wanted
from stepsim.practice.live.grading import Heard, grade
from stepsim.practice.live.plan import Secret, any_fault, draw_plan, room, strikes
from stepsim.practice.live.result import Revealed, false_alarms, outcomes
from stepsim.practice.scenario import Struck

MINUTES, FEWEST_MINUTES, MOST_MINUTES = 20.0, 6.0, 240.0
INCIDENTS, MOST_INCIDENTS = 3, 20
FIELDS = ("drill", "minutes", "incidents")

HONEST = "whoever owns this machine can peek: the seed is in the simulator's memory; a restart of the lab ends a drill"
REVEAL = "POST /practice/reveal, or stepscope practice reveal"
SECRET = f"a blind drill is on, so faults are neither told, started nor stopped by hand; end it with {REVEAL}"
SLEPT = "the machine slept, or its clock was set, during the drill: times of faults and alerts no longer fit together"
TOO_EARLY = "no incident that wants an alert had begun"


class Refused(RuntimeError):
    """Not now; says what to do first."""


class Stage(Incidents):
    """What strikes by itself: the usual incidents, if there are any, or a drill's while one is on. Thread-safe."""

    def __init__(self, usual: Incidents | None) -> None:
        self.usual = usual
        self._planned: Incidents | None = None
        self._now = self._until = 0.0
        self._lock = threading.Lock()
        self._slept = False

    def start_due(self, board: Board, until: float) -> None:
        with self._lock:
            self._now = until
            due = self._planned if self._planned and until < self._until else self.usual
            if due:
                due.start_due(board, until)

    def shift(self, seconds: float) -> None:
        with self._lock:
            self._slept = self._slept or (self._planned is not None and self._now < self._until)
            for one in (self._planned, self.usual):
                if one:
                    one.shift(seconds)

    def play(self, planned: Incidents, *, begin: float, seconds: float) -> None:
        """The usual incidents that would strike meanwhile strike so much later."""
        with self._lock:
            self._planned, self._until, self._slept = planned, begin + seconds, False
            self._postpone(seconds)

    def end(self, now: float) -> bool:
        """The usual incidents go on. Tells whether time was moved meanwhile."""
        with self._lock:
            self._planned = None
            self._postpone(-max(0.0, self._until - now))
            return self._slept

    def _postpone(self, seconds: float) -> None:
        if self.usual:
            self.usual.shift(seconds)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A drill that was asked for, checked."""

    drill: Drill | None
    minutes: float
    incidents: int

    @property
    def seconds(self) -> float:
        return 60 * self.minutes


@dataclass(frozen=True, kw_only=True)
class Session:
    """A drill that is on, or over and not yet revealed."""

    request: Request
    secret: Secret
    plan: tuple[Struck, ...]
    began: float
    """Seconds since the epoch."""
    heard: Heard

    def left(self, now: float) -> float:
        return max(0.0, self.began + self.request.seconds - now)


class Blind:
    """One drill at a time. Give ``stage`` to the engine of the job."""

    def __init__(self, job: Job, board: FaultBoard, clock: Callable[[], float], usual: Incidents | None) -> None:
        self._job, self._board, self._clock = job, board, clock
        self.stage = Stage(usual)
        self.result: Revealed | None = None
        """Of the last drill that was revealed."""
        self._lock = threading.Lock()
        self._session: Session | None = None
        board.secret, board.unrevealed = self.on, lambda: self._session is not None

    def on(self) -> bool:
        """Whether nobody may know what is active."""
        session = self._session
        return session is not None and session.left(self._clock()) > 0

    def running(self) -> bool | None:
        """None before the first drill."""
        return None if self._session is None and self.result is None else self.on()

    def refuse_by_hand(self) -> None:
        """Raises ``Refused`` while a drill is on."""
        if self.on():
            raise Refused(SECRET)

    def start(self, body: Mapping[str, Any], firing: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Begin what the request describes; active faults end. Raises ``FaultError`` or ``Refused``, and then changes nothing.

        ``firing``: the alerts that fire already, of which nothing more may be sent.
        """
        request = self._checked(body)
        with self._lock:
            self._refuse_second()
            secret, began = Secret.drawn(), self._clock()
            plan = draw_plan(secret.seed, self._job, self._wanted(request.drill), seconds=request.seconds,
                             incidents=request.incidents)  # fmt: skip
            heard = Heard(self._job.run, began)
            heard.add(firing)
            self.stage.play(Incidents(strikes(plan), begin=began), begin=began, seconds=request.seconds)
            self._session = Session(request=request, secret=secret, plan=plan, began=began, heard=heard)
        self._board.stop_all()
        return self.state()

    def hear(self, alerts: Iterable[Mapping[str, Any]]) -> None:
        """What Alertmanager sends."""
        if session := self._session:
            session.heard.add(alerts)

    def state(self) -> dict[str, Any]:
        """All that may be known."""
        session = self._session
        known = {"state": "none", "running": False, "revealed": self.result is not None, "note": HONEST}
        if session is None:
            return known
        left = session.left(self._clock())
        return {
            **known,
            "state": "running" if left else "over",
            "running": left > 0,
            "seconds_left": round(left, 1),
            "minutes": session.request.minutes,
            "commitment": session.secret.commitment,
            "alerts_received": session.heard.count(),
        }

    def reveal(self, own_loaded: Callable[[float], bool]) -> Revealed:
        """End the drill, and its faults; tell what happened, and grade the alerts. Raises ``Refused`` without one.

        ``own_loaded`` tells whether rules of one's own were loaded within the last so many seconds: they alone are graded then.
        """
        began = self._session.began if self._session else self._clock()
        loaded = own_loaded(self._clock() - began)
        with self._lock:
            session, now = self._session, self._clock()
            if session is None:
                raise Refused("no blind drill is on; POST /practice starts one, and a restart of the lab ends it")
            slept = self.stage.end(now)
            self._session = None
        if session.left(now) > 0:
            self._board.stop_all()
        seconds = min(now - session.began, session.request.seconds)
        self.result = _revealed(session, seconds, own=loaded or session.heard.any_own(), slept=slept)
        return self.result

    def _refuse_second(self) -> None:
        if self._session:
            over = not self.on()
            raise Refused(f"a blind drill is {'over, but not revealed' if over else 'on'}; {REVEAL}, comes first")

    def _checked(self, body: Mapping[str, Any]) -> Request:
        for name in sorted(body.keys() - set(FIELDS)):
            raise FaultError(name, f"unknown field {name!r}; there are {', '.join(FIELDS)}")
        minutes = body.get("minutes", MINUTES)
        if not _is_number(minutes) or not FEWEST_MINUTES <= minutes <= MOST_MINUTES:
            raise FaultError(
                "minutes", f"minutes must be a number from {FEWEST_MINUTES:g} to {MOST_MINUTES:g}, not {minutes!r}"
            )
        incidents = body.get("incidents", min(INCIDENTS, room(60 * minutes)))
        most = min(MOST_INCIDENTS, room(60 * minutes))
        if not isinstance(incidents, int) or isinstance(incidents, bool) or not 1 <= incidents <= most:
            raise FaultError("incidents", f"incidents must be a whole number from 1 to {most}, for which {minutes:g} minutes have "
                             f"room, not {incidents!r}")  # fmt: skip
        return Request(drill=self._drill(body.get("drill")), minutes=float(minutes), incidents=incidents)

    def _drill(self, name: Any) -> Drill | None:
        """Only those that come along: a request names no files."""
        if name is None:
            return None
        try:
            known = drills()
        except (DrillError, FileNotFoundError) as error:
            raise FaultError("drill", f"the drills cannot be read: {error}") from None
        if not isinstance(name, str) or name not in known:
            raise FaultError("drill", f"no drill {name!r}; there are {', '.join(known)}; null draws any fault")
        for one in known[name].incidents:
            if reason := self._board.impossible.get(one.fault):
                raise FaultError("drill", f"this job cannot have what {name} is about: {one.fault} {reason}")
        return known[name]

    def _wanted(self, drill: Drill | None) -> Sequence[Wanted]:
        return drill.incidents if drill else any_fault(self._board.faults)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _revealed(session: Session, seconds: float, *, own: bool, slept: bool) -> Revealed:
    request = session.request
    told = None if slept else grade(session.plan, session.heard.episodes(own=own), seconds=seconds,
                                    severities=request.drill is not None)  # fmt: skip
    ungraded = SLEPT if slept else None if told else TOO_EARLY
    return Revealed(
        secret=session.secret, drill=request.drill.id if request.drill else None, minutes=request.minutes, began=session.began,
        seconds=round(seconds, 1), rules="yours" if own else "the lab's",
        incidents=outcomes(session.plan, told, seconds, graded=told is not None), false_alarms=false_alarms(told),
        score=told.score if told else None, ungraded=ungraded,
    )  # fmt: skip
