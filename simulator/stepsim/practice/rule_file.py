"""A file of alert rules as a person wrote it: read, checked, and refused with the line and what would be right."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeAlias

import promql_parser
import yaml

from stepsim.practice.rule_nodes import Nodes, RuleFileError, is_null, line_of, value_of

__all__ = ["Alert", "Kind", "Record", "RuleFile", "RuleFileError", "check_with_promtool", "kind_of", "load_rules"]

DURATION = re.compile(r"0|(?=\d)(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?")
SECONDS = {"y": 365 * 86400.0, "w": 7 * 86400.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
ALERT_KEYS = ("alert", "expr", "for", "keep_firing_for", "labels", "annotations")
RECORD_KEYS = ("record", "expr", "labels")
NOT_IN_A_DRILL = {
    "interval": "every group is evaluated at the drill's own interval",
    "limit": "a drill counts all alerts",
    "query_offset": "every group is evaluated at the drill's own time",
    "labels": "a group's labels are unknown to Prometheus 2; give them to each rule",
}
ACTION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
DECLARED = re.compile(r"(\$\w+)\s*(?:,\s*(\$\w+)\s*)?:=")
STRINGS = re.compile(r'"(?:\\.|[^"\\])*"|`[^`]*`')
TEMPLATE_VARIABLES = {"$labels", "$value", "$externalLabels", "$externalURL"}
PROMTOOL_SECONDS = 60
PROMTOOL_HEADINGS = ("Checking ", "FAILED", "SUCCESS")


Kind: TypeAlias = Literal["page", "ticket"]


def kind_of(labels: Mapping[str, str]) -> Kind:
    """Whether an alert with these labels wakes somebody. One that does not say wakes."""
    return "page" if labels.get("severity", "").lower() in ("page", "critical", "") else "ticket"


EXHIBIT = "exhibit"
"""An alert with this label is for show: nobody is woken by it, and nothing is graded of it."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    name: str
    expr: str
    for_seconds: float
    keep_seconds: float
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    line: int
    group: str

    @property
    def kind(self) -> Kind:
        return kind_of(self.labels)


@dataclass(frozen=True, kw_only=True)
class Record:
    name: str
    expr: str
    labels: Mapping[str, str]
    line: int
    group: str


@dataclass(frozen=True, kw_only=True)
class RuleFile:
    path: Path
    text: str
    alerts: tuple[Alert, ...]
    records: tuple[Record, ...]

    def exprs(self) -> list[str]:
        """Of all rules."""
        return [*(record.expr for record in self.records), *(alert.expr for alert in self.alerts)]


def load_rules(path: Path) -> RuleFile:
    """Raises ``RuleFileError`` for what is no file of rules with at least one alert."""
    return _Reader(path).file()


class _Reader(Nodes):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._groups: dict[str, int] = {}
        """The line of each."""

    def file(self) -> RuleFile:
        rules = [rule for group in self._listed() for rule in self._group(group)]
        alerts = tuple(rule for rule in rules if isinstance(rule, Alert))
        if not alerts:
            raise self.error(
                1, "the file has no alert rule; one is `- alert: Name` with an `expr`, in a group's `rules`"
            )
        records = tuple(rule for rule in rules if isinstance(rule, Record))
        return RuleFile(path=self.path, text=self.text, alerts=alerts, records=records)

    def _listed(self) -> list[yaml.Node]:
        root = self.root()
        if root is None or is_null(root):
            raise self.error(1, "the file is empty; it begins with `groups:`, a list of groups with `name` and `rules`")
        groups = self.mapping(root, ("groups",), "the file").get("groups")
        if groups is None or is_null(groups):
            raise self.error(line_of(root), "the file has no `groups`; it begins with `groups:`, a list")
        return self.sequence(groups, "`groups`")

    def _group(self, node: yaml.Node) -> Iterator[Alert | Record]:
        for key, why in NOT_IN_A_DRILL.items():
            if isinstance(node, yaml.MappingNode) and (given := value_of(node, key)):
                raise self.error(line_of(given), f"a group's `{key}` has no place here: {why}. Remove it")
        fields = self.mapping(node, ("name", "rules"), "a group")
        name = self.string(fields, "name", "a group", node)
        if name in self._groups:
            raise self.error(
                line_of(node), f'group "{name}" is there twice, first in line {self._groups[name]}; rename one'
            )
        self._groups[name] = line_of(node)
        rules = fields.get("rules")
        for rule in [] if rules is None or is_null(rules) else self.sequence(rules, f'the `rules` of group "{name}"'):
            yield self._rule(rule, name)

    def _rule(self, node: yaml.Node, group: str) -> Alert | Record:
        if isinstance(node, yaml.MappingNode) and value_of(node, "record") and not value_of(node, "alert"):
            return self._record(node, group)
        fields = self.mapping(node, ALERT_KEYS, "an alert rule")
        name = self.string(fields, "alert", "a rule", node)
        what = f'alert "{name}"'
        return Alert(
            name=name,
            expr=self._expression(fields, what, node),
            for_seconds=self._duration(fields, "for", what),
            keep_seconds=self._duration(fields, "keep_firing_for", what),
            labels=self._templates(fields, "labels", what),
            annotations=self._templates(fields, "annotations", what),
            line=line_of(node),
            group=group,
        )

    def _record(self, node: yaml.Node, group: str) -> Record:
        fields = self.mapping(node, RECORD_KEYS, "a recording rule")
        name = self.string(fields, "record", "a rule", node)
        if not METRIC_NAME.fullmatch(name):
            raise self.error(
                line_of(fields["record"]), f'"{name}" is no metric name; one is like run:training_steps:rate5m'
            )
        what = f'record "{name}"'
        expr, labels = self._expression(fields, what, node), self._labels(fields, "labels", what)
        return Record(name=name, expr=expr, labels=labels, line=line_of(node), group=group)

    def _expression(self, fields: Mapping[str, yaml.Node], what: str, node: yaml.Node) -> str:
        expr = self.string(fields, "expr", what, node)
        try:
            parsed = promql_parser.parse(expr)
        except ValueError as error:
            words = f"{what}: its expression does not parse: {error}: {' '.join(expr.split()):.120}"
            raise self.error(line_of(fields["expr"]), words) from None
        if isinstance(parsed, promql_parser.MatrixSelector | promql_parser.SubqueryExpr | promql_parser.StringLiteral):
            words = f"{what}: its expression gives no instant values; take some over the range, as max_over_time(…[5m])"
            raise self.error(line_of(fields["expr"]), words)
        return expr

    def _duration(self, fields: Mapping[str, yaml.Node], key: str, what: str) -> float:
        node = fields.get(key)
        if node is None or is_null(node):
            return 0.0
        written = node.value if isinstance(node, yaml.ScalarNode) else ""
        if not DURATION.fullmatch(written):
            unit = f": did you mean {written}s?" if written.isdigit() else ""
            words = f"{what}: `{key}` is no duration: {written!r}; one is like 30s, 5m or 1h30m{unit}"
            raise self.error(line_of(node), words)
        return sum(float(number) * SECONDS[unit] for number, unit in re.findall(r"(\d+)(ms|[ywdhms])", written))

    def _templates(self, fields: Mapping[str, yaml.Node], key: str, what: str) -> Mapping[str, str]:
        labels = self._labels(fields, key, what)
        for label, template in labels.items():
            if wrong := _template_error(template):
                raise self.error(line_of(fields[key]), f"{what}: {key}, {label}: {wrong}")
        return labels

    def _labels(self, fields: Mapping[str, yaml.Node], key: str, what: str) -> Mapping[str, str]:
        node = fields.get(key)
        if node is None or is_null(node):
            return {}
        items = self.items(node, f"{what}: `{key}`")
        found = {name: self.scalar(value, f"{what}: {key}, {name}") for (name, _), value in items}
        for name in found:
            if not LABEL_NAME.fullmatch(name) or name == "__name__":
                raise self.error(line_of(node), f'{what}: "{name}" is no label name; letters, digits and _ make one')
        return found


