"""Every committed dashboard against Grafana's own published types: no key that Grafana does not know, no wrong type.

Dashboards and panels are held against ``@grafana/schema`` of the Grafana that the lab runs, as JSON Schema (see
``schema/README.md``). That package has no queries: these go through the Prometheus model of ``grafana-foundation-sdk``.
Its models of panels are left alone: they are older than Grafana 13.
"""

import copy
import json
import re
from pathlib import Path

import pytest
from grafana_foundation_sdk.models.prometheus import Dataquery, PromQueryFormat
from jsonschema import Draft7Validator
from jsonschema.validators import extend

from dashboard_files import DASHBOARDS
from queries import panels_of
from running_lab import ROOT

(FILE,) = (Path(__file__).parent / "schema").glob("grafana-*.json")
SCHEMA = json.loads(FILE.read_text(encoding="utf-8"))
PANEL = SCHEMA["dashboard"]["properties"]["panels"]["items"]["anyOf"][0]
FIELDS = PANEL["properties"]["fieldConfig"]["properties"]["defaults"]
Validator = extend(Draft7Validator, {"required": lambda *_: ()})
"""What a dashboard leaves out, Grafana fills in."""

NOT_IN_SCHEMA = {
    "templating": {"definition"},  # Grafana's own editor of query variables writes it
    "annotations": {
        *("tagKeys", "titleFormat", "textFormat", "useValueForTime"),  # the Prometheus data source reads them
        "target",  # a query: looked at apart, as a panel's is
    },
}
"""Keys of variables and annotations that Grafana understands though the schema lacks them."""
FIELDS_NOT_IN_SCHEMA = {"state-timeline": {"spanNulls", "insertNulls"}}
"""The same of custom fields: that panel's ``module.tsx`` declares them."""


def faults(dashboard):
    """What Grafana's types object to, with its place."""
    found = objections(SCHEMA["dashboard"], general(dashboard))
    for annotation in dashboard["annotations"]["list"]:
        found += query_faults(annotation.get("target", {}))
    for panel in panels_of(dashboard):
        found += [f"{panel.get('title')}: {fault}" for fault in panel_faults(panel)]
    return found


def general(dashboard):
    less = copy.deepcopy(dashboard)
    for part, keys in NOT_IN_SCHEMA.items():
        for entry in less[part]["list"]:
            for key in keys:
                entry.pop(key, None)
    return less


def panel_faults(panel):
    if panel["type"] not in SCHEMA:
        return [f"no schema for panels of type {panel['type']}: add it to schema.ts"]
    config = panel.get("fieldConfig", {"defaults": {}, "overrides": []})
    own, more = SCHEMA[panel["type"]]["properties"], FIELDS_NOT_IN_SCHEMA.get(panel["type"], ())
    found = objections(own["options"], panel.get("options", {}))
    for fields in (config["defaults"], *map(overridden, config["overrides"])):
        custom = {name: value for name, value in fields.get("custom", {}).items() if name not in more}
        found += objections(own["custom"], custom) + objections(FIELDS, fields)
    for target in panel.get("targets", []):
        found += query_faults(target)
    return found


def overridden(override):
    """What an override sets, in the form of the defaults."""
    values = {item["id"]: item["value"] for item in override["properties"]}
    custom = {name.removeprefix("custom."): value for name, value in values.items() if name.startswith("custom.")}
    return {"custom": custom, **{name: value for name, value in values.items() if not name.startswith("custom.")}}


def query_faults(target):
    """The model keeps the keys that it knows."""
    kept = Dataquery.from_json(target).to_json()
    found = [f"unknown in a query: {key}" for key in target if key not in kept]
    if target.get("format", "table") not in list(PromQueryFormat):
        found.append(f"unknown format: {target['format']}")
    return found


def objections(schema, value):
    return [f"{error.json_path}: {error.message}" for error in Validator(schema).iter_errors(value)]


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_grafana_knows_every_key_and_value(dashboard):
    """The dashboard, its variables and annotations, its panels' options, fields and overrides, its queries."""
    assert faults(dashboard) == []


def test_the_schema_is_that_of_the_grafana_that_the_lab_runs():
    """Minor versions add options."""
    image = re.search(r"^GRAFANA_IMAGE=\S+:(\S+)$", (ROOT / ".env").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert FILE.stem == f"grafana-{image}"


def sound():
    """A dashboard with a bit of everything, and no fault."""
    panel = {
        "type": "timeseries",
        "title": "MFU",
        "options": {"tooltip": {"mode": "multi"}},
        "fieldConfig": {
            "defaults": {"unit": "percentunit", "custom": {"lineWidth": 2, "spanNulls": 60_000}},
            "overrides": [
                {
                    "matcher": {"id": "byName", "options": "MFU"},
                    "properties": [{"id": "custom.fillBelowTo", "value": "a"}, {"id": "decimals", "value": 1}],
                }
            ],
        },
        "targets": [{"expr": "up", "refId": "A", "legendFormat": "{{job}}", "format": "table"}],
    }
    annotation = {
        "name": "Faults",
        "enable": True,
        "iconColor": "red",
        "titleFormat": "{{fault}}",
        "target": {"expr": "up", "refId": "Anno"},
    }
    return {
        "schemaVersion": 42,
        "graphTooltip": 1,
        "templating": {"list": [{"type": "query", "name": "run", "refresh": 2}]},
        "annotations": {"list": [annotation]},
        "panels": [panel],
    }


MISTAKES = {
    "misspelt key of the dashboard": ("graphToolTip", 1),
    "wrong type in the dashboard": ("graphTooltip", "shared"),
    "misspelt key of a variable": ("templating.list.0.referesh", 2),
    "unknown value of a variable": ("templating.list.0.refresh", 3),
    "misspelt key of an annotation": ("annotations.list.0.titelFormat", ""),
    "misspelt key of an annotation's query": ("annotations.list.0.target.exp", "up"),
    "misspelt key of a panel": ("panels.0.desciption", ""),
    "unknown type of panel": ("panels.0.type", "timeserie"),
    "misspelt option": ("panels.0.options.tooltip.mod", "multi"),
    "unknown value of an option": ("panels.0.options.tooltip.mode", "many"),
    "misspelt field setting": ("panels.0.fieldConfig.defaults.uint", "s"),
    "misspelt custom field setting": ("panels.0.fieldConfig.defaults.custom.lineWith", 2),
    "wrong type of a custom field setting": ("panels.0.fieldConfig.defaults.custom.lineWidth", "2"),
    "misspelt override": ("panels.0.fieldConfig.overrides.0.properties.0.id", "custom.fillBelow"),
    "wrong type in an override": ("panels.0.fieldConfig.overrides.0.properties.1.value", "one"),
    "misspelt key of a query": ("panels.0.targets.0.legend", "{{job}}"),
    "unknown format of a query": ("panels.0.targets.0.format", "tabel"),
}
"""What is done to the sound dashboard, and where."""


@pytest.mark.parametrize(("place", "value"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_found(place, value):
    """Each alone, in a dashboard without another fault."""
    dashboard = sound()
    assert faults(dashboard) == []
    *path, last = (int(step) if step.isdigit() else step for step in place.split("."))
    inner = dashboard
    for step in path:
        inner = inner[step]
    inner[last] = value
    assert faults(dashboard)
