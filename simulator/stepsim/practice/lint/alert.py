"""Whether an alert is fit for the person that it wakes: how often, how urgently, with which words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from promql_parser import Call, Expr

from stepsim.practice.lint.records import window_seconds
from stepsim.practice.lint.rule import Finding, Rule
from stepsim.practice.lint.series import label_names
from stepsim.practice.lint.tree import text, walk

STEADY_SECONDS = 60.0
ACTION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
VALUE = re.compile(r"\$value\b|\.Value\b|\bquery\b")
LABEL = re.compile(r"(?:\$labels|\.Labels)\.(\w+)|index\s+(?:\$labels|\.Labels)\s+\"(\w+)\"")
MULTIPLYING = ("le", "cpu", "phase", "mode", "collective", "kind", "outcome", "port", "UUID", "version", "governor")
"""Labels that tell parts of one trouble apart: each part would be an alert of its own."""
JOINED = "* on (UUID) group_left (run, rank, node) gpu:training_rank:info"


SEVERITIES = ("page", "critical", "ticket", "warning", "info", "none")


def missing_for(rule: Rule) -> Iterator[Finding]:
    alert = rule.alert
    if alert is None or alert.for_seconds or window_seconds(rule.expr, rule.known) >= STEADY_SECONDS or _age(rule.expr):
        return
    yield rule.found(
        "advice", "missing-for",
        f"without `for`, and without a window of {STEADY_SECONDS:.0f} s or more, a single scrape fires it",
        "for: 1m, or a value over a window: avg_over_time(…[1m])",
    )  # fmt: skip


def _age(expr: Expr) -> bool:
    """A comparison of an age says for how long by itself."""
    return any(isinstance(node, Call) and node.func.name == "time" for node in walk(expr))


def no_severity(rule: Rule) -> Iterator[Finding]:
    if rule.alert and not rule.alert.labels.get("severity"):
        yield rule.found(
            "warning", "no-severity",
            "without a label `severity` the alert counts as a page",
            "labels: {severity: page}, or ticket for what can wait until the morning",
        )  # fmt: skip
    elif rule.alert and rule.alert.labels["severity"].lower() not in SEVERITIES:
        yield rule.found(
            "warning", "no-severity",
            f"the severity {rule.alert.labels['severity']!r} is none that is known: the alert counts as a ticket",
            "labels: {severity: page}, or ticket",
        )  # fmt: skip


def value_in_labels(rule: Rule) -> Iterator[Finding]:
    for label, template in rule.alert.labels.items() if rule.alert else ():
        if any(VALUE.search(action) for action in ACTION.findall(template)):
            yield rule.found(
                "error", "value-in-labels",
                f"the label {label} has the value in it: whenever it changes it is another alert, and its `for` begins anew",
                f"move it to an annotation: annotations: {{{label}: '{template}'}}",
            )  # fmt: skip


def template_label_not_there(rule: Rule) -> Iterator[Finding]:
    shapes = rule.shapes(rule.expr)
    if rule.alert is None or shapes is None:
        return
    for where, template in {**rule.alert.annotations, **rule.alert.labels}.items():
        asked = {a or b for action in ACTION.findall(template) for a, b in LABEL.findall(action)}
        for label in sorted(asked - label_names(shapes) - {"__name__"}):
            yield rule.found(
                "warning", "label-not-there",
                f"{where} asks for $labels.{label}, which the expression's result lacks",
                f"it has {', '.join(sorted(label_names(shapes))) or 'none'}; aggregate with by (… {label} …) to keep it",
            )  # fmt: skip


def many_alerts(rule: Rule) -> Iterator[Finding]:
    shapes = rule.shapes(rule.expr)
    if rule.alert is None or shapes is None:
        return
    free = {label for shape in shapes for label, value in shape.items() if value is None}
    multiplying = [label for label in MULTIPLYING if label in free]
    if multiplying:
        yield rule.found(
            "advice", "many-alerts",
            f"the result keeps the label{'s' if len(multiplying) > 1 else ''} {', '.join(multiplying)}: one trouble is one"
            " alert for each of its values",
            _one_alert(rule.expr, free, multiplying),
        )  # fmt: skip


def _one_alert(expr: Expr, free: set[str], multiplying: list[str]) -> str:
    if "UUID" in multiplying and "rank" not in free:
        return f"name the rank: max by (run, rank, node) (x {JOINED}), with x the metric, and then compare"
    kept = [label for label in ("run", "rank", "node") if label in free]
    return f'max by ({", ".join(kept)}) ({text(expr)}), or select one: {{{multiplying[0]}="…"}}'
