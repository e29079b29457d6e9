"""The committed dashboards, their panels and queries, and queries as Grafana sends them."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "grafana/dashboards").glob("*.json"))
DASHBOARDS = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}


def panels_of(dashboard):
    """Every panel, those inside a collapsed row too, without the rows themselves."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def queries_of(panel):
    """The panel's expressions; a target that shows another panel's data has none."""
    return [target["expr"] for target in panel.get("targets", []) if "expr" in target]


PANELS = [(name, panel) for name, dashboard in DASHBOARDS.items() for panel in panels_of(dashboard)]
QUERIES = [(panel["title"], expr) for _, panel in PANELS for expr in queries_of(panel)]

EMPTY_IN_HEALTH = {
    "mirage: Alerts firing": "straggler",
    "practice: Alerts firing, with their runbooks": "straggler",
    "practice: The truth, and below it what the rules say": "straggler",
    "practice: Fault minutes that were caught": "straggler",
    "practice: Alert minutes that were right": "straggler",
    "practice: By cause, in minutes of this range": "straggler",
    "gpus: Held back otherwise than the others": "trouble",
    "gpus: PCIe links below the others": "trouble",
    "gpus: XID errors": "trouble",
    "exporter: Overhead per step": "trouble",
    "exporter: Overhead per step, mean": "trouble",
    "exporter: Collectors": "trouble",
    "exporter: What failed": "trouble",
    "exporter: Targets down": "trouble",
}
"""Panels without data in a healthy simulated job, where they say so in words, and the fault with which they have some;
trouble is what the simulator never has."""

BUILT_IN = {
    "__rate_interval": "20s",  # four scrapes
    "__interval": "5s",
    "__interval_ms": "5000",
    "__range": "1800s",
    "__range_s": "1800",
    "__range_ms": "1800000",
}
"""For a scrape interval of 5 s, over the last 30 minutes."""


def substituted(expr, *, run="cluster", node=".*", rank="-", price="2.5"):
    """The query as Grafana sends it; like Grafana, it leaves alone what is no variable, such as ``$1``."""
    values = {**BUILT_IN, "run": run, "node": node, "rank": rank, "price": price}
    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::\w+)?\})", lambda found: values.get(found[1] or found[2], found[0]), expr)
