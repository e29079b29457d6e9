"""Helpers that write Grafana panels as classic dashboard JSON. To add a kind of panel: add a function.

Every panel has a title, a description that says how to read it, and a unit; colours mean the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

PHASE_COLOURS = {
    # Okabe and Ito's palette, safe for the colour-blind; the console uses the same.
    "data_wait": "#E69F00",
    "h2d": "#CC79A7",
    "forward": "#009E73",
    "backward": "#66C9A3",
    "allreduce": "#0072B2",
    "optimizer": "#56B4E9",
    "checkpoint": "#F0E442",
    "other": "#999999",
}
UTILIZATION, MFU = "#7EB6FF", "#FF7F3F"
GOOD, WARN, BAD, PLAIN = "#009E73", "#E69F00", "#F2495C", "text"


def target(expr: str, legend: str = "", *, instant: bool = False, table: bool = False) -> Json:
    """One query. Instant queries ask for the end of the time range only."""
    return {
        "datasource": DATASOURCE,
        "expr": expr,
        "legendFormat": legend or "__auto",
        "instant": instant,
        "range": not instant,
        "format": "table" if table else "time_series",
        "refId": "A",
    }


def steps(*thresholds: tuple[float | None, str]) -> Json:
    """Thresholds from the lowest (None) up: value from which the colour holds."""
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in thresholds]}


def named(name: str, **properties: Any) -> Json:
    """An override for the series of that name; properties are written with ``__`` for a dot."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()],
    }


def coloured(names: Mapping[str, str]) -> list[Json]:
    """Overrides that give each named series its fixed colour."""
    return [named(name, color={"mode": "fixed", "fixedColor": colour}) for name, colour in names.items()]


def panel(
    kind: str,
    title: str,
    description: str,
    targets: Sequence[Json],
    *,
    unit: str,
    options: Json,
    custom: Json | None = None,
    links: Sequence[Json] = (),
    overrides: Sequence[Json] = (),
    **defaults: Any,
) -> Json:
    """A panel of any kind; ``defaults`` go to its field configuration."""
    queries = [{**query, "refId": chr(ord("A") + index)} for index, query in enumerate(targets)]
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "targets": queries,
        "options": options,
        "fieldConfig": {
            "defaults": {"unit": unit, "custom": custom or {}, "links": list(links), **defaults},
            "overrides": list(overrides),
        },
    }


def timeseries(title: str, description: str, *targets: Json, unit: str, stacked: bool = False, **more: Any) -> Json:
    custom = {
        "lineWidth": 1 if stacked else 2,
        "fillOpacity": 80 if stacked else 0,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "showPoints": "never",
        "spanNulls": 60_000,
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, description, targets, unit=unit, custom=custom, options=options, **more)


def stat(
    title: str, description: str, *targets: Json, unit: str, text: str = "value", size: int | None = None, **more: Any
) -> Json:
    """One number, with its trend; ``text="name"`` shows the series' name instead."""
    options = {
        "colorMode": "value",
        "graphMode": "area" if text == "value" else "none",
        "justifyMode": "center",
        "textMode": text,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "text": {"valueSize": size} if size else {},
    }
    return panel("stat", title, description, targets, unit=unit, options=options, **more)


def bars(title: str, description: str, query: Json, *, unit: str, **more: Any) -> Json:
    """Horizontal bars, one per series."""
    options = {
        "orientation": "horizontal",
        "displayMode": "basic",
        "showUnfilled": True,
        "valueMode": "text",
        "minVizHeight": 12,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return panel("bargauge", title, description, [query], unit=unit, options=options, **more)


def table(title: str, description: str, query: Json, *, unit: str, columns: Mapping[str, str], **more: Any) -> Json:
    """A table of an instant query: ``columns`` names the labels shown, in order, and their headings."""
    transformation = {
        "id": "organize",
        "options": {
            "includeByName": dict.fromkeys(columns, True),
            "indexByName": {name: index for index, name in enumerate(columns)},
            "renameByName": dict(columns),
        },
    }
    only = {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}}
    options = {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}}
    made = panel("table", title, description, [query], unit=unit, options=options, **more)
    return {**made, "transformations": [only, transformation]}


def text(title: str, description: str, markdown: str) -> Json:
    return {
        "type": "text",
        "title": title,
        "description": description,
        "options": {"mode": "markdown", "content": markdown},
    }


def placed(rows: Sequence[tuple[int, Sequence[tuple[int, Json | Sequence[tuple[int, Json]]]]]]) -> list[Json]:
    """Lay panels out. A row is (height, cells); a cell (width, panel), or (width, column) with (height, panel) pairs."""
    laid: list[Json] = []
    y = 0
    for height, cells in rows:
        x = 0
        for width, content in cells:
            column = [(height, content)] if isinstance(content, dict) else content
            top = y
            for tall, one in column:
                laid.append({**one, "id": len(laid) + 1, "gridPos": {"x": x, "y": top, "w": width, "h": tall}})
                top += tall
            x += width
        y += height
    return laid


def variable(kind: str, name: str, label: str, **more: Any) -> Json:
    return {"type": kind, "name": name, "label": label, "hide": 0, "skipUrlSync": False, **more}


def label_variable(name: str, label: str, query: str) -> Json:
    """A variable with the values of a label; it follows the time range."""
    definition = {"query": query, "refId": "StandardVariableQuery"}
    return variable("query", name, label, datasource=DATASOURCE, query=definition, definition=query, refresh=2, sort=7,
                    multi=False, includeAll=False, regex="", options=[], current={})  # fmt: skip


def dashboard(uid: str, title: str, description: str, panels: list[Json], variables: list[Json]) -> Json:
    datasource = variable("datasource", "datasource", "Data source", query="prometheus", regex="", refresh=1,
                          multi=False, includeAll=False, options=[], current={})  # fmt: skip
    faults = {
        "name": "Faults",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": BAD,
        "expr": "lab_fault_active > 0",
        "step": "15s",
        "titleFormat": "{{fault}}",
        "textFormat": "{{target}}, severity {{severity}}",
        "tagKeys": "fault",
    }
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["stepscope"],
        "schemaVersion": 42,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {"refresh_intervals": ["1s", "5s", "10s", "30s", "1m"]},
        "timezone": "browser",
        "templating": {"list": [datasource, *variables]},
        "annotations": {"list": [faults]},
        "links": [],
        "panels": panels,
    }
