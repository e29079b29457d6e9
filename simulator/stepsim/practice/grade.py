"""Grades a rule file on a drill: simulates its seeds, evaluates the rules on each, and counts what came of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path

from stepsim.practice.alarms import Alarm, alarms, episodes
from stepsim.practice.data import lab_rules, recording_of
from stepsim.practice.dead import Dead, explain, sides_of, too_short
from stepsim.practice.drill import Drill
from stepsim.practice.exact import Moments, Samples, evaluate, firing
from stepsim.practice.rule_file import EXHIBIT, RuleFile
from stepsim.practice.scenario import Scenario, draw_scenario
from stepsim.practice.score import Score, SeedResult, judge, total

Told = Callable[[str], None]
"""Hears what has just been done."""


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What the rules said on one seed."""

    scenario: Scenario
    visible: tuple[float, ...]
    alarms: tuple[Alarm, ...]
    silent: frozenset[str]
    """Alerts whose expression never matched anything: neither pending nor firing."""
    waited: Mapping[str, float]
    """Of those that were pending and never fired, for how many seconds at most they matched."""
    result: SeedResult


@dataclass(frozen=True, kw_only=True)
class DrillGrade:
    """A rule file's grade on one drill."""

    drill: Drill
    heard: tuple[Heard, ...]
    """By seed."""
    score: Score
    dead: tuple[Dead, ...] = ()
    """Alerts that no seed has heard, explained."""

    @classmethod
    def of(cls, drill: Drill, heard: Sequence[Heard]) -> DrillGrade:
        return cls(drill=drill, heard=tuple(heard), score=total(one.result for one in heard))

    @property
    def silent(self) -> frozenset[str]:
        """Alerts whose expression never matched, on any seed."""
        return frozenset.intersection(*(one.silent for one in self.heard))

    @property
    def too_short(self) -> dict[str, float]:
        """Alerts that matched and never fired, on any seed: for how many seconds at most they did."""
        fired = {alarm.name for one in self.heard for alarm in one.alarms}
        longest: dict[str, float] = {}
        for name, seconds in ((name, seconds) for one in self.heard for name, seconds in one.waited.items()):
            longest[name] = max(seconds, longest.get(name, 0.0))
        return {name: seconds for name, seconds in longest.items() if name not in fired}


@contextmanager
def workers() -> Iterator[ProcessPoolExecutor]:
    """One process per CPU: each holds one recording at a time. What is under way when it is interrupted is ended."""
    pool = ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"), initializer=_leave_ctrl_c_alone)
    try:
        yield pool
    except KeyboardInterrupt:
        for process in active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_ctrl_c_alone() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def grade(
    pool: ProcessPoolExecutor,
    drills: Sequence[tuple[Drill, list[int]]],
    rules: RuleFile,
    data: Path,
    told: Told = lambda _: None,
) -> list[DrillGrade]:
    """Grades in the drills' order, each on the given seeds; with one drill, alerts that never fired are explained. Raises
    ``RuleFileError`` and ``EngineError``."""
    scenarios = [draw_scenario(drill, seed) for drill, seeds in drills for seed in seeds]
    pending = {pool.submit(hear, scenario, rules, data): number for number, scenario in enumerate(scenarios)}
    heard: dict[int, Heard] = {}
    for done in as_completed(pending):
        number = pending[done]
        heard[number] = done.result()
        told(scenarios[number].drill.id)
    ordered = iter(heard[number] for number in range(len(scenarios)))
    grades = [DrillGrade.of(drill, [next(ordered) for _ in seeds]) for drill, seeds in drills]
    return [replace(one, dead=_explained(pool, one, rules, data)) for one in grades] if len(grades) == 1 else grades


MOST_SIDES = 20
"""Expressions that are evaluated for their own sake: more would take longer than the grade."""


def _explained(pool: ProcessPoolExecutor, grade: DrillGrade, rules: RuleFile, data: Path) -> tuple[Dead, ...]:
    """Each side of the expressions that never matched, evaluated on every seed."""
    exprs = sides_of(rules, grade.silent)
    if len(exprs) > MOST_SIDES:
        return ()
    asked = [(one.scenario, rules, exprs, data) for one in grade.heard] if exprs else []
    return (*explain(rules, grade.silent, list(pool.map(_sides, asked))), *too_short(rules, grade.too_short))


def _sides(asked: tuple[Scenario, RuleFile, list[str], Path]) -> dict[str, Samples]:
    scenario, rules, exprs, data = asked
    return evaluate(recording_of(scenario, data), rules, exprs, every=scenario.drill.eval, lab=lab_rules())


def hear(scenario: Scenario, rules: RuleFile, data: Path) -> Heard:
    """One seed, by the exact engine."""
    recording = recording_of(scenario, data)
    fired, pending = firing(recording, rules, every=scenario.drill.eval, lab=lab_rules())
    return heard_of(scenario, recording.visible, rules, fired, pending, last=recording.last)


def heard_of(
    scenario: Scenario, visible: tuple[float, ...], rules: RuleFile, fired: Moments, pending: Moments, *, last: float
) -> Heard:
    """``fired`` and ``pending`` as an engine tells them; ``last``: the last moment of the data."""
    fired, pending = _meant(fired), _meant(pending)
    told, waiting = ({dict(labels)["alertname"] for labels in states} for states in (fired, pending))
    waited = {name: _longest(name, pending, scenario.drill.eval) for name in waiting - told}
    return judged(scenario, visible, rules, alarms(fired, every=scenario.drill.eval, last=last), told, waited)


def _meant(moments: Moments) -> Moments:
    """Exhibits aside."""
    return {labels: when for labels, when in moments.items() if EXHIBIT not in dict(labels)}


def _longest(name: str, pending: Moments, every: float) -> float:
    own = {labels: moments for labels, moments in pending.items() if dict(labels)["alertname"] == name}
    return max((one.ends or one.begins) - one.begins for one in episodes(own, every))


def judged(
    scenario: Scenario, visible: tuple[float, ...], rules: RuleFile, raised: Sequence[Alarm], told: set[str],
    waited: Mapping[str, float],
) -> Heard:  # fmt: skip
    """``told``: the names of alerts that fired."""
    result = judge(
        raised, scenario.incidents, visible, seed=scenario.seed, every=scenario.drill.eval, seconds=scenario.seconds
    )
    meant = frozenset(rule.name for rule in rules.alerts if EXHIBIT not in rule.labels)
    silent = meant - told - frozenset(waited)
    return Heard(scenario=scenario, visible=visible, alarms=tuple(raised), silent=silent, waited=waited, result=result)
