"""The rules of Grafana's dashboard-linter (github.com/grafana/dashboard-linter at commit 4d0844b), ported.

``RULES`` has them under their own names; where the linter looks at a few kinds of panel, these look at all. Others differ:

- template-job-rule and template-instance-rule are left out: a viewer chooses a run; job and instance only tell which
  exporter a series came from.
- target-job-rule and target-instance-rule became target-run-rule: who asks for series of a run says of which.
- target-logql-rule and target-logql-auto-rule are left out: template-datasource-rule asserts that all is Prometheus.
- target-rate-interval-rule also takes a fixed window of four scrapes or more: next to a recorded series, a graph must look
  through the recording rule's window.
- target-counter-agg-rule takes from the metric tables what is a counter; elsewhere the name's ending tells. What counts
  series, samples or resets may read counters too. target-counter-rate-rule, not the linter's, is the reverse; nor is
  target-known-series-rule.
- panel-units-rule takes the units of grafana-foundation-sdk, for the linter's list has aged, and Grafana's custom ones.
"""

import re
from datetime import timedelta

import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.models import units

from dashboard_files import DASHBOARDS
from queries import panels_of, substituted
from running_lab import ROOT
from stepscope.collectors import COLLECTORS
from stepscope.metrics import REFEREE, TRAINING
from stepsim.diagnoser import DIAGNOSIS
from stepsim.practice.live.result import PRACTICE
from stepsim.practice.live.rules import LOADED
from stepsim.probes import DCGM, NODE_EXPORTER
from stepsim.truth import TRUTH

WITHOUT_QUERIES = {"text", "row", "canvas", "dashlist"}
UNITS = {unit for name, unit in vars(units).items() if isinstance(unit, str) and not name.startswith("_")}
UNIT_OF_ONES_OWN = re.compile(r"(suffix|prefix|time|si|count|currency):.+")
RATES = {"rate", "irate", "increase"}
READ_NO_VALUE = {"resets", "changes", "count_over_time", "present_over_time", "absent_over_time", "absent"}
FOUR_SCRAPES = timedelta(seconds=20)
COUNTER_ENDINGS = ("_total", "_bucket", "_sum", "_count")
KINDS = {
    metric.name: metric.kind
    for table in (TRAINING, REFEREE, COLLECTORS, TRUTH, PRACTICE, DIAGNOSIS, DCGM, NODE_EXPORTER)
    for metric in table
}
RULES_FILE = yaml.safe_load((ROOT / "prometheus/rules/recording.yml").read_text(encoding="utf-8"))
RECORDED = {rule["record"] for group in RULES_FILE["groups"] for rule in group["rules"]}
OF_PROMETHEUS = {
    "ALERTS", "up", "scrape_duration_seconds", "scrape_samples_scraped", "prometheus_tsdb_head_series",
    "prometheus_rule_group_last_duration_seconds", LOADED,
}  # fmt: skip
OF_A_RUN = {metric.name for table in (TRAINING, REFEREE, DIAGNOSIS) for metric in table}


def template_datasource(dashboard):
    """template-datasource-rule: one variable chooses the Prometheus data source."""
    sources = [variable for variable in dashboard["templating"]["list"] if variable["type"] == "datasource"]
    if len(sources) != 1:
        return [f"{len(sources)} data source variables"]
    expected = {"query": "prometheus", "name": "datasource", "label": "Data source"}
    return [f"{key} is not {value}" for key, value in expected.items() if sources[0].get(key) != value]


def template_label_promql(dashboard):
    """template-label-promql-rule: a query variable asks a function that exists for series that parse."""
    found = []
    for variable in query_variables(dashboard):
        asked = variable["query"]["query"] if isinstance(variable["query"], dict) else variable["query"]
        call = re.fullmatch(r"(label_names|label_values|metrics|query_result)\((.*)\)", asked)
        if not call:
            found.append(f"{variable['name']}: no such function: {asked}")
        elif call[1] == "query_result" or (call[1] == "label_values" and "," in call[2]):
            series = call[2] if call[1] == "query_result" else call[2].rpartition(",")[0]
            found += [f"{variable['name']}: {error}" for error in [parse_error(series)] if error]
    return found


def template_on_time_change_reload(dashboard):
    """template-on-time-change-reload-rule: query variables follow the time range."""
    return [variable["name"] for variable in query_variables(dashboard) if variable.get("refresh") != 2]


def panel_datasource(dashboard):
    """panel-datasource-rule: every panel and query asks the data source that the variable chooses."""
    return [
        f"{panel['title']}: {asker.get('datasource')}"
        for panel in panels_of(dashboard)
        if panel["type"] not in WITHOUT_QUERIES
        for asker in (panel, *panel.get("targets", []))
        if (asker.get("datasource") or {}).get("uid") not in ("$datasource", "${datasource}")
    ]


