"""Why an alert never matched: each side of its expression is evaluated alone, over the same data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isnan

import promql_parser
from promql_parser import BinaryExpr, Expr

from stepsim.practice.exact import Samples
from stepsim.practice.lint.tree import bare, is_comparison, number, operator, text
from stepsim.practice.rule_file import Alert, RuleFile

SETS = ("and", "unless", "or")


@dataclass(frozen=True, kw_only=True)
class Side:
    """A part of a dead expression, and what it gives by itself, over all seeds."""

    expr: str
    matched: int
    """Label sets, once per seed."""
    example: dict[str, str]
    """Labels of one of them."""
    low: float
    high: float
    nan: bool
    """Whether it is not a number at times."""


@dataclass(frozen=True, kw_only=True)
class Dead:
    """An alert that never fired in all the data, though nothing was wrong with its file."""

    alert: str
    why: str


def sides_of(rules: RuleFile, dead: frozenset[str]) -> list[str]:
    """The parts of dead expressions that are to be evaluated by themselves."""
    return list(dict.fromkeys(part for alert in rules.alerts if alert.name in dead for part in _sides(_parsed(alert))))


def explain(rules: RuleFile, dead: frozenset[str], seeds: list[dict[str, Samples]]) -> tuple[Dead, ...]:
    """A word for each dead alert. ``seeds``: what ``sides_of`` gave on each."""
    sides = {expr: _side(expr, [seed[expr] for seed in seeds]) for expr in sides_of(rules, dead)}
    return tuple(
        Dead(alert=alert.name, why=_why(_parsed(alert), [sides[part] for part in _sides(_parsed(alert))]))
        for alert in rules.alerts
        if alert.name in dead
    )


def too_short(rules: RuleFile, seconds: Mapping[str, float]) -> tuple[Dead, ...]:
    """A word for each alert that matched, but never for as long as its ``for`` asks. ``seconds``: for how long at most."""
    return tuple(
        Dead(
            alert=alert.name,
            why=f"it matched, for {seconds[alert.name]:g} s at most, and `for` asks for {alert.for_seconds:g} s",
        )
        for alert in rules.alerts
        if alert.name in seconds
    )


def _parsed(alert: Alert) -> Expr:
    return bare(promql_parser.parse(alert.expr))


def _side(expr: str, seeds: list[Samples]) -> Side:
    every = [value for samples in seeds for moments in samples.values() for _, value in moments]
    values = [value for value in every if not isnan(value)]
    example = next((dict(labels) for samples in seeds for labels in samples), {})
    nowhere = float("nan")
    return Side(
        expr=expr, matched=sum(map(len, seeds)), example=example, low=min(values, default=nowhere),
        high=max(values, default=nowhere), nan=len(values) < len(every),
    )  # fmt: skip


def _sides(expr: Expr) -> Iterator[str]:
    """What the outermost set operation or comparison works on, and the same of its sides."""
    node = bare(expr)
    if isinstance(node, BinaryExpr) and (operator(node) in SETS or is_comparison(node)):
        for side in (node.lhs, node.rhs):
            if number(side) is None:
                yield text(side)
                yield from _sides(side)


def _why(expr: Expr, sides: list[Side]) -> str:
    empty = [side.expr for side in sides if not side.matched]
    if not sides:
        return f"there is no series {text(expr)}"
    if empty:
        return f"{min(empty, key=len)} gives nothing, not even by itself"
    known = {side.expr: side for side in sides}
    if isinstance(expr, BinaryExpr) and operator(expr) in SETS:
        left, right = known[text(expr.lhs)], known[text(expr.rhs)]
        return (f"both sides of '{operator(expr)}' match, but never together: the left one has the labels {_labels(left)}, the "
                f"right one {_labels(right)}")  # fmt: skip
    one = sides[0]
    nan = "; at times it is NaN, which is neither above nor below anything" if one.nan else ""
    return f"{one.expr} lies between {one.low:.4g} and {one.high:.4g} in all the data: the bound is never passed{nan}"


def _labels(side: Side) -> str:
    return "{" + ", ".join(sorted(side.example)) + "}"
