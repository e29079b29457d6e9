"""Why an alert never matched: each side of its expression is evaluated alone, over the same data."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import promql_parser
from promql_parser import BinaryExpr, Expr

from stepsim.practice.data import lab_rules, recording_of
from stepsim.practice.exact import Samples, evaluate
from stepsim.practice.lint.tree import bare, is_comparison, number, operator, text
from stepsim.practice.rule_file import Alert, RuleFile
from stepsim.practice.scenario import Scenario

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


@dataclass(frozen=True, kw_only=True)
class Dead:
    """An alert whose expression matched nothing in all the data."""

    alert: str
    why: str
    sides: tuple[Side, ...]


def explain(
    pool: ProcessPoolExecutor, scenarios: list[Scenario], rules: RuleFile, dead: frozenset[str], data: Path
) -> list[Dead]:
    """One word for each dead alert. Raises as ``exact.evaluate`` does."""
    alerts = [alert for alert in rules.alerts if alert.name in dead]
    parts = {alert.name: list(dict.fromkeys(_sides(promql_parser.parse(alert.expr)))) for alert in alerts}
    exprs = sorted({part for found in parts.values() for part in found})
    if not exprs:
        return []
    seeds = [pool.submit(_evaluated, scenario, rules, exprs, data) for scenario in scenarios]
    found = [seed.result() for seed in seeds]
    sides = {expr: _side(expr, [seed[expr] for seed in found]) for expr in exprs}
    return [_dead(alert, [sides[part] for part in parts[alert.name]]) for alert in alerts]


def _evaluated(scenario: Scenario, rules: RuleFile, exprs: list[str], data: Path) -> dict[str, Samples]:
    return evaluate(recording_of(scenario, data), rules, exprs, every=scenario.drill.eval, lab=lab_rules())


def _side(expr: str, seeds: list[Samples]) -> Side:
    values = [value for samples in seeds for moments in samples.values() for _, value in moments]
    example = next((dict(labels) for samples in seeds for labels in samples), {})
    return Side(expr=expr, matched=sum(map(len, seeds)), example=example,
                low=min(values, default=float("nan")), high=max(values, default=float("nan")))  # fmt: skip


def _sides(expr: Expr) -> Iterator[str]:
    """What the outermost set operation or comparison works on, and the same of its sides."""
    node = bare(expr)
    if isinstance(node, BinaryExpr) and (operator(node) in SETS or is_comparison(node)):
        for side in (node.lhs, node.rhs):
            if number(side) is None:
                yield text(side)
                yield from _sides(side)


def _dead(alert: Alert, sides: list[Side]) -> Dead:
    return Dead(alert=alert.name, why=_why(bare(promql_parser.parse(alert.expr)), sides), sides=tuple(sides))


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
    return f"{one.expr} lies between {one.low:.4g} and {one.high:.4g} in all the data: the bound is never passed"


def _labels(side: Side) -> str:
    return "{" + ", ".join(sorted(side.example)) + "}"
