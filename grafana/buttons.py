"""A panel of buttons, drawn on Grafana's canvas: any viewer may press them, where an action asks for the right to edit."""

from __future__ import annotations

import json
from collections.abc import Mapping

from meaning import Json
from panels import panel, target

BUTTON_ROWS = 2
"""Of a panel of buttons."""


def buttons(title: str, description: str, requests: Mapping[str, tuple[str, Json]]) -> Json:
    """Buttons that POST: label → URL and JSON body. The browser sends them, as any viewer, with ``X-Grafana-Action``."""
    columns = -(-len(requests) // BUTTON_ROWS)
    elements = [
        _button(label, url, body, *divmod(number, columns), columns) for number, (label, (url, body)) in enumerate(requests.items())
    ]  # fmt: skip
    options = {
        "inlineEditing": False,
        "showAdvancedTypes": True,
        "panZoom": False,
        "zoomToContent": False,
        "tooltip": {"mode": "none"},
        "root": {"type": "frame", "name": title, "elements": elements},
    }
    return panel("canvas", title, description, [target("vector(1)", instant=True)], unit="none", options=options)


def _button(label: str, url: str, body: Json, row: int, column: int, columns: int) -> Json:
    """Placed in percent of the panel."""
    width, height = 100 / columns, 100 / BUTTON_ROWS
    api = {
        "method": "POST", "endpoint": url, "data": json.dumps(body), "contentType": "application/json", "headerParams": [],
        "queryParams": [],
    }  # fmt: skip
    placement = {
        "left": width * column + 1, "right": 99 - width * (column + 1), "top": height * row + 3,
        "bottom": 97 - height * (row + 1), "rotation": 0,
    }  # fmt: skip
    return {
        "type": "button",
        "name": label,
        "config": {
            "text": {"mode": "fixed", "fixed": label},
            "align": "center",
            "size": 14,
            "api": api,
            "style": {"variant": "secondary" if body else "primary"},
        },
        "background": {"color": {"fixed": "transparent"}},
        "border": {"color": {"fixed": "transparent"}},
        "constraint": {"horizontal": "scale", "vertical": "scale"},
        "placement": {side: round(percent, 2) for side, percent in placement.items()},
        "connections": [],
    }
