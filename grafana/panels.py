"""Helpers that write Grafana panels as classic dashboard JSON. To add a kind of panel: add a function.

Every panel has a title, a description that says how to read it, and a unit. What colours mean is in meaning.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meaning import BAD, REFERENCE, Json

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
LINE_GAP_MILLISECONDS = 60_000
"""A line is drawn over a hole up to this long: the preloaded past is sampled every 15 s."""


def target(expr: str, legend: str = "", *, instant: bool = False, table: bool = False, **more: Any) -> Json:
    """One query. Instant queries ask for the end of the time range only; a table is always instant."""
    return {
        "datasource": DATASOURCE,
        "expr": expr,
        "legendFormat": legend or "__auto",
        "instant": instant or table,
        "range": not (instant or table),
        "format": "table" if table else "time_series",
        "refId": "A",
        **more,
    }


def scaled_by(ref: str, name: str) -> Json:
    """A transformation: the query of that letter, whose series has that name, gives the panel's maximum."""
    return {
        "id": "configFromData",
        "options": {"configRefId": ref, "mappings": [{"fieldName": name, "handlerKey": "max"}]},
    }


def rows(expr: str) -> Json:
    """A query whose series are a table's rows."""
    return target(expr, table=True)


def fixed(colour: str) -> Json:
    return {"mode": "fixed", "fixedColor": colour}


def _override(matcher: Json, properties: Mapping[str, Any]) -> Json:
    """Properties are written with ``__`` for a dot."""
    return {"matcher": matcher, "properties": [{"id": k.replace("__", "."), "value": v} for k, v in properties.items()]}


def named(name: str, **properties: Any) -> Json:
    """An override for the series, or the table's column, of that name."""
    return _override({"id": "byName", "options": name}, properties)


def from_query(ref: str, **properties: Any) -> Json:
    """An override for all series of the query of that letter."""
    return _override({"id": "byFrameRefID", "options": ref}, properties)


def matching(pattern: str, **properties: Any) -> Json:
    """An override for all series whose name the regular expression matches."""
    return _override({"id": "byRegexp", "options": pattern}, properties)


DASHED = {"fill": "dash", "dash": [8, 6]}


def reference(name: str, colour: str = REFERENCE) -> Json:
    """A line that others are compared with."""
    return named(name, color=fixed(colour), custom__lineStyle=DASHED, custom__lineWidth=1)


