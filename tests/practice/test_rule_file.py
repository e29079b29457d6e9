"""stepsim.practice.rule_file: what is well is read, what is not is refused with its line and what would be right."""

from pathlib import Path

import pytest

from stepsim.practice.rule_file import RuleFileError, check_with_promtool, load_rules

RULES = Path(__file__).parents[2] / "prometheus/rules"
GOOD = """\
groups:
  - name: mine
    rules:
      - record: my:mfu:ratio
        expr: max by (run) (training_mfu_ratio)
        labels: {team: 7}
      - alert: Slow
        expr: my:mfu:ratio < 0.2
        for: 1m30s
        keep_firing_for: 5m
        labels:
          severity: ticket
        annotations: {summary: "{{ $labels.run }}: {{ $value | humanize }}"}
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "rules.yml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_good_file_is_read(written):
    """Every field, with the line where the rule begins."""
    file = load_rules(written(GOOD))
    (alert,), (record,) = file.alerts, file.records
    assert (alert.name, alert.expr, alert.for_seconds, alert.keep_seconds) == ("Slow", "my:mfu:ratio < 0.2", 90, 300)
    assert (alert.labels, alert.line, alert.group) == ({"severity": "ticket"}, 7, "mine")
    assert alert.annotations == {"summary": "{{ $labels.run }}: {{ $value | humanize }}"}
    assert (record.name, record.line, record.labels) == ("my:mfu:ratio", 4, {"team": "7"})
    assert file.text == GOOD


@pytest.mark.parametrize(
    ("severity", "kind"),
    [("page", "page"), ("critical", "page"), ("Critical", "page"), ("ticket", "ticket"), ("warning", "ticket"),
     ("info", "ticket"), ('""', "page")],
)  # fmt: skip
def test_severity_says_whether_an_alert_pages(written, severity, kind):
    """Page and critical page; what else is said is a ticket."""
    (alert,) = load_rules(written(GOOD.replace("severity: ticket", f"severity: {severity}"))).alerts
    assert alert.kind == kind


def test_an_alert_without_severity_pages(written):
    """Who does not say wakes somebody."""
    text = GOOD.replace("        labels:\n          severity: ticket\n", "")
    assert load_rules(written(text)).alerts[0].kind == "page"


BAD = {
    "no YAML": ("alert: Slow\n", "alert: [Slow\n", 8, "not YAML"),
    "unknown key": ("for: 1m30s", "fro: 1m30s", 9, "did you mean `for`?"),
    "unknown key of the file": ("groups:\n", "rules: 1\ngroups:\n", 1, "it may have groups"),
    "group interval": ("- name: mine", "- name: mine\n    interval: 1m", 3, "`interval` has no place here"),
    "no name": ("name: mine", "name: ''", 2, "no `name`"),
    "no expr": ("        expr: my:mfu:ratio < 0.2\n", "", 7, 'alert "Slow" has no `expr`'),
    "rule without a name": ("alert: Slow", "alert:", 7, "no `alert`"),
    "duration": ("1m30s", "1x", 9, "one is like 30s, 5m or 1h30m"),
    "duration without a unit": ("1m30s", "60", 9, "did you mean 60s?"),
    "duration in the wrong order": ("1m30s", "30s1m", 9, "no duration"),
    "fraction": ("1m30s", "1.5m", 9, "no duration"),
    "expression": ("< 0.2", "< < 0.2", 8, 'alert "Slow": its expression does not parse'),
    "unknown function": ("max by (run) (", "maximum(", 5, "unknown function"),
    "scalars": ("my:mfu:ratio < 0.2", "1 < 0.2", 8, "BOOL"),
    "range": ("my:mfu:ratio < 0.2", "'my:mfu:ratio[5m]'", 8, "no instant values"),
    "string": ("my:mfu:ratio < 0.2", "'\"x\"'", 8, "no instant values"),
    "for of a record": ("labels: {team: 7}", "for: 1m", 6, "a recording rule has no `for`"),
    "record's name": ("record: my:mfu:ratio", "record: my-mfu", 4, "no metric name"),
    "label's name": ("severity: ticket", "se-verity: ticket", 12, "no label name"),
    "label's value": ("severity: ticket", "severity: [ticket]", 12, "single text"),
    "twice": ("for: 1m30s", "for: 1m\n        for: 2m", 10, "has `for` twice"),
    "unbalanced": ("$value | humanize }}", "$value | humanize", 13, "each {{ needs its }}"),
    "misspelt variable": ("$labels.run", "$lables.run", 13, "did you mean $labels?"),
    "no list": ("    rules:\n", "    rules: 3\n    x:\n", 4, "no `x`"),
    "group twice": ("groups:\n", "groups:\n  - {name: mine, rules: []}\n", 3, "there twice, first in line 2"),
}


@pytest.mark.parametrize(("old", "new", "line", "words"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_said_with_its_line(written, old, new, line, words):
    """The error names file and line, what is wrong, and what would be right."""
    path = written(GOOD.replace(old, new, 1))
    with pytest.raises(RuleFileError) as raised:
        load_rules(path)
    assert str(raised.value).startswith(f"{path}:{line}: ")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("# nothing yet\n", "the file is empty"),
        ("groups: []\n", "no alert rule"),
        ("groups:\n", "no `groups`"),
        ("- alert: A\n", "the file must be a mapping"),
        ("groups: {name: x}\n", "`groups` must be a list"),
        ("groups: [{name: x, rules: 3}]\n", "must be a list"),
        ("groups: [3]\n", "a group must be a mapping"),
        ("groups: [{name: x, rules: [3]}]\n", "an alert rule must be a mapping"),
        ("groups: [{name: x, rules: [{record: a, expr: b}]}]\n", "no alert rule"),
        ("a: 1\n---\nb: 2\n", "not YAML"),
        ("a: \x07\n", "not YAML"),
    ],
)
def test_what_is_no_file_of_alert_rules_is_refused(written, text, words):
    """Empty, without an alert, or of another form."""
    with pytest.raises(RuleFileError, match=r"rules\.yml:\d") as raised:
        load_rules(written(text))
    assert words in str(raised.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    """No file, a folder and bytes that are no text are refused, not raised through."""
    (tmp_path / "bytes.yml").write_bytes(b"\xff\xfe\x00")
    for path, words in (
        (tmp_path / "none.yml", f"^cannot read {tmp_path}/none.yml: No such file or directory$"),
        (tmp_path, f"^cannot read {tmp_path}: Is a directory$"),
        (tmp_path / "bytes.yml", "cannot be read as text"),
    ):
        with pytest.raises(RuleFileError, match=words):
            load_rules(path)


def test_variables_that_a_template_declares_are_its_own(written):
    """`{{ range $i, $x := … }}` makes two, and a $ in a string makes none."""
    template = '{{ range $i, $x := query `a{b=\\"$c\\"}` }}{{ $x.Value }}{{ $i }}{{ end }}'
    path = written(GOOD.replace("{{ $labels.run }}: {{ $value | humanize }}", template))
    assert "$x.Value" in load_rules(path).alerts[0].annotations["summary"]


def test_zero_is_a_duration(written):
    """As Prometheus has it, without a unit."""
    assert load_rules(written(GOOD.replace("1m30s", "0"))).alerts[0].for_seconds == 0


def test_the_projects_own_alerts_are_read():
    """All alerts of the project, with their lines."""
    path = RULES / "alerts.yml"
    lines = path.read_text(encoding="utf-8").splitlines()
    alerts = load_rules(path).alerts
    assert len(alerts) == sum("- alert:" in line for line in lines)
    assert all(lines[alert.line - 1].strip() == f"- alert: {alert.name}" for alert in alerts)


@pytest.mark.prometheus
def test_promtool_accepts_what_is_well(written):
    """No error for a file that Prometheus would load."""
    check_with_promtool(written(GOOD))
    assert load_rules(written(GOOD)).alerts


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("$value | humanize", "$value | humanise", 7, 'function "humanise" not defined'),
        ("< 0.2", "< 0.2 )", 8, "unexpected right parenthesis"),
        ("for: 1m30s", "fro: 1m30s", 9, "field fro not found"),
    ],
)
def test_promtools_own_words_come_with_the_line(written, old, new, line, words):
    """Also for a template, where promtool names the rule alone."""
    path = written(GOOD.replace(old, new, 1))
    with pytest.raises(RuleFileError) as raised:
        check_with_promtool(path)
    assert str(raised.value).startswith(f"{path}:{line}: ")
    assert words in str(raised.value)


def test_without_promtool_it_says_where_to_get_it(written, monkeypatch):
    """An error, not a pass."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuleFileError, match="apt-get install prometheus"):
        check_with_promtool(written(GOOD))
