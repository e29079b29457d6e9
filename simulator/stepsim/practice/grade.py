"""Grades a rule file on a drill: simulates its seeds, evaluates the rules on each, and counts what came of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from stepsim.practice.alarms import Alarm, alarms
from stepsim.practice.data import lab_rules, recording_of
from stepsim.practice.dead import Dead, explain, sides_of
from stepsim.practice.drill import Drill
from stepsim.practice.exact import Samples, evaluate, firing
from stepsim.practice.rule_file import RuleFile
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


@contextmanager
def workers() -> Iterator[ProcessPoolExecutor]:
    """One process per CPU: each holds one recording at a time."""
    pool = ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def grade(
    pool: ProcessPoolExecutor,
    drills: Sequence[tuple[Drill, list[int]]],
    rules: RuleFile,
    data: Path,
    told: Told = lambda _: None,
) -> list[DrillGrade]:
    """Grades in the drills' order, each on the given seeds. Raises ``RuleFileError`` and ``EngineError``."""
    scenarios = [draw_scenario(drill, seed) for drill, seeds in drills for seed in seeds]
    pending = {pool.submit(hear, scenario, rules, data): number for number, scenario in enumerate(scenarios)}
    heard: dict[int, Heard] = {}
    for done in as_completed(pending):
        number = pending[done]
        heard[number] = done.result()
        told(scenarios[number].drill.id)
    ordered = iter(heard[number] for number in range(len(scenarios)))
    grades = [DrillGrade.of(drill, [next(ordered) for _ in seeds]) for drill, seeds in drills]
    return [replace(one, dead=_explained(pool, one, rules, data)) for one in grades]


def _explained(pool: ProcessPoolExecutor, grade: DrillGrade, rules: RuleFile, data: Path) -> tuple[Dead, ...]:
    """Each side of the expressions that never matched, evaluated on every seed."""
    exprs = sides_of(rules, grade.silent)
    if not exprs:
        return explain(rules, grade.silent, [])
    return explain(
        rules, grade.silent, list(pool.map(_sides, [(one.scenario, rules, exprs, data) for one in grade.heard]))
    )


def _sides(asked: tuple[Scenario, RuleFile, list[str], Path]) -> dict[str, Samples]:
    scenario, rules, exprs, data = asked
    return evaluate(recording_of(scenario, data), rules, exprs, every=scenario.drill.eval, lab=lab_rules())


def hear(scenario: Scenario, rules: RuleFile, data: Path) -> Heard:
    """One seed, by the exact engine."""
    recording = recording_of(scenario, data)
    fired, pending = firing(recording, rules, every=scenario.drill.eval, lab=lab_rules())
    return heard_of(scenario, recording.visible, rules, alarms(fired, every=scenario.drill.eval, last=recording.last),
                    {dict(labels)["alertname"] for labels in (*fired, *pending)})  # fmt: skip


def heard_of(
    scenario: Scenario, visible: tuple[float, ...], rules: RuleFile, raised: Iterable[Alarm], alive: set[str]
) -> Heard:
    every = tuple(raised)
    result = judge(
        every, scenario.incidents, visible, seed=scenario.seed, every=scenario.drill.eval, seconds=scenario.seconds
    )
    return Heard(scenario=scenario, visible=visible, alarms=every, silent=frozenset(rule.name for rule in rules.alerts) - alive,
                 result=result)  # fmt: skip
