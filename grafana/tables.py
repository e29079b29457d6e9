"""Panels whose queries become one table: tables, and bars made up of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meaning import BAD, Json
from panels import fixed, named, panel

MERGED: list[Json] = [
    {"id": "filterFieldsByName", "options": {"exclude": {"names": ["Time"]}}},  # it would be part of the key
    {"id": "merge", "options": {}},
]
"""Tables of several queries become one, joined by the labels that they share."""


def _converted(field: str, kind: str) -> Json:
    return {"id": "convertFieldType", "options": {"conversions": [{"targetField": field, "destinationType": kind}]}}


def stacked_bars(
    title: str, description: str, *targets: Json, unit: str, row: str, column: str, overrides: Sequence[Json],
    axis_at_least: float, **more: Any,
) -> Json:  # fmt: skip
    """One bar per value of the label ``row``, a number, made up of one part per value of the label ``column``."""
    across = f"{row}\\{column}"
    matrix = {"rowField": row, "columnField": column, "valueField": "Value"}
    transformations = [
        *MERGED,
        _converted(row, "number"),
        {"id": "sortBy", "options": {"sort": [{"field": row}]}},
        {"id": "groupingToMatrix", "options": matrix},
        _converted(across, "string"),
    ]
    options = {
        "orientation": "auto",
        "xField": across,
        "stacking": "normal",
        "showValue": "never",
        "groupWidth": 0.9,
        "barWidth": 0.95,
        "barRadius": 0,
        "fullHighlight": False,
        "xTickLabelRotation": 0,
        "xTickLabelMaxLength": 8,
        "xTickLabelSpacing": 60,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("barchart", title, description, targets, unit=unit, options=options,
                 custom={"lineWidth": 0, "fillOpacity": 85, "axisSoftMax": axis_at_least},
                 transformations=transformations,
                 overrides=[*overrides, named(across, unit="string")], **more)  # fmt: skip


def table(
    title: str,
    description: str,
    *targets: Json,
    unit: str,
    columns: Mapping[str, str],
    sort: str = "",
    ascending: bool = False,
    **more: Any,
) -> Json:
    """A table of instant queries, joined by the labels that they share.

    ``columns`` names what is shown, in order, and its headings: a label, ``Value`` where there is one query, or
    ``Value #A``, ``Value #B`` and so on. ``sort`` is the heading of the column by which it is sorted,
    downwards unless ``ascending``.
    """
    transformations: list[Json] = [
        {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {},
                "indexByName": {name: index for index, name in enumerate(columns)},
                "renameByName": dict(columns),
            },
        },
    ]
    if len(targets) > 1:
        transformations = [*MERGED, *transformations]
    options = {
        "showHeader": True,
        "cellHeight": "sm",
        **({"sortBy": [{"displayName": sort, "desc": not ascending}]} if sort else {}),
    }
    custom = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}
    return panel("table", title, description, targets, unit=unit, options=options, custom=custom,
                 transformations=transformations, **more)  # fmt: skip


def gauge(name: str, *, high: float, colour: str = BAD, unit: str = "percentunit", **more: Any) -> Json:
    """A table's column drawn as bars."""
    return named(name, custom__cellOptions={"type": "gauge", "mode": "basic"}, unit=unit, decimals=1, min=0, max=high,
                 color=fixed(colour), **more)  # fmt: skip
