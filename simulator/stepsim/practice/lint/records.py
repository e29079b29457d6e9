"""What recording rules add to what is known: of each the labels, whether it may be NaN, how far it looks back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from promql_parser import AggregateExpr, BinaryExpr, Call, Expr, MatrixSelector, SubqueryExpr, VectorSelector

from stepsim.practice.lint.labels import SERIES_KEEPING, either, shapes_of
from stepsim.practice.lint.series import Definition, Families, Family, Shapes
from stepsim.practice.lint.tree import (
    children,
    comparisons,
    is_comparison,
    name_of,
    names,
    number,
    operator,
    returns_bool,
    text,
    walk,
)

COUNTING = {"count", "group", "count_values"}
WITHOUT_THE_VALUE = {
    "changes", "resets", "timestamp", "absent", "absent_over_time", "count_over_time", "present_over_time",
}  # fmt: skip
NONFINITE = "training_nonfinite_steps_total"
"""Counts NaN: a rule that reads it, too, has thought of them."""


def with_records(known: Families, definitions: Iterable[Definition]) -> dict[str, Family]:
    """``known``, and what the recording rules add, whichever order they are in."""
    families, pending = dict(known), list(definitions)
    while pending:
        waiting = {definition.name for definition in pending}
        ready = [d for d in pending if not (names(d.expr) & waiting) - {d.name}] or pending
        for definition in ready:
            families[definition.name] = _recorded(definition, families)
        pending = [d for d in pending if d not in ready]
    return families


def _recorded(definition: Definition, known: Families) -> Family:
    expr, earlier = definition.expr, known.get(definition.name)
    found = shapes_of(expr, known)
    shapes: Shapes = None if found is None else tuple({**shape, **definition.labels} for shape in found)
    if earlier and earlier.kind == "recorded":  # two rules of the same name, as for two phases
        shapes = either(earlier.shapes, shapes)
    return Family(
        name=definition.name,
        kind="recorded",
        shapes=shapes,
        may_be_nan=bool(nan_families(expr, known)),
        window_seconds=window_seconds(expr, known),
        conditional=is_conditional(expr, known),
    )


def nan_families(expr: Expr, known: Families) -> set[str]:
    """Those whose NaN would be the expression's value. An expression that deals with NaN itself has none."""
    return set() if deals_with_nan(expr) else set(_nan(expr, known)) - _compared_away(expr)


def deals_with_nan(expr: Expr) -> bool:
    """It asks for ``x != x``, or counts steps that were not finite."""
    asked = (c for c in comparisons(expr) if operator(c) == "!=")
    return NONFINITE in names(expr) or any(text(c.lhs) == text(c.rhs) for c in asked)


def _nan(expr: Expr, known: Families) -> Iterator[str]:
    match expr:
        case VectorSelector():
            family = known.get(name_of(expr) or "")
            if family and family.may_be_nan:
                yield family.name
            return
        case Call() if expr.func.name in WITHOUT_THE_VALUE:
            return
        case AggregateExpr() if operator(expr) in COUNTING:
            return
        case BinaryExpr() if is_comparison(expr) and operator(expr) != "!=":
            return  # NaN does not pass
        case BinaryExpr() if operator(expr) in ("and", "unless"):
            yield from _nan(expr.lhs, known)
            return
    for child in children(expr):
        yield from _nan(child, known)


def _compared_away(expr: Expr) -> set[str]:
    """Where ``y > 0`` divides, NaN of y has not come through."""
    inner = (c for c in comparisons(expr) if operator(c) != "!=" and not returns_bool(c))
    return {name for comparison in inner for name in names(comparison.lhs) if name}


def window_seconds(expr: Expr, known: Families) -> float:
    """The longest time that it looks back over."""
    windows = [0.0]
    for node in walk(expr):
        if isinstance(node, MatrixSelector | SubqueryExpr) and node.range:
            windows.append(node.range.total_seconds())
        elif isinstance(node, VectorSelector) and (family := known.get(name_of(node) or "")):
            windows.append(family.window_seconds)
    return max(windows)


def is_conditional(expr: Expr, known: Families) -> bool:
    """Whether some of its series are there at times only. ``> 0`` under a fraction is no condition but care."""
    return any(_is_condition(node, known) for node in walk(expr))


def _is_condition(node: Expr, known: Families) -> bool:
    match node:
        case VectorSelector():
            family = known.get(name_of(node) or "")
            return family is None or family.conditional
        case AggregateExpr():
            return operator(node) in SERIES_KEEPING
        case Call():
            return node.func.name in ("absent", "absent_over_time")
        case BinaryExpr() if is_comparison(node):
            return not returns_bool(node) and number(node.rhs) != 0
        case BinaryExpr():
            return operator(node) in ("and", "unless")
    return False
