"""What is wrong with a file of alert rules, and what to write instead, before anything is evaluated.

To add a check: write it beside its like in a module here, and name it in ``CHECKS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import promql_parser

from stepsim.practice.lint.alert import (
    many_alerts,
    missing_for,
    no_severity,
    template_label_not_there,
    value_in_labels,
)
from stepsim.practice.lint.matching import many, never_matches
from stepsim.practice.lint.meaning import always_true, average_hides_rank, unconditional, utilization_counts_waiting
from stepsim.practice.lint.names import label_not_there, unknown_metric
from stepsim.practice.lint.records import with_records
from stepsim.practice.lint.rule import Finding, Rule
from stepsim.practice.lint.series import Definition, Family
from stepsim.practice.lint.values import counter_without_rate, nan_defeats_comparison, rate_of_gauge
from stepsim.practice.rule_file import RuleFile

__all__ = ["Finding", "lint"]

CHECKS: tuple[Callable[[Rule], Iterator[Finding]], ...] = (
    unknown_metric, label_not_there, never_matches, many, always_true, unconditional, rate_of_gauge,
    counter_without_rate, nan_defeats_comparison, average_hides_rank, utilization_counts_waiting, value_in_labels,
    template_label_not_there, no_severity, missing_for, many_alerts,
)  # fmt: skip


def lint(file: RuleFile, known: Mapping[str, Family]) -> list[Finding]:
    """In the order of the file, and each thing once. ``known``: the lab's ``vocabulary``."""
    found = [finding for rule in _rules(file, known) for check in CHECKS for finding in check(rule)]
    return list(dict.fromkeys(found))


def _rules(file: RuleFile, known: Mapping[str, Family]) -> list[Rule]:
    parsed = [promql_parser.parse(record.expr) for record in file.records]
    families = with_records(
        known,
        [Definition(name=r.name, expr=e, labels=r.labels) for r, e in zip(file.records, parsed, strict=True)],
    )
    own = {record.name: expr for record, expr in zip(file.records, parsed, strict=True)}
    rules = [
        Rule(name=record.name, line=record.line, expr=expr, alert=None, known=families, own=own)
        for record, expr in zip(file.records, parsed, strict=True)
    ]
    for alert in file.alerts:
        expr = promql_parser.parse(alert.expr)
        rules.append(Rule(name=alert.name, line=alert.line, expr=expr, alert=alert, known=families, own=own))
    return sorted(rules, key=lambda rule: rule.line)
