"""What one preview asks of the blocks that it has for itself: expressions, and the recording rules that they stand on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from stepsim.practice.exact import EngineError
from stepsim.practice.needed import names_in
from stepsim.practice.preview.prometheus import (
    Answers,
    Clock,
    Metric,
    Points,
    QueryError,
    make_blocks,
    prometheus_over,
    sample_lines,
)

Rule: TypeAlias = Mapping[str, Any]
"""A recording rule, as in a file."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A folder of blocks that one preview has for itself, and what the recording that they are of says of itself."""

    folder: Path
    clock: Clock
    visible: tuple[float, ...]
    recorded: frozenset[str]
    """Series that have a sample per evaluation."""

    def ask(self, exprs: Sequence[str], hear: Callable[[int, Answers], None]) -> None:
        """``hear`` gets each expression's number, and what it gives. Those that look back alike are asked of one Prometheus."""
        lookbacks = [self.clock.lookback_of(expr, bool(names_in([expr], self.recorded))) for expr in exprs]
        for lookback in sorted(set(lookbacks)):
            with prometheus_over(self.folder, self.clock, lookback) as prometheus:
                for number, expr in enumerate(exprs):
                    if lookbacks[number] == lookback:
                        hear(number, prometheus.values(expr))

    def record(self, rules: Sequence[Rule], put: Callable[[str, list[Path]], None]) -> None:
        """Evaluate recording rules that do not need each other; ``put`` hears which blocks have come of each. Raises
        ``QueryError``, behind the rule's name."""

        def hear(number: int, answers: Answers) -> None:
            rule = rules[number]
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".made-") as made:
                lines = (line for answer in answers for line in _recorded(rule, answer))
                try:
                    put(rule["record"], make_blocks(lines, Path(made) / "blocks"))
                except QueryError as error:
                    raise QueryError(f"{rule['record']} fails when it is evaluated: {error}") from None

        self.ask([rule["expr"] for rule in rules], hear)

    def record_here(self, rules: Sequence[Rule]) -> None:
        """As ``record``, into this folder."""

        def put(name: str, blocks: list[Path]) -> None:
            for block in blocks:
                block.rename(self.folder / block.name)

        for level in levels_of(rules):
            self.record(level, put)


def levels_of(rules: Iterable[Rule]) -> list[list[Rule]]:
    """Recording rules in groups, each of which needs only those before it. Raises ``EngineError`` where there is no order."""
    left = list(rules)
    levels: list[list[Rule]] = []
    while left:
        names = {rule["record"] for rule in left}
        level = [rule for rule in left if not _read(rule, names)]
        if not level:
            raise EngineError(
                f"the preview cannot evaluate what reads its own past: {', '.join(sorted(names))}. A grade can"
            )
        levels.append(level)
        left = [rule for rule in left if rule not in level]
    return levels


def _read(rule: Rule, names: set[str]) -> set[str]:
    """Which of the series a rule reads. One that matches names by a pattern reads all others."""
    return names_in([rule["expr"]], names) - ({rule["record"]} if "__name__" in rule["expr"] else set())


def _recorded(rule: Rule, answer: Iterable[tuple[Metric, Points]]) -> Iterator[str]:
    """Lines of the series that a rule makes of one answer. Several that matched may be one of them, each at its time."""
    made: dict[frozenset[tuple[str, str]], dict[float, str]] = {}
    for metric, points in answer:
        labels = {**metric, **rule.get("labels", {}), "__name__": rule["record"]}
        values = made.setdefault(frozenset((name, value) for name, value in labels.items() if value), {})
        if not values.keys().isdisjoint(moment for moment, _ in points):
            raise QueryError("vector contains metrics with the same labelset after applying rule labels")
        values.update(points)
    for key, values in made.items():
        yield sample_lines(dict(key), sorted(values.items()))
