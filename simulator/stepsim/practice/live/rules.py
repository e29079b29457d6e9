"""Rules of one's own as the lab's Prometheus is given them: labelled, so that dashboards and grades know them from the lab's."""

from __future__ import annotations

import hashlib
from typing import Any

import yaml

from stepsim.practice.rule_file import Alert, Record, RuleFile

OWN = "practice"
"""The label that alerts of one's own rules carry, with the value ``yes``; the lab's do not."""
LOADED = "lab_practice_rules"
"""Recorded by the installed file: the number of its alerts, labelled with its version."""
MARK = "stepscope practice"
"""The group that records it."""

EMPTY = """\
# Your alert rules, while you practise on the running lab: `stepscope practice live RULES.yml` puts them here, and the
# lab's Prometheus takes them over. As it is committed, and when they are cleared again, the file holds none.
groups: []
"""

HEAD = """\
# Put here by `stepscope practice live`: a copy of your rules, whose alerts got the label practice. It is not the file to
# edit, nor one to commit.
"""


def version_of(rules: RuleFile) -> str:
    return hashlib.sha256(rules.text.encode()).hexdigest()[:12]


def rendered(rules: RuleFile) -> str:
    """The file that Prometheus reads."""
    groups: dict[str, list[dict[str, Any]]] = {}
    every: list[Alert | Record] = [*rules.records, *rules.alerts]
    for rule in sorted(every, key=lambda rule: rule.line):
        groups.setdefault(rule.group, []).append(_alert(rule) if isinstance(rule, Alert) else _record(rule))
    mark = {"record": LOADED, "expr": f"vector({len(rules.alerts)})", "labels": {"version": version_of(rules)}}
    listed = [{"name": name, "rules": listed} for name, listed in groups.items()]
    text: str = yaml.safe_dump({"groups": [{"name": MARK, "rules": [mark]}, *listed]}, sort_keys=False, width=120,
                               allow_unicode=True)  # fmt: skip
    return HEAD + text


def _alert(rule: Alert) -> dict[str, Any]:
    durations = {"for": rule.for_seconds, "keep_firing_for": rule.keep_seconds}
    return {
        "alert": rule.name,
        "expr": rule.expr,
        **{key: f"{1000 * seconds:.0f}ms" for key, seconds in durations.items() if seconds},
        "labels": {**rule.labels, OWN: "yes"},
        **({"annotations": dict(rule.annotations)} if rule.annotations else {}),
    }


def _record(rule: Record) -> dict[str, Any]:
    return {"record": rule.name, "expr": rule.expr, **({"labels": dict(rule.labels)} if rule.labels else {})}