def coloured(names: Mapping[str, str]) -> list[Json]:
    """Overrides that give each named series its fixed colour."""
    return [named(name, color=fixed(colour)) for name, colour in names.items()]


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
    transformations: Sequence[Json] = (),
    **defaults: Any,
) -> Json:
    """A panel of any kind; ``defaults`` go to its field configuration."""
    queries = [{**query, "refId": chr(ord("A") + index)} for index, query in enumerate(targets)]
    made = {
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
    return {**made, "transformations": list(transformations)} if transformations else made


def timeseries(
    title: str, description: str, *targets: Json, unit: str, stacked: bool = False, log: bool = False, **more: Any
) -> Json:
    custom = {
        "lineWidth": 1 if stacked else 2,
        "fillOpacity": 80 if stacked else 0,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "showPoints": "never",
        "spanNulls": LINE_GAP_MILLISECONDS,
        "scaleDistribution": {"type": "log", "log": 10} if log else {"type": "linear"},
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if log:
        more["overrides"] = [UNLABELLED, *more.get("overrides", ())]
    return panel("timeseries", title, description, targets, unit=unit, custom=custom, options=options, **more)


UNLABELLED = matching(".*", noValue="")
"""Ticks of a log axis that have no number would be labelled with what the panel says where it has no data."""
LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
NOT_A_NUMBER = {
    "type": "special",
    "options": {"match": "null+nan", "result": {"text": "NaN", "color": BAD, "index": 0}},
}


def stat(
    title: str,
    description: str,
    *targets: Json,
    unit: str,
    text: str = "value",
    size: int | None = None,
    nan: bool = False,
    **more: Any,
) -> Json:
    """One number, with its trend; ``text="name"`` shows the series' name instead.

    With ``nan`` it says in red that the last value is not a number, in place of showing the last one that was.
    """
    options = {
        "colorMode": "value",
        "graphMode": "none" if text == "name" or targets[0]["instant"] else "area",
        "justifyMode": "center",
        "orientation": "auto",
        "textMode": text,
        "reduceOptions": {**LAST, "calcs": ["last"]} if nan else LAST,
        "text": {"valueSize": size} if size else {},
    }
    if nan:
        more["mappings"] = [NOT_A_NUMBER]
    return panel("stat", title, description, targets, unit=unit, options=options, **more)


def bars(title: str, description: str, *targets: Json, unit: str, **more: Any) -> Json:
    """Horizontal bars, one per series, as the query sorts them."""
    options = {
        "orientation": "horizontal",
        "displayMode": "basic",
        "showUnfilled": True,
        "valueMode": "text",
        "minVizHeight": 12,
        "minVizWidth": 8,
        "reduceOptions": LAST,
    }
    return panel("bargauge", title, description, targets, unit=unit, options=options, **more)


def heatmap(
    title: str, description: str, query: Json, *, unit: str, low: float | None, high: float | None, value: str, axis: str,
    axis_unit: str | None = None, **more: Any,
) -> Json:  # fmt: skip
    """Time across, one row per series upwards, whose name labels it, or which has a number in ``axis_unit``.

    Colours run from ``low`` to ``high``, so that healthy noise stays dark. ``value`` is what a cell's number is called.
    """
    options = {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Viridis", "fill": "dark-orange", "scale": "exponential", "exponent": 0.5,
                  "steps": 64, **({} if low is None else {"min": low}),
                  **({} if high is None else {"max": high})},
        "rowsFrame": {"layout": "auto", "value": value},
        "filterValues": {"le": -1e9},  # by default cells of 0 are hidden
        "cellGap": 0,
        "cellValues": {"unit": unit, "decimals": 1},
        "showValue": "never",
        "yAxis": {"axisPlacement": "left", "axisLabel": axis, "reverse": False,
                  **({"unit": axis_unit} if axis_unit else {})},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
    }  # fmt: skip
    return panel("heatmap", title, description, [query], unit=unit, options=options, **more)


def states(title: str, description: str, *targets: Json, mappings: Sequence[Json], empty: str, **more: Any) -> Json:
    """One row per series, coloured by what its number means."""
    options = {
        "mergeValues": True,
        "showValue": "auto",
        "alignValue": "left",
        "rowHeight": 0.85,
        "perPage": 30,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    custom = {"lineWidth": 0, "fillOpacity": 80, "spanNulls": False}
    return panel("state-timeline", title, description, targets, unit="none", options=options, custom=custom,
                 mappings=list(mappings), noValue=empty, color=fixed(BAD), **more)  # fmt: skip


def text(title: str, description: str, markdown: str) -> Json:
    return {
        "type": "text",
        "title": title,
        "description": description,
        "options": {"mode": "markdown", "content": markdown, "code": {"language": "plaintext"}},
    }


COLUMNS = 24
Cells = Sequence[tuple[int, Json | Sequence[tuple[int, Json]]]]


def placed(grid: Sequence[tuple[int, Cells]]) -> list[Json]:
    """Lay panels out. A row is (height, cells); a cell (width, panel), or (width, column) with (height, panel) pairs."""
    laid: list[Json] = []
    y = 0
    for height, cells in grid:
        x = 0
        for width, content in cells:
            column = [(height, content)] if isinstance(content, dict) else content
            top = y
            for tall, one in column:
                laid.append({**one, "id": len(laid) + 1, "gridPos": {"x": x, "y": top, "w": width, "h": tall}})
                top += tall
            x += width
        if x != COLUMNS:
            raise ValueError(f"the row with {laid[-1]['title']!r} is {x} of {COLUMNS} columns wide")
        y += height
    return laid
