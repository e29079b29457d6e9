"""Whether a comparison can tell a fault: averages that hide it, utilization that counts waiting, bounds that always hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from promql_parser import AggregateExpr, BinaryExpr, Call, Expr, MatrixSelector, SubqueryExpr, VectorSelector

from stepsim.practice.lint.rule import Finding, Rule
from stepsim.practice.lint.series import label_names
from stepsim.practice.lint.tree import (
    MIRRORED,
    bare,
    children,
    comparisons,
    is_comparison,
    is_scalar,
    name_of,
    number,
    operand,
    operator,
    returns_bool,
    shown,
    subjects,
    text,
    walk,
)

OF_ONE_GPU = {"rank", "UUID"}
LEVELING = {"avg", "sum", "count", "group"}
UTILIZATION = re.compile(r"GPU_UTIL|GR_ENGINE_ACTIVE|gpu_util")
"""The share of time in which a kernel runs: the one that waits in a collective is a kernel, too."""
EXTREMES = {"min_over_time": ">", "max_over_time": "<"}
"""And on which side of it every value of the window lies."""


def average_hides_rank(rule: Rule) -> Iterator[Finding]:
    """One bad rank of many hardly moves their mean."""
    for comparison in subjects(rule.expr):
        if not rule.alert or label_names(rule.shapes(comparison)) & OF_ONE_GPU:
            continue
        merging = [n for n in rule.walk(comparison) if isinstance(n, AggregateExpr) and _merges_ranks(rule, n)]
        leading = chain(_leading(rule, comparison.lhs), _leading(rule, comparison.rhs))
        averages = [
            n for n in leading if isinstance(n, AggregateExpr) and operator(n) == "avg" and _merges_ranks(rule, n)
        ]
        if averages and {operator(node) for node in merging} <= LEVELING:
            yield _hidden(rule, averages[0])


def _leading(rule: Rule, expr: Expr, recorded: frozenset[str] = frozenset()) -> Iterator[Expr]:
    """What the value rises with: not what it is divided by, nor what is taken away."""
    yield expr
    below = children(expr)
    if isinstance(expr, BinaryExpr) and operator(expr) in "/-" and not is_scalar(expr.lhs):
        below = below[:1]
    elif isinstance(expr, VectorSelector) and (name := name_of(expr) or "") in rule.own.keys() - recorded:
        below, recorded = [rule.own[name]], recorded | {name}
    for child in below:
        yield from _leading(rule, child, recorded)


def _hidden(rule: Rule, average: AggregateExpr) -> Finding:
    labels = label_names(rule.shapes(average.expr))
    by = ", ".join(label for label in ("run", "rank", "node") if label in labels) if "rank" in labels else "node, gpu"
    return rule.found(
        "warning", "average-hides-rank",
        f"`{shown(average)}` is the mean over all ranks: one bad rank of 16 moves it by 1/16 of its own change",
        f"keep the ranks apart: max by ({by}) ({text(average.expr)}), or min where low is bad; or compare a rank with"
        f" its peers: x > on (run) group_left () 1.2 * quantile by (run) (0.5, x)",
    )  # fmt: skip


def _merges_ranks(rule: Rule, node: AggregateExpr) -> bool:
    before, after = rule.shapes(node.expr), rule.shapes(node)
    return bool(label_names(before) & OF_ONE_GPU) and not label_names(after) & OF_ONE_GPU


def utilization_counts_waiting(rule: Rule) -> Iterator[Finding]:
    """As a condition beside others (is this GPU in use at all?) utilization is well asked for."""
    conditions = any(isinstance(n, BinaryExpr) and operator(n) in ("and", "unless") for n in walk(rule.expr))
    for comparison in subjects(rule.expr) if rule.alert else ():
        names = {name_of(n) or "" for n in rule.walk(comparison) if isinstance(n, VectorSelector)}
        asked = sorted(filter(UTILIZATION.search, names))
        low = operator(comparison) in ("<", "<=") or is_scalar(comparison.lhs)
        if asked and not any("mfu" in name for name in names) and (low or not conditions):
            yield rule.found(
                "warning", "utilization-counts-waiting",
                f"{asked[0]} counts a GPU that waits in a collective as busy: `{shown(comparison)}` sees neither a"
                " straggler nor a hang",
                "ask for work that is done: run:training_mfu:ratio_rate1m, rank:gpu_tensor_active:ratio_avg1m, or how"
                " long a step takes: run:training_step_seconds:rate1m",
            )  # fmt: skip


def always_true(rule: Rule) -> Iterator[Finding]:
    """A value and the extreme of a window that has it in it."""
    for node in comparisons(rule.expr):
        yield from _against_extreme(rule, node, node.lhs, operator(node), node.rhs)
        yield from _against_extreme(rule, node, node.rhs, MIRRORED[operator(node)], node.lhs)


def _against_extreme(rule: Rule, node: BinaryExpr, value: Expr, sign: str, bound: Expr) -> Iterator[Finding]:
    factor, value, bound = _proportion(value, bound)
    if not isinstance(bound, Call) or bound.func.name not in EXTREMES or _windowed(bound) != text(value):
        return
    least = bound.func.name == "min_over_time"
    if sign[0] not in "<>" or (factor > 1 if least else factor < 1):
        return
    if sign[0] == EXTREMES[bound.func.name]:
        yield _by_construction(rule, node, value, bound, "always")
    elif factor != 1 or sign in ("<", ">"):  # x <= min_over_time(x[1h]) asks whether it has never been as low
        yield _by_construction(rule, node, value, bound, "never")


def _proportion(value: Expr, bound: Expr) -> tuple[float, Expr, Expr]:
    """``2 * x`` against ``y / 3``: by how much, x and y, without an aggregation that is the same on both sides."""
    value, bound = _without_equal_aggregation(value, bound)
    ours, value = _factored(value)
    theirs, bound = _factored(bound)
    return theirs / ours, *_without_equal_aggregation(value, bound)


def _by_construction(rule: Rule, node: BinaryExpr, value: Expr, bound: Call, word: str) -> Finding:
    least = bound.func.name == "min_over_time"
    earlier = "end the window before now: `[…] offset 5m`"
    room = f"leave room: {operand(value)} {'> 1.5' if least else '< 0.7'} * {text(bound)}, or "
    return rule.found(
        "error", f"{word}-true",
        f"`{shown(node)}` is {word} true by construction: the window holds the present value, which is never"
        f" {'below the least' if least else 'above the greatest'} of them",
        room + earlier if word == "always" else earlier,
    )  # fmt: skip


def _factored(expr: Expr) -> tuple[float, Expr]:
    """A positive number, and what it multiplies."""
    expr = bare(expr)
    if isinstance(expr, BinaryExpr) and operator(expr) in "*/":
        left, right = number(expr.lhs), number(expr.rhs)
        if right is not None and right > 0:
            return (right if operator(expr) == "*" else 1 / right), bare(expr.lhs)
        if left is not None and left > 0 and operator(expr) == "*":
            return left, bare(expr.rhs)
    return 1.0, expr


def _without_equal_aggregation(one: Expr, other: Expr) -> tuple[Expr, Expr]:
    """``max by (run) (x)`` against ``max by (run) (y)`` is x against y."""
    one, other = bare(one), bare(other)
    if isinstance(one, AggregateExpr) and isinstance(other, AggregateExpr) and _head(one) == _head(other):
        return bare(one.expr), bare(other.expr)
    return one, other


def _head(node: AggregateExpr) -> tuple[str, str, str]:
    return operator(node), str(node.modifier), str(node.param)


def _windowed(call: Call) -> str | None:
    """Whose extreme it is, if the window ends now."""
    ranged = call.args[0]
    if isinstance(ranged, MatrixSelector):
        return text(ranged.vector_selector)
    return (
        text(ranged.expr) if isinstance(ranged, SubqueryExpr) and ranged.offset is None and ranged.at is None else None
    )


def unconditional(rule: Rule) -> Iterator[Finding]:
    """An alert fires for every series that its expression gives, whatever the value: 0 fires, too."""
    if not rule.alert or any(_may_be_silent(rule, node) for node in rule.walk(rule.expr)):
        return
    top = bare(rule.expr)
    if isinstance(top, BinaryExpr) and is_comparison(top):
        yield rule.found(
            "error", "always-true",
            f"`{shown(top)}` gives 0 or 1 for every series, and an alert fires for both",
            f"without bool: {operand(top.lhs)} {operator(top)} {operand(top.rhs)}",
        )  # fmt: skip
    else:
        yield rule.found(
            "error", "always-true",
            f"`{shown(top)}` compares nothing: an alert fires for every series, whatever its value",
            f"{operand(top)} > 0.5, with a threshold of yours",
        )  # fmt: skip


def _may_be_silent(rule: Rule, node: Expr) -> bool:
    match node:
        case VectorSelector():
            family = rule.known.get(name_of(node) or "")
            # A recorded one may have a condition of its own; the file's own are looked into.
            return family is None or (family.kind == "recorded" and family.conditional and family.name not in rule.own)
        case Call():
            return node.func.name in ("absent", "absent_over_time")
        case BinaryExpr() if is_comparison(node):
            return not returns_bool(node)
        case BinaryExpr():
            return operator(node) in ("and", "unless")
    return False
