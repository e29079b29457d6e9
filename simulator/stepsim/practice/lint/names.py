"""Whether what a rule names is there: metrics, and the labels that it selects and groups by."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from promql_parser import AggModifierType, AggregateExpr, BinaryExpr, LabelModifierType, MatchOp

from stepsim.practice.lint.rule import Finding, Rule
from stepsim.practice.lint.series import label_names
from stepsim.practice.lint.tree import is_scalar, name_of, operator, selectors, shown, text, walk

OF_PROMETHEUS = {"ALERTS", "ALERTS_FOR_STATE"}
"""Written by the rules themselves; their labels are the alerts'."""
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


def unknown_metric(rule: Rule) -> Iterator[Finding]:
    for name in dict.fromkeys(map(name_of, selectors(rule.expr))):
        if name and name not in rule.known and name not in OF_PROMETHEUS:
            message = f"nothing in the lab publishes or records {name}: the expression never gives anything"
            yield rule.found("error", "unknown-metric", message, _known_instead(rule, name))


def _known_instead(rule: Rule, name: str) -> str:
    if f"{name}_bucket" in rule.known:
        return "a histogram's series are " + ", ".join(f"{name}{suffix}" for suffix in HISTOGRAM_SUFFIXES)
    if name.startswith("lab_"):
        return "the truth is not for rules: what shows a fault in a real cluster is in training_*, DCGM_FI_* and node_*"
    near = (
        get_close_matches(name, rule.known, n=3, cutoff=0.6) or [k for k in rule.known if name.lower() in k.lower()][:3]
    )
    return " or ".join(near) if near else "a name that docs/metrics.md or prometheus/rules/recording.yml has"


def label_not_there(rule: Rule) -> Iterator[Finding]:
    yield from _selected(rule)
    yield from _grouped(rule)
    yield from _matched_on(rule)


def _selected(rule: Rule) -> Iterator[Finding]:
    """A matcher that an absent label does not satisfy selects nothing."""
    for selector in selectors(rule.expr):
        family = rule.known.get(name_of(selector) or "")
        if family is None or family.shapes is None:
            continue
        for matcher in selector.matchers.matchers:
            wanted = matcher.op == MatchOp.Equal and matcher.value
            if wanted and matcher.name not in family.labels | {"__name__"}:
                yield rule.found(
                    "error", "label-not-there",
                    f"{family.name} has no label {matcher.name}: {text(selector)} selects nothing",
                    f"its labels are {_listed(family.labels)}",
                )  # fmt: skip


def _grouped(rule: Rule) -> Iterator[Finding]:
    for node in walk(rule.expr):
        shapes = rule.shapes(node.expr) if isinstance(node, AggregateExpr) else None
        if not isinstance(node, AggregateExpr) or not shapes or not node.modifier:
            continue
        for label in sorted({*node.modifier.labels} - label_names(shapes)):
            by = node.modifier.type == AggModifierType.By
            yield rule.found(
                "warning", "label-not-there",
                f"`{operator(node)} {'by' if by else 'without'} (… {label} …)`: {shown(node.expr)} has no label {label}",
                f"its labels are {_listed(label_names(shapes))}",
            )  # fmt: skip


def _matched_on(rule: Rule) -> Iterator[Finding]:
    """A label that neither side has is equal on both. One that a single side lacks is never-matches' affair."""
    for node in walk(rule.expr):
        if not isinstance(node, BinaryExpr) or node.modifier is None or node.modifier.matching is None:
            continue
        left, right = rule.shapes(node.lhs), rule.shapes(node.rhs)
        if left is None or right is None or is_scalar(node.lhs) or is_scalar(node.rhs):
            continue
        both = label_names(left) | label_names(right)
        matching = node.modifier.matching
        if matching.type == LabelModifierType.Include:
            for label in sorted({*matching.labels} - both):
                yield rule.found(
                    "warning", "label-not-there",
                    f"`{operator(node)} on (… {label} …)`: neither side has a label {label}",
                    f"the left side's are {_listed(label_names(left))}, the right side's {_listed(label_names(right))}",
                )  # fmt: skip


def _listed(labels: frozenset[str]) -> str:
    return ", ".join(sorted(labels)) or "none"
