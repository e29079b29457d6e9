"""Whether a value is read for what it is: counters through a rate, gauges without one, NaN not at all."""

from __future__ import annotations

from collections.abc import Iterator

from promql_parser import AggregateExpr, BinaryExpr, Call, Expr, MatrixSelector, SubqueryExpr, VectorSelector

from stepsim.practice.lint.records import COUNTING, NONFINITE, WITHOUT_THE_VALUE, deals_with_nan, nan_families
from stepsim.practice.lint.rule import Finding, Rule
from stepsim.practice.lint.series import Family
from stepsim.practice.lint.tree import (
    bare,
    comparisons,
    is_comparison,
    name_of,
    number,
    operator,
    shown,
    text,
    walk,
)

RATES = {"rate", "irate", "increase"}
SLOPES = {"delta": "increase", "idelta": "irate", "deriv": "rate", "predict_linear": "rate"}
"""Of gauges, with what does the same for counters."""
UNCOUNTING = RATES | SLOPES.keys() | WITHOUT_THE_VALUE | {"stddev_over_time", "stdvar_over_time"}


def rate_of_gauge(rule: Rule) -> Iterator[Finding]:
    """``rate`` takes every fall for a restart; ``delta`` takes a restart for a fall."""
    for call in walk(rule.expr):
        if not isinstance(call, Call) or call.func.name not in RATES | SLOPES.keys():
            continue
        ranged = next((arg for arg in call.args if isinstance(arg, MatrixSelector | SubqueryExpr)), None)
        if isinstance(ranged, MatrixSelector):
            yield from _of_selector(rule, call, ranged)
        elif ranged is not None and call.func.name in RATES and isinstance(bare(ranged.expr), AggregateExpr):
            yield from _of_aggregate(rule, call, bare(ranged.expr))


def _of_selector(rule: Rule, call: Call, ranged: MatrixSelector) -> Iterator[Finding]:
    family, function = rule.known.get(name_of(ranged.vector_selector) or ""), call.func.name
    if family is None:
        return
    if function in RATES and not family.counts:
        other = "delta" if function == "increase" else "deriv"
        kind = "a recorded value, not a counter" if family.kind == "recorded" else "a gauge"
        yield rule.found(
            "error", "rate-of-gauge",
            f"{family.name} is {kind}: `{function}` takes each of its falls for a counter's restart, and adds it up",
            f"compare the value itself, or its change: {other}({text(ranged)})",
        )  # fmt: skip
    elif function in SLOPES and family.counts:
        yield rule.found(
            "warning", "delta-of-counter",
            f"{family.name} is a counter: `{function}` takes its restart for a fall below zero",
            f"{SLOPES[function]}({text(ranged)})",
        )  # fmt: skip


def _of_aggregate(rule: Rule, call: Call, summed: Expr) -> Iterator[Finding]:
    if not any(family.counts for family in _families(rule, summed)) or any(isinstance(n, Call) for n in walk(summed)):
        return
    assert isinstance(summed, AggregateExpr)
    yield rule.found(
        "error", "rate-of-sum",
        f"`{call.func.name}` of {shown(summed)}: when one of the counters restarts, the whole sum seems to",
        f"first the rate, then the sum: {operator(summed)} by (…) ({call.func.name}({text(summed.expr)}[5m]))",
    )  # fmt: skip


def _families(rule: Rule, expr: Expr) -> Iterator[Family]:
    for node in walk(expr):
        if isinstance(node, VectorSelector) and (family := rule.known.get(name_of(node) or "")):
            yield family


def counter_without_rate(rule: Rule) -> Iterator[Finding]:
    """A counter's own value says how long the process has run, not how it is."""
    for comparison in comparisons(rule.expr):
        for side, other in ((comparison.lhs, comparison.rhs), (comparison.rhs, comparison.lhs)):
            for selector in _counters(rule, side):
                begun = operator(comparison) in ("==", "!=") and number(other) == 0
                yield rule.found(
                    "advice" if begun else "warning", "counter-without-rate",
                    f"{name_of(selector)} is a counter: it only grows, until its process restarts, so what it has"
                    f" reached in `{shown(comparison)}` stays so",
                    f"compare what was added of late: increase({text(selector)}[5m])",
                )  # fmt: skip


def _counters(rule: Rule, side: Expr) -> Iterator[VectorSelector]:
    """Those whose value comes through."""
    for path in rule.paths(side):
        *above, node = path
        if not isinstance(node, VectorSelector):
            continue
        family = rule.known.get(name_of(node) or "")
        if family and family.counts and not any(_takes_the_count(rule, step) for step in above):
            yield node


def _takes_the_count(rule: Rule, node: Expr) -> bool:
    """What comes out no longer grows with what goes in. A comparison inside is looked at by itself."""
    match node:
        case Call():
            return node.func.name in UNCOUNTING
        case AggregateExpr():
            return operator(node) in COUNTING | {"stddev", "stdvar"}
        case BinaryExpr() if operator(node) == "-":
            return any(_counters(rule, node.lhs)) and any(_counters(rule, node.rhs))
        case BinaryExpr():
            return is_comparison(node) or operator(node) in ("and", "unless")
    return False


def nan_defeats_comparison(rule: Rule) -> Iterator[Finding]:
    """What has diverged is NaN, and NaN is above nothing."""
    if rule.alert is None or deals_with_nan(rule.expr):
        return
    for comparison in comparisons(rule.expr):
        upward = operator(comparison) in (">", ">=")
        if not upward and operator(comparison) not in ("<", "<="):
            continue
        # Who looks for low values does not look for what has diverged.
        greater = comparison.lhs if upward else comparison.rhs
        for name in sorted(nan_families(greater, rule.known)):
            yield rule.found(
                "warning", "nan-defeats-comparison",
                f"{name} is NaN once training has diverged, and NaN is neither above nor below: `{shown(comparison)}`"
                " falls silent at the worst moment",
                f"add `or x != x`, with x = {shown(greater)}, or count the steps: increase({NONFINITE}[5m]) > 0",
            )  # fmt: skip
