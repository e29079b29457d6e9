"""The labels of the series that an expression gives."""

from __future__ import annotations

from collections.abc import Iterable

from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    LabelModifierType,
    MatchOp,
    MatrixSelector,
    ParenExpr,
    StringLiteral,
    SubqueryExpr,
    UnaryExpr,
    VectorMatchCardinality,
    VectorSelector,
)

from stepsim.practice.lint.series import Families, Shape, Shapes
from stepsim.practice.lint.tree import arguments, is_scalar, name_of, operator

WITHOUT_LABELS: Shapes = ({},)
SERIES_KEEPING = {"topk", "bottomk", "limitk", "limit_ratio"}


def shapes_of(expr: Expr, known: Families) -> Shapes:
    match expr:
        case VectorSelector():
            return _selected(expr, known)
        case MatrixSelector():
            return _selected(expr.vector_selector, known)
        case ParenExpr() | UnaryExpr() | SubqueryExpr():
            return shapes_of(expr.expr, known)
        case AggregateExpr():
            return _aggregated(expr, known)
        case Call():
            return _called(expr, known)
        case BinaryExpr():
            return _combined(expr, known)
    return WITHOUT_LABELS


def _selected(selector: VectorSelector, known: Families) -> Shapes:
    family = known.get(name_of(selector) or "")
    if family is None or family.shapes is None:
        return None
    fixed = {m.name: m.value for m in selector.matchers.matchers if m.op == MatchOp.Equal and m.name != "__name__"}
    having = [s for s in family.shapes if all(not value or label in s for label, value in fixed.items())]
    pinned = [
        {**shape, **{label: fixed[label] for label in shape if label in fixed}} for shape in having or family.shapes
    ]
    return tuple({label: value for label, value in shape.items() if value != ""} for shape in pinned)


def _aggregated(expr: AggregateExpr, known: Families) -> Shapes:
    shapes, modifier = shapes_of(expr.expr, known), expr.modifier
    if operator(expr) in SERIES_KEEPING:
        return shapes
    if modifier is None:
        kept: Shapes = WITHOUT_LABELS
    elif modifier.type == AggModifierType.By:
        kept = each(shapes, keep=modifier.labels)
    else:
        kept = each(shapes, drop=modifier.labels)
    counted = operator(expr) == "count_values" and isinstance(expr.param, StringLiteral)
    return _adding(kept, expr.param.val) if counted and expr.param else kept


def _called(expr: Call, known: Families) -> Shapes:
    name, args = expr.func.name, expr.args
    if name in ("absent", "absent_over_time"):
        return _absent(args[0])
    if name == "vector" or is_scalar(expr) or not args:
        return WITHOUT_LABELS
    series = [shapes_of(arg, known) for arg in arguments(expr) if not is_scalar(arg)]
    shapes = series[0] if series else WITHOUT_LABELS
    match name:
        case "histogram_quantile" | "histogram_fraction":
            return each(shapes, drop=["le"])
        case "label_join":
            return _adding(shapes, args[1].val)
        case "label_replace":
            removed = each(shapes, drop=[args[1].val])
            return either(shapes, removed if args[2].val == "" else _adding(removed, args[1].val))
    return shapes


def _absent(arg: Expr) -> Shapes:
    """The labels that the selector itself fixes."""
    selector = arg.vector_selector if isinstance(arg, MatrixSelector) else arg
    if not isinstance(selector, VectorSelector):
        return WITHOUT_LABELS
    fixed = {m.name: m.value for m in selector.matchers.matchers if m.op == MatchOp.Equal and m.value}
    return ({label: value for label, value in fixed.items() if label != "__name__"},)


def _combined(expr: BinaryExpr, known: Families) -> Shapes:
    left, right = shapes_of(expr.lhs, known), shapes_of(expr.rhs, known)
    if is_scalar(expr.lhs) or is_scalar(expr.rhs):
        return right if is_scalar(expr.lhs) else left
    match operator(expr):
        case "and" | "unless":
            return left
        case "or":
            return either(left, right)
    return _matched(expr, left, right)


def _matched(expr: BinaryExpr, left: Shapes, right: Shapes) -> Shapes:
    modifier = expr.modifier
    if modifier is None:
        return left
    if modifier.card == VectorMatchCardinality.ManyToOne:
        return _including(left, right, modifier.group_labels or [])
    if modifier.card == VectorMatchCardinality.OneToMany:
        return _including(right, left, modifier.group_labels or [])
    return on_matching(expr, left)


def on_matching(expr: BinaryExpr, shapes: Shapes) -> Shapes:
    """The part of the labels that must be equal on both sides."""
    matching = expr.modifier.matching if expr.modifier else None
    if matching is None:
        return shapes
    if matching.type == LabelModifierType.Include:
        return each(shapes, keep=matching.labels)
    return each(shapes, drop=matching.labels)


def _including(many: Shapes, one: Shapes, labels: list[str]) -> Shapes:
    """``group_left (labels)``: they are taken from the other side, and are gone where it lacks them."""
    if many is None or (labels and one is None):
        return None
    rest = each(many, drop=labels)
    taken = each(one, keep=labels) if labels else WITHOUT_LABELS
    return _distinct({**shape, **more} for shape in rest or () for more in taken or ())


def each(shapes: Shapes, *, keep: Iterable[str] | None = None, drop: Iterable[str] = ()) -> Shapes:
    if shapes is None:
        return None
    kept, dropped = None if keep is None else set(keep), set(drop)
    return _distinct(
        {label: value for label, value in shape.items() if label not in dropped and (kept is None or label in kept)}
        for shape in shapes
    )


def _adding(shapes: Shapes, label: str) -> Shapes:
    return None if shapes is None else tuple({**shape, label: None} for shape in shapes)


def either(left: Shapes, right: Shapes) -> Shapes:
    return None if left is None or right is None else _distinct((*left, *right))


def _distinct(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    found: list[Shape] = []
    for shape in shapes:
        if shape not in found:
            found.append(shape)
    return tuple(found)