def panel_title_description(dashboard):
    """panel-title-description-rule: every panel has a title and a description."""
    return [str(panel["id"]) for panel in panels_of(dashboard) if not (panel.get("title") and panel.get("description"))]


def panel_units(dashboard):
    """panel-units-rule: every number has a unit that Grafana knows, unless it is shown in words."""
    found = []
    for panel in panels_of(dashboard):
        config = panel.get("fieldConfig", {"defaults": {}, "overrides": []})
        properties = [item for override in config["overrides"] for item in override["properties"]]
        in_words = config["defaults"].get("mappings") or any(item["id"] == "mappings" for item in properties)
        not_numeric = panel.get("options", {}).get("reduceOptions", {}).get("fields")
        if panel["type"] in WITHOUT_QUERIES or in_words or not_numeric:
            continue
        used = [config["defaults"].get("unit"), *(item["value"] for item in properties if item["id"] == "unit")]
        unknown = [unit for unit in used if unit not in UNITS and not UNIT_OF_ONES_OWN.fullmatch(unit or "")]
        found += [f"{panel['title']}: {unit}" for unit in unknown]
    return found


def panel_no_targets(dashboard):
    """panel-no-targets-rule: every panel that shows data asks for some."""
    return [p["title"] for p in panels_of(dashboard) if p["type"] not in WITHOUT_QUERIES and not p.get("targets")]


def target_promql(dashboard):
    """target-promql-rule: every query parses, or shows the data of a panel that exists."""
    ids = {panel["id"] for panel in panels_of(dashboard)}
    found = []
    for panel in panels_of(dashboard):
        for target in panel.get("targets", []):
            if not target.get("expr"):
                found += [] if target.get("panelId") in ids else [f"{panel['title']}: no query, no panel"]
            elif error := parse_error(target["expr"]):
                found.append(f"{panel['title']}: {error}")
    return found


def target_rate_interval(dashboard):
    """target-rate-interval-rule: a rate looks back over $__rate_interval, or four scrapes at the least."""
    return [
        f"{title}: {node}"
        for title, expr in parsed(dashboard)
        for node, _ in visited(expr)
        if isinstance(node, promql_parser.Call)
        and node.func.name in RATES
        and any(getattr(arg, "range", FOUR_SCRAPES) < FOUR_SCRAPES for arg in node.args)
    ]


OF_A_HOST = "node:node_cpu:share_rate1m"
"""Recorded, but a host does not know whose run is on it."""


def target_run(dashboard):
    """target-run-rule: whatever asks for series of a run says of which."""
    return [
        f"{title}: {node}"
        for title, expr in parsed(dashboard, run="THE-RUN")
        for node, _ in visited(expr)
        if isinstance(node, promql_parser.VectorSelector)
        and (":" in name_of(node).removeprefix(OF_A_HOST) or family(name_of(node)) in OF_A_RUN)
        and not any(map(chooses_the_run, node.matchers.matchers))
    ]


def chooses_the_run(matcher):
    positive = matcher.op in (promql_parser.MatchOp.Equal, promql_parser.MatchOp.Re)
    return positive and matcher.name == "run" and matcher.value == "THE-RUN"


def target_counter_agg(dashboard):
    """target-counter-agg-rule: a counter's value is read through rate, irate or increase alone."""
    return [
        f"{title}: {node}"
        for title, expr in parsed(dashboard)
        for node, parents in visited(expr)
        if isinstance(node, promql_parser.VectorSelector) and is_counter(name_of(node)) and not read_as_counter(parents)
    ]


def target_counter_rate(dashboard):
    """target-counter-rate-rule: rate, irate and increase are asked of counters alone."""
    return [
        f"{title}: {node}"
        for title, expr in parsed(dashboard)
        for node, _ in visited(expr)
        if isinstance(node, promql_parser.Call) and node.func.name in RATES
        for arg in node.args
        if not isinstance(arg, promql_parser.MatrixSelector) or not is_counter(name_of(arg.vector_selector))
    ]


def target_known_series(dashboard):
    """target-known-series-rule: every name is one that something publishes or records."""
    return [
        f"{title}: {node}"
        for title, expr in parsed(dashboard)
        for node, _ in visited(expr)
        if isinstance(node, promql_parser.VectorSelector)
        and family(name_of(node)) not in KINDS.keys() | RECORDED | OF_PROMETHEUS
    ]


