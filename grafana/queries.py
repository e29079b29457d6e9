"""What panels ask: the committed dashboards' queries, sent to Prometheus as Grafana sends them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

Json = dict[str, Any]
FOLDER = Path(__file__).parent / "dashboards"
BUILT_IN = {
    "__rate_interval": "20s",  # four scrapes
    "__interval": "5s",
    "__interval_ms": "5000",
    "__range": "1800s",
    "__range_s": "1800",
    "__range_ms": "1800000",
}
"""For a scrape interval of 5 s, over the last 30 minutes."""
RANGE_SECONDS, STEP_SECONDS = 1800, 5
"""Of a graph: it shows 1,000 points at most, and half an hour's scrapes are 360."""


@dataclass(frozen=True)
class Series:
    """One line, row or bar of a panel."""

    legend: str
    labels: dict[str, str]
    values: list[float]
    """Over the range; of an instant query one."""


def committed() -> dict[str, Json]:
    """File name → dashboard."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.json"))}


def panels_of(dashboard: Json) -> Iterator[Json]:
    """Every panel, those inside a collapsed row too, without the rows themselves."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def queries_of(panel: Json) -> list[str]:
    """The panel's expressions; a target that shows another panel's data has none."""
    return [target["expr"] for target in panel.get("targets", []) if "expr" in target]


def substituted(text: str, *, run: str = "cluster", node: str = ".*", rank: str = "0", price: str = "2.5") -> str:
    """The query, or legend, as Grafana sends it; like Grafana, it leaves alone what is no variable, such as ``$1``."""
    values = {**BUILT_IN, "run": run, "node": node, "rank": rank, "price": price}
    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::\w+)?\})", lambda found: values.get(found[1] or found[2], found[0]), text)


def shown(url: str, panel: Json, at: float, **variables: str) -> list[list[Series]]:
    """Of each of the panel's queries, its series, at the end ``at`` of the range."""
    return [list(_series(url, target, at, variables)) for target in panel.get("targets", [])]


def _series(url: str, target: Json, at: float, variables: dict[str, str]) -> Iterator[Series]:
    expr = substituted(target["expr"], **variables)
    if target["instant"]:
        result = _ask(url, "query", query=expr, time=at)
    else:
        result = _ask(url, "query_range", query=expr, start=at - RANGE_SECONDS, end=at, step=STEP_SECONDS)
    for one in result:
        samples = one["values"] if "values" in one else [one["value"]]
        legend = _legend(substituted(target["legendFormat"], **variables), one["metric"])
        yield Series(legend, one["metric"], [float(value) for _, value in samples])


def _ask(url: str, path: str, **form: Any) -> list[Json]:
    answer = requests.post(f"{url}/api/v1/{path}", data=form, timeout=60).json()
    if answer["status"] != "success":
        raise ValueError(f"{answer['error']}: {form}")
    result: list[Json] = answer["data"]["result"]
    return result


def _legend(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), text)