def _template_error(template: str) -> str | None:
    """What fails whatever the values are. promtool knows the functions."""
    if template.count("{{") != template.count("}}"):
        return f"{template.count('{{')} of {{{{ but {template.count('}}')} of }}}}; each {{{{ needs its }}}}"
    actions = ACTION.findall(template)
    declared = {name for action in actions for names in DECLARED.findall(action) for name in names}
    used = {name for action in actions for name in re.findall(r"\$[A-Za-z_]\w*", STRINGS.sub("", action))}
    for name in sorted(used - TEMPLATE_VARIABLES - declared):
        near = get_close_matches(name, TEMPLATE_VARIABLES, n=1, cutoff=0.4)
        return f"there is no {name}; " + (f"did you mean {near[0]}?" if near else "there are $labels and $value")
    return None


def check_with_promtool(path: Path) -> None:
    """Prometheus's own opinion: expressions, names and templates. Raises ``RuleFileError`` with its words."""
    promtool = shutil.which("promtool")
    if promtool is None:
        raise RuleFileError("promtool is not on PATH; it comes with Prometheus (Debian: apt-get install prometheus)")
    try:
        ran = subprocess.run(
            [promtool, "check", "rules", str(path)],
            capture_output=True,
            text=True,
            timeout=PROMTOOL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuleFileError(f"promtool cannot check {path}: {error}") from None
    if ran.returncode:
        lines = [line.strip() for line in (ran.stdout + "\n" + ran.stderr).splitlines()]
        said = [
            line
            for line in lines
            if line and not line.startswith(PROMTOOL_HEADINGS) and not line.endswith("unmarshal errors:")
        ]
        raise RuleFileError(
            "\n".join(_located(path, line) for line in said) or f"promtool refuses {path} without a word"
        )


def _located(path: Path, said: str) -> str:
    """promtool's words behind file and line. For a template it names the rule alone."""
    words = said.removeprefix(f"{path}: ")
    if position := re.match(r"(\d+):\d+: ", words):
        return f"{path}:{position[1]}: {words[position.end() :]}"
    if position := re.search(r"\bline (\d+): ", words):
        return f"{path}:{position[1]}: {words[position.end() :]}"
    named = re.match(r'group "(.*?)", rule (\d+), ', words)
    line = _rule_line(path, named[1], int(named[2])) if named else None
    return f"{path}:{line}: {words}" if line else f"{path}: {words}"


def _rule_line(path: Path, group: str, number: int) -> int | None:
    root = Nodes(path).root()
    groups = value_of(root, "groups") if root else None
    for node in groups.value if groups else ():
        name, rules = value_of(node, "name"), value_of(node, "rules")
        if name and name.value == group and rules and number <= len(rules.value):
            return line_of(rules.value[number - 1])
    return None