def uneditable(dashboard):
    """uneditable-dashboard: what is provisioned from a file cannot be saved."""
    return [] if dashboard.get("editable") is False else ["editable"]


RULES = {
    "template-datasource-rule": template_datasource,
    "template-label-promql-rule": template_label_promql,
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "panel-no-targets-rule": panel_no_targets,
    "target-promql-rule": target_promql,
    "target-rate-interval-rule": target_rate_interval,
    "target-run-rule": target_run,
    "target-counter-agg-rule": target_counter_agg,
    "target-counter-rate-rule": target_counter_rate,
    "target-known-series-rule": target_known_series,
    "uneditable-dashboard": uneditable,
}
"""Each returns what it objects to."""


def query_variables(dashboard):
    return [variable for variable in dashboard["templating"]["list"] if variable["type"] == "query"]


def parse_error(expr):
    try:
        promql_parser.parse(substituted(expr))
    except ValueError as error:
        return str(error)
    return None


def parsed(dashboard, **variables):
    """Title and syntax tree of every query; one that does not parse is target-promql-rule's."""
    for panel in panels_of(dashboard):
        for target in panel.get("targets", []):
            if target.get("expr") and not parse_error(target["expr"]):
                yield panel["title"], promql_parser.parse(substituted(target["expr"], **variables))


def visited(expr):
    """Every node with those around it, the nearest last."""
    around, found = [], []

    def enter(node):
        found.append((node, tuple(around)))
        around.append(node)

    def leave(node):
        around.pop()

    promql_parser.walk(expr, enter, leave)
    return found


def name_of(selector):
    named = [matcher.value for matcher in selector.matchers.matchers if matcher.name == "__name__"]
    return selector.name or (named[0] if named else "")


def family(name):
    """A histogram's series bear its name with an ending."""
    stem = re.sub(r"_(bucket|sum|count)$", "", name)
    return stem if KINDS.get(stem) == "histogram" else name


def is_counter(name):
    kind = KINDS.get(family(name))
    if kind:
        return kind != "gauge"
    return ":" not in name and name.endswith(COUNTER_ENDINGS)


def read_as_counter(parents):
    """By a function over a window of it, or by what reads no value."""
    around = [node for node in parents if not isinstance(node, promql_parser.ParenExpr)]
    if around and isinstance(around[-1], promql_parser.MatrixSelector):
        return len(around) > 1 and getattr(around[-2], "func", None) and around[-2].func.name in RATES | READ_NO_VALUE
    outer = around[-1] if around else None
    if isinstance(outer, promql_parser.AggregateExpr):
        return str(outer.op) in ("count", "group")
    return isinstance(outer, promql_parser.Call) and outer.func.name in READ_NO_VALUE


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_dashboard_obeys_a_rule(dashboard, rule):
    """No objection."""
    assert rule(dashboard) == []


