"""Walking the syntax tree of a PromQL expression."""

from __future__ import annotations

from collections.abc import Iterator

from promql_parser import (
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    MatchOp,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    SubqueryExpr,
    UnaryExpr,
    ValueType,
    VectorSelector,
)

COMPARISONS = {">", ">=", "<", "<=", "==", "!="}
SET_OPERATORS = {"and", "or", "unless"}
MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "==": "==", "!=": "!="}
SHOWN_CHARACTERS = 90


def children(node: Expr) -> list[Expr]:
    match node:
        case BinaryExpr():
            return [node.lhs, node.rhs]
        case Call():
            return list(node.args)
        case AggregateExpr() | ParenExpr() | UnaryExpr() | SubqueryExpr():
            return [node.expr]
        case MatrixSelector():
            return [node.vector_selector]
    return []


def walk(node: Expr) -> Iterator[Expr]:
    """The node and all below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def selectors(node: Expr) -> Iterator[VectorSelector]:
    return (found for found in walk(node) if isinstance(found, VectorSelector))


def name_of(selector: VectorSelector) -> str | None:
    """The metric that is selected; None where a pattern chooses among several."""
    if selector.name:
        return selector.name
    named = (m.value for m in selector.matchers.matchers if m.name == "__name__" and m.op == MatchOp.Equal)
    return next(named, None)


def names(node: Expr) -> set[str | None]:
    return {name_of(selector) for selector in selectors(node)}


def bare(node: Expr) -> Expr:
    """Without the parentheses around it."""
    while isinstance(node, ParenExpr):
        node = node.expr
    return node


def text(node: Expr) -> str:
    """As PromQL, in one line."""
    return " ".join(bare(node).prettify().split()).replace("( ", "(").replace(" )", ")")


def shown(node: Expr) -> str:
    """The same, short enough for a message."""
    whole = text(node)
    return whole if len(whole) <= SHOWN_CHARACTERS else whole[: SHOWN_CHARACTERS - 1] + "…"


def operand(node: Expr) -> str:
    """As PromQL that an operator may stand next to."""
    return f"({text(node)})" if isinstance(bare(node), BinaryExpr) else text(node)


def operator(node: BinaryExpr | AggregateExpr) -> str:
    return str(node.op)


def is_comparison(node: Expr) -> bool:
    return isinstance(node, BinaryExpr) and operator(node) in COMPARISONS


def returns_bool(node: BinaryExpr) -> bool:
    return node.modifier is not None and node.modifier.return_bool


def comparisons(node: Expr) -> Iterator[BinaryExpr]:
    return (found for found in walk(node) if isinstance(found, BinaryExpr) and is_comparison(found))


def is_scalar(node: Expr) -> bool:
    match node:
        case NumberLiteral():
            return True
        case Call():
            return bool(node.func.return_type == ValueType.Scalar)
        case ParenExpr() | UnaryExpr():
            return is_scalar(node.expr)
        case BinaryExpr():
            return is_scalar(node.lhs) and is_scalar(node.rhs)
    return False


def number(node: Expr) -> float | None:
    """The value of a number as it is written."""
    node = bare(node)
    if isinstance(node, UnaryExpr):
        value = number(node.expr)
        return None if value is None else -value
    return float(node.val) if isinstance(node, NumberLiteral) else None


def arguments(node: Call) -> list[Expr]:
    """Those that are series, not numbers or strings."""
    return [arg for arg, kind in zip(node.args, _kinds(node), strict=False) if kind != ValueType.String]


def _kinds(node: Call) -> list[ValueType]:
    kinds = list(node.func.arg_types)
    return kinds + kinds[-1:] * max(0, len(node.args) - len(kinds))


def subjects(node: Expr) -> Iterator[BinaryExpr]:
    """The comparisons that an alert fires on, without the conditions that ``and`` and ``unless`` add."""
    match node:
        case BinaryExpr() if is_comparison(node):
            yield node
        case BinaryExpr() if operator(node) in ("and", "unless"):
            yield from subjects(node.lhs)
        case _:
            for child in children(node):
                yield from subjects(child)
