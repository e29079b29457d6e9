"""Engine B: what rules would say, in the time of a few queries, for those who are still writing them.

A Prometheus over the blocks of one recording (``store``) gives what each expression matches at every evaluation;
``for``, ``keep_firing_for`` and labels are made of that here. A sample counts until the next scrape is due, which is what a
staleness marker says, so that this engine and the exact one agree, but for:

- an expression that reads both recorded and scraped series at moments between evaluations (``offset``, ``@``, a subquery),
  where a scraped series that has ended may count until the next evaluation would have been;
- a recorded series, where rules are evaluated more often than targets are scraped: it counts a scrape interval longer;
- an alert that reads a recording rule which stands behind it in its file: it is told of the present, and not of the
  evaluation before;
- functions in the templates of labels, which are left as they are written.

``ALERTS``, rules that read their own past, and ``@ start()`` and ``@ end()`` are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from itertools import groupby
from math import isfinite
from pathlib import Path

from stepsim.practice.data import file_of, lab_rules, recording_of
from stepsim.practice.exact import EngineError, Labels, Moments
from stepsim.practice.grade import Heard, heard_of
from stepsim.practice.preview.prometheus import Answers, Metric, QueryError
from stepsim.practice.preview.session import Session
from stepsim.practice.preview.store import Store
from stepsim.practice.rule_file import Alert, Record, RuleFile, RuleFileError
from stepsim.practice.scenario import Scenario

NOT_HERE = re.compile(r"\b(?:ALERTS|ALERTS_FOR_STATE)\b|@\s*(?:start|end)\s*\(\s*\)")
ACTION = re.compile(r"\{\{\s*(?:(?:\$labels|\.Labels)\.(?P<label>\w+)|(?P<value>\$value|\.Value))\s*\}\}")
SAME_LABELS = "vector contains metrics with the same labelset after applying alert labels"
"""Prometheus's words."""


def preview(scenario: Scenario, rules: RuleFile, data: Path) -> Heard:
    """One seed, as ``grade.hear``. Raises ``EngineError`` and ``RuleFileError``."""
    with _opened(scenario, rules, data) as session:
        fired, pending = _states(session, rules)
        visible, last = session.visible, session.clock.last
    return heard_of(scenario, visible, rules, fired, pending, last=last)


def firing(scenario: Scenario, rules: RuleFile, data: Path) -> tuple[Moments, Moments]:
    """When each alert fired, and when it was pending, as ``exact.firing``. Raises ``EngineError`` and ``RuleFileError``."""
    with _opened(scenario, rules, data) as session:
        return _states(session, rules)


def store_of(scenario: Scenario, data: Path) -> Store:
    """What is kept of its recording in blocks."""
    return Store(folder=file_of(scenario, data).with_suffix(".tsdb"), recording=lambda: recording_of(scenario, data),
                 every=scenario.drill.eval, lab=lab_rules())  # fmt: skip


def _opened(scenario: Scenario, rules: RuleFile, data: Path) -> AbstractContextManager[Session]:
    every: tuple[Alert | Record, ...] = (*rules.alerts, *rules.records)
    for rule in every:
        if found := NOT_HERE.search(rule.expr):
            raise EngineError(
                f"{rules.path}:{rule.line}: the preview knows no {found[0]}, which {rule.name} reads. A grade does"
            )
    return store_of(scenario, data).opened(rules.exprs(), own=[record.name for record in rules.records])


def _states(session: Session, rules: RuleFile) -> tuple[Moments, Moments]:
    fired: Moments = {}
    pending: Moments = {}
    every, count = session.clock.every, session.clock.count

    def hear(number: int, answers: Answers) -> None:
        alert = rules.alerts[number]
        try:
            matched = _matched(alert, answers, every)
        except QueryError as error:
            raise RuleFileError(f"{rules.path}: {alert.name} fails when it is evaluated: {error}") from None
        hold, keep = _evaluations(alert.for_seconds, every), _evaluations(alert.keep_seconds, every)
        for labels, numbers in matched.items():
            on, waiting = fire(numbers, hold=hold, keep=keep, count=count)
            # Two rules may make the same labels, as two alerts of one name do.
            _add(fired, labels, (number * every for number in on))
            _add(pending, labels, (number * every for number in waiting))

    try:
        session.record_here([{"record": one.name, "expr": one.expr, "labels": one.labels} for one in rules.records])
    except QueryError as error:
        raise RuleFileError(f"{rules.path}: {error}") from None
    session.ask([alert.expr for alert in rules.alerts], hear)
    return fired, pending


def _add(states: Moments, labels: Labels, moments: Iterable[float]) -> None:
    if all_ := sorted({*states.get(labels, ()), *moments}):
        states[labels] = all_


def _matched(alert: Alert, answers: Answers, every: float) -> dict[Labels, list[int]]:
    """At which evaluations the expression gave something, by the labels that the alert has then."""
    found: dict[Labels, list[int]] = {}
    of_value = any(match["value"] for text in alert.labels.values() for match in ACTION.finditer(text))
    for metric, points in (series for answer in answers for series in answer):
        if not of_value:
            found.setdefault(_labels(alert, metric, ""), []).extend(round(moment / every) for moment, _ in points)
            continue
        for moment, value in points:
            found.setdefault(_labels(alert, metric, value), []).append(round(moment / every))
    for labels, numbers in found.items():
        if len(set(numbers)) < len(numbers):
            raise QueryError(f"{SAME_LABELS}: {dict(sorted(labels))}")
        numbers.sort()
    return found


def _labels(alert: Alert, metric: Metric, value: str) -> Labels:
    """As those of the series ALERTS, which has a template of which nothing is left as it is written."""
    own = {name: _filled(text, metric, value) or text for name, text in alert.labels.items()}
    labels: Mapping[str, str] = {**metric, **own, "alertname": alert.name, "__name__": ""}
    return frozenset((name, text) for name, text in labels.items() if text)


def _filled(template: str, metric: Metric, value: str) -> str:
    return ACTION.sub(lambda found: metric.get(found["label"], "") if found["label"] else go_number(value), template)


def go_number(value: str) -> str:
    """A value as Go's templates print it: with an exponent from a million on, and below a ten thousandth."""
    if not isfinite(float(value)):
        return value
    number = Decimal(repr(float(value))).normalize()
    exponent = number.adjusted()
    if -4 <= exponent < 6 or not number:
        return f"{number:f}"
    return f"{number.scaleb(-exponent):f}e{exponent:+03d}"


def fire(numbers: Iterable[int], *, hold: int, keep: int, count: int) -> tuple[list[int], list[int]]:
    """At which evaluations an alert fires and is pending that matches at some of ``count``: from ``hold`` after the first
    of an unbroken run on, and for ``keep`` after its last."""
    fired: list[int] = []
    pending: list[int] = []
    lasting = -1
    """The evaluation until which it goes on firing."""
    for first, last in _runs(numbers):
        begins = first if fired and first <= lasting + 1 else first + hold
        pending.extend(range(first, min(begins, last + 1)))
        if begins <= last:
            fired.extend(range(max(begins, fired[-1] + 1 if fired else 0), min(last + keep + 1, count)))
            lasting = last + keep
    return fired, pending


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of unbroken ones."""
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        unbroken = [number for _, number in run]
        yield unbroken[0], unbroken[-1]


def _evaluations(seconds: float, every: float) -> int:
    """As many as pass until so much time has."""
    return -(-round(1000 * seconds) // round(1000 * every))
