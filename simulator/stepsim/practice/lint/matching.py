"""Whether the two sides of an operator find each other: label sets that can never be equal, many that meet many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from promql_parser import BinaryExpr, Expr, LabelModifierType, VectorMatchCardinality

from stepsim.practice.lint.labels import on_matching
from stepsim.practice.lint.records import is_conditional
from stepsim.practice.lint.rule import Finding, Rule
from stepsim.practice.lint.series import Shape, Shapes, label_names
from stepsim.practice.lint.tree import SET_OPERATORS, is_scalar, operand, operator, returns_bool, walk

IMPLIED_BY: dict[str, frozenset[str]] = {
    "rank": frozenset({"rank", "UUID", "local_rank", "gpu"}),
    "UUID": frozenset({"UUID", "gpu", "device", "pci_bus_id", "rank", "local_rank"}),
    **{label: frozenset({label}) for label in ("phase", "le", "cpu", "mode", "collective", "kind", "outcome")},
}
"""Labels of which a run has several for sure, and those that leave but one of them."""
OF_THE_SCRAPE = {"job", "instance"}


def never_matches(rule: Rule) -> Iterator[Finding]:
    """No series of one side can ever have the labels of one of the other side's."""
    for node in _matches(rule):
        left, right = rule.shapes(node.lhs), rule.shapes(node.rhs)
        if left and right and not _can_match(on_matching(node, left), on_matching(node, right)):
            effect = "never takes anything away" if operator(node) == "unless" else "never gives anything"
            yield rule.found(
                "error", "never-matches",
                f"`{operator(node)}`{_on(node)} {effect}: the left side's series are {_listed(left)}, the right side's"
                f" {_listed(right)}, and {_wanted(node)} must be equal",
                _matching_instead(node, left, right),
            )  # fmt: skip


def many(rule: Rule) -> Iterator[Finding]:
    """Several series of one side meet one of the other, and nothing says so; or several meet several."""
    for node in _matches(rule):
        if operator(node) in SET_OPERATORS:
            continue
        left, right = _extra(node, rule, node.lhs), _extra(node, rule, node.rhs)
        card = node.modifier.card if node.modifier else VectorMatchCardinality.OneToOne
        if card == VectorMatchCardinality.OneToOne and bool(left) != bool(right):
            yield _one_to_many(rule, node, left) if left else _one_to_many(rule, node, right, mirrored=True)
        elif (
            (left and right)
            or (right and card == VectorMatchCardinality.ManyToOne)
            or (left and card == VectorMatchCardinality.OneToMany)
        ):
            yield _many_to_many(rule, node, right if card != VectorMatchCardinality.OneToMany else left)


def _one_to_many(rule: Rule, node: BinaryExpr, extra: set[str], mirrored: bool = False) -> Finding:
    group = "group_right ()" if mirrored else "group_left ()"
    side = "right" if mirrored else "left"
    return rule.found(
        "error", "many-to-one",
        f"`{operator(node)}`{_on(node)} fails: the {side} side has several series for one of the other side's, by"
        f" {_words(extra)}",
        f"{operand(node.lhs)} {operator(node)}{_on(node)} {group} {operand(node.rhs)}",
    )  # fmt: skip


def _many_to_many(rule: Rule, node: BinaryExpr, extra: set[str]) -> Finding:
    matching = node.modifier.matching if node.modifier else None
    by = ", ".join(matching.labels) if matching and matching.type == LabelModifierType.Include else "…"
    return rule.found(
        "error", "many-to-many",
        f"`{operator(node)}`{_on(node)} fails: both sides have several series with the same labels; they differ by"
        f" {_words(extra)}",
        f"match on {_words(extra)}, too, or leave one series per match on one side: max by ({by}) (…)",
    )  # fmt: skip


def _matches(rule: Rule) -> Iterator[BinaryExpr]:
    """The operators between two vectors that ask for equal labels."""
    for node in walk(rule.expr):
        if (
            isinstance(node, BinaryExpr)
            and operator(node) != "or"
            and not is_scalar(node.lhs)
            and not is_scalar(node.rhs)
        ):
            yield node


def _can_match(left: Shapes, right: Shapes) -> bool:
    return any(_alike(one, other) for one in left or () for other in right or ())


def _alike(one: Shape, other: Shape) -> bool:
    return one.keys() == other.keys() and not _different(one, other)


def _different(one: Shape, other: Shape) -> set[str]:
    """Labels whose values are known on both sides, and are not the same."""
    return {label for label, value in one.items() if value and other.get(label) and value != other[label]}


def _extra(node: BinaryExpr, rule: Rule, side: Expr) -> set[str]:
    """Labels by which several series of a side have the same part that must match; only those that are sure."""
    shapes = rule.shapes(side)
    if not shapes or is_conditional(side, rule.known):
        return set()
    per_shape = [_multiplying(shape, label_names(on_matching(node, (shape,)))) for shape in shapes]
    return set.intersection(*per_shape)


def _multiplying(shape: Shape, matched: Iterable[str]) -> set[str]:
    free = {label for label, value in shape.items() if value is None}
    return {label for label in free if label in IMPLIED_BY and not IMPLIED_BY[label] & set(matched)}


def _matching_instead(node: BinaryExpr, left: Shapes, right: Shapes) -> str:
    """On what both sides have, with the side that has more as the many."""
    ours, theirs = _closest(left, right)
    common = [label for label in ours if label in theirs and label not in OF_THE_SCRAPE | _different(ours, theirs)]
    one, other = (
        {label for label in s if label in IMPLIED_BY and s[label] is None} - set(common) for s in (ours, theirs)
    )
    group = ""
    if operator(node) not in SET_OPERATORS and one and not other:
        group = " group_left ()"
    elif operator(node) not in SET_OPERATORS and other and not one:
        group = " group_right ()"
    bool_ = " bool" if returns_bool(node) else ""
    return f"{operand(node.lhs)} {operator(node)}{bool_} on ({', '.join(common)}){group} {operand(node.rhs)}"


def _closest(left: Shapes, right: Shapes) -> tuple[Shape, Shape]:
    pairs = [(one, other) for one in left or () for other in right or ()]
    return max(pairs, key=lambda pair: len(pair[0].keys() & pair[1].keys()))


def _on(node: BinaryExpr) -> str:
    matching = node.modifier.matching if node.modifier else None
    if matching is None:
        return ""
    word = "on" if matching.type == LabelModifierType.Include else "ignoring"
    return f" {word} ({', '.join(matching.labels)})"


def _wanted(node: BinaryExpr) -> str:
    matching = node.modifier.matching if node.modifier else None
    if matching is None:
        return "all labels"
    named = _words(matching.labels)
    return named if matching.type == LabelModifierType.Include else f"all labels but {named}"


def _words(labels: Iterable[str]) -> str:
    return ", ".join(labels if isinstance(labels, list) else sorted(labels)) or "no labels"


def _listed(shapes: Iterable[Shape]) -> str:
    """As ``{run, phase="other"}``."""
    return " or ".join(
        "{" + ", ".join(label if value is None else f'{label}="{value}"' for label, value in shape.items()) + "}"
        for shape in shapes
    )
