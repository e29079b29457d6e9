"""What a check is given, and what it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from promql_parser import Expr, VectorSelector

from stepsim.practice.lint.labels import shapes_of
from stepsim.practice.lint.series import Families, Shapes
from stepsim.practice.lint.tree import children, name_of
from stepsim.practice.rule_file import Alert

Level = Literal["error", "warning", "advice"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """``message`` says what is wrong, ``instead`` what to write."""

    level: Level
    line: int
    rule: str
    check: str
    message: str
    instead: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One alert or recording rule, and what is known around it."""

    name: str
    line: int
    expr: Expr
    alert: Alert | None
    """None for a recording rule."""
    known: Families
    own: Mapping[str, Expr]
    """The expressions of the file's own recording rules."""

    def found(self, level: Level, check: str, message: str, instead: str) -> Finding:
        return Finding(level=level, line=self.line, rule=self.name, check=check, message=message, instead=instead)

    def shapes(self, expr: Expr) -> Shapes:
        return shapes_of(expr, self.known)

    def walk(self, expr: Expr) -> Iterator[Expr]:
        """All below, through the file's own recording rules."""
        return (path[-1] for path in self.paths(expr))

    def paths(
        self, expr: Expr, above: tuple[Expr, ...] = (), recorded: frozenset[str] = frozenset()
    ) -> Iterator[tuple[Expr, ...]]:
        """Every node below with those above it, from the top."""
        path = (*above, expr)
        yield path
        below = children(expr)
        if isinstance(expr, VectorSelector) and (name := name_of(expr) or "") in self.own.keys() - recorded:
            below, recorded = [self.own[name]], recorded | {name}
        for child in below:
            yield from self.paths(child, path, recorded)