def sound(expr='rate(training_steps_total{run="$run"}[$__rate_interval])', **panel):
    """A dashboard of one panel that obeys every rule, but for what is given."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    defaults = {
        "id": 1,
        "type": "timeseries",
        "title": "Steps",
        "description": "Steps per second.",
        "datasource": source,
        "targets": [{"expr": expr, "datasource": source, "refId": "A"}],
        "fieldConfig": {"defaults": {"unit": "ops"}, "overrides": []},
    }
    return {
        "editable": False,
        "templating": {
            "list": [
                {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
                {"type": "query", "name": "run", "query": "label_values(training_steps_total, run)", "refresh": 2},
            ]
        },
        "panels": [{**defaults, **panel}],
    }


def with_source(**changed):
    source, run = sound()["templating"]["list"]
    return {**sound(), "templating": {"list": [{**source, **changed}, run]}}


def with_run(**changed):
    source, run = sound()["templating"]["list"]
    return {**sound(), "templating": {"list": [source, {**run, **changed}]}}


def unit(name, **overridden):
    override = [{"matcher": {}, "properties": [{"id": key, "value": value}]} for key, value in overridden.items()]
    return sound(fieldConfig={"defaults": {"unit": name}, "overrides": override})


ACCEPTED = {
    "a sound panel": sound(),
    "a panel in a row": {**sound(), "panels": [{"type": "row", "title": "More", "panels": sound()["panels"]}]},
    "a text": sound(type="text", targets=[], datasource=None, fieldConfig={"defaults": {}, "overrides": []}),
    "a unit of one's own": unit("suffix: GPUs"),
    "numbers shown in words": unit(None, mappings=[{"type": "value", "options": {}}]),
    "a recording rule's window": sound('sum(rate(training_step_duration_seconds_bucket{run="$run"}[1m]))'),
    "the whole range": sound('increase(training_nonfinite_steps_total{run="$run"}[$__range])'),
    "a recorded series": sound('run:training_mfu:ratio_rate1m{run="$run"}'),
    "several runs": sound('training_loss{run=~"${run:regex}"}'),
    "a count of series": sound('count by (node) (training_steps_total{run="$run"})'),
    "a counter without a counter's name": sound("rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[$__rate_interval])"),
    "data of another panel": sound(targets=[{"panelId": 1, "datasource": {"uid": "$datasource"}, "refId": "A"}]),
}
BROKEN = [
    ("template-datasource-rule", "two data sources", {"templating": {"list": 2 * sound()["templating"]["list"][:1]}}),
    ("template-datasource-rule", "another kind", with_source(query="loki")),
    ("template-datasource-rule", "another name", with_source(name="ds")),
    ("template-label-promql-rule", "no function", with_run(query="training_steps_total")),
    ("template-label-promql-rule", "no PromQL", with_run(query="label_values(up{, run)")),
    ("template-on-time-change-reload-rule", "on load", with_run(refresh=1)),
    ("panel-datasource-rule", "fixed", sound(datasource={"type": "prometheus", "uid": "prometheus"})),
    ("panel-datasource-rule", "default of a query", sound(targets=[{"expr": "up", "refId": "A"}])),
    ("panel-title-description-rule", "no title", sound(title="")),
    ("panel-title-description-rule", "no description", sound(description="")),
    ("panel-units-rule", "none", unit(None)),
    ("panel-units-rule", "unknown", unit("seconds")),
    ("panel-units-rule", "unknown in an override", unit("s", unit="percentage")),
    ("panel-no-targets-rule", "none", sound(targets=[])),
    ("target-promql-rule", "no PromQL", sound("rate(training_steps_total[)")),
    ("target-promql-rule", "no query", sound("")),
    ("target-promql-rule", "a panel that is not there", sound(targets=[{"panelId": 9, "refId": "A"}])),
    ("target-rate-interval-rule", "two scrapes", sound("rate(training_steps_total[10s])")),
    ("target-rate-interval-rule", "one point", sound("sum(increase(training_steps_total[$__interval]))")),
    ("target-run-rule", "every run's", sound("training_loss")),
    ("target-run-rule", "one fixed run's", sound('training_loss{run="cluster"}')),
    ("target-run-rule", "every other run's", sound('training_loss{run!="$run"}')),
    ("target-run-rule", "recorded", sound("run:training_mfu:ratio_rate1m")),
    ("target-run-rule", "one side", sound('training_loss{run="$run"} / on (run) training_gradient_norm')),
    ("target-run-rule", "a histogram's", sound("rate(training_step_duration_seconds_bucket[1m])")),
    ("target-counter-agg-rule", "raw", sound("training_steps_total")),
    ("target-counter-agg-rule", "summed", sound("sum by (node) (training_steps_total)")),
    ("target-counter-agg-rule", "compared", sound("training_nonfinite_steps_total > 0")),
    ("target-counter-agg-rule", "averaged", sound("avg_over_time(training_steps_total[1m])")),
    ("target-counter-agg-rule", "by a matcher", sound('{__name__="training_steps_total"}')),
    ("target-counter-agg-rule", "without the ending", sound("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")),
    ("target-counter-rate-rule", "a gauge's", sound("rate(training_loss[1m])")),
    ("target-counter-rate-rule", "a rate's", sound("rate(run:training_mfu:ratio_rate1m[1m])")),
    ("target-counter-rate-rule", "a sum's", sound("rate(sum(training_steps_total)[1m:5s])")),
    ("target-known-series-rule", "misspelt", sound('training_los{run="$run"}')),
    ("target-known-series-rule", "no longer recorded", sound('run:training_mfu:ratio{run="$run"}')),
    ("uneditable-dashboard", "editable", {**sound(), "editable": True}),
    ("uneditable-dashboard", "by default", {"panels": []}),
]


@pytest.mark.parametrize("dashboard", ACCEPTED.values(), ids=ACCEPTED)
def test_no_rule_objects_to_what_is_sound(dashboard):
    """What a rule objects to below, it objects to for one reason."""
    assert {name: objections for name, rule in RULES.items() if (objections := rule(dashboard))} == {}


@pytest.mark.parametrize(("name", "mistake", "dashboard"), BROKEN)
def test_a_rule_objects_to_a_mistake(name, mistake, dashboard):
    """The rule that is meant."""
    assert RULES[name](dashboard)


def test_every_rule_is_shown_to_object():
    """No rule without a mistake that it finds."""
    assert {name for name, _, _ in BROKEN} == RULES.keys()
