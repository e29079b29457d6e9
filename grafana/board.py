"""A dashboard around its panels: variables, links onward, annotations, and what all dashboards have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meaning import FAULT, Json
from panels import DATASOURCE, Cells, placed

KEPT = "${datasource:queryparam}&${run:queryparam}&${console:queryparam}"
"""Of the variables, where one that two dashboards may share is set anew: it would be given twice."""


def variable(kind: str, name: str, label: str, **more: Any) -> Json:
    return {"type": kind, "name": name, "label": label, "hide": 0, "skipUrlSync": False, **more}


def label_variable(name: str, label: str, query: str, **more: Any) -> Json:
    """A variable with the values of a label, in natural order; it follows the time range."""
    definition = {"query": query, "refId": "StandardVariableQuery"}
    given = {"sort": 7, "multi": False, "includeAll": False, "regex": "", "options": [], "current": {}, **more}
    return variable("query", name, label, datasource=DATASOURCE, query=definition, definition=query, refresh=2, **given)


SOURCE = variable("datasource", "datasource", "Data source", query="prometheus", regex="", refresh=1, multi=False,
                  includeAll=False, options=[], current={})  # fmt: skip
RANKS_OF_ALL = "run:training_ranks:count"
RUN = label_variable(
    "run", "Run",
    f"query_result(sort_desc(timestamp({RANKS_OF_ALL}) - count_over_time({RANKS_OF_ALL}[$__range]) / 1e6 "
    f"or max_over_time(timestamp({RANKS_OF_ALL})[$__range:1m])))",
    regex='/run="([^"]+)"/', sort=0,
)  # fmt: skip
"""The first one is chosen: those that train now come first, the youngest on top, then those that have ended, the last on top."""
NODE = label_variable("node", "Node", 'label_values(training_rank_info{run="$run"}, node)', multi=True, includeAll=True,
                      allValue=".*", current={"text": ["All"], "value": ["$__all"]})  # fmt: skip
RANK = label_variable("rank", "Rank", 'label_values(training_rank_info{run="$run",node=~"$node"}, rank)', sort=3)
RANKS = label_variable(
    "ranks", "Ranks", f'query_result(max_over_time({RANKS_OF_ALL}{{run="$run"}}[$__range]))', regex="/} ([0-9]+) /",
    sort=0, hide=2,
)  # fmt: skip
"""How many there are, or were, for titles."""
PRICE = variable(
    "textbox", "price", "Price per GPU-hour, such as 2.5", query="", current={"text": "", "value": ""}, options=[]
)
CONSOLE = variable("textbox", "console", "Console", query="http://127.0.0.1:8000", options=[], hide=2,
                   current={"text": "http://127.0.0.1:8000", "value": "http://127.0.0.1:8000"})  # fmt: skip

PRICED = "(${price}e0)"
"""The price as a number: without one this reads as a series that does not exist, and the panel stays empty."""
NO_MONEY = "not priced"


LEADS_TO = {
    "mirage": "The mirage",
    "ranks": "Who holds everyone up?",
    "step": "One step, taken apart",
    "gpus": "GPUs and hosts",
    "cost": "Cost of waiting",
}
"""What a link to a dashboard says, unless it has something of its own to say."""


def to(board: str, title: str = "", **variables: str) -> Json:
    """A link to another dashboard that keeps the time range and the variables, or sets some of them."""
    given = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return {
        "title": title or LEADS_TO[board],
        "url": f"/d/stepscope-{board}?${{__url_time_range}}&{KEPT + given if given else '${__all_variables}'}",
    }


def to_ranks(rank: str = "${__field.labels.rank}") -> Json:
    """By default of a series that has the label."""
    return to("ranks", rank=rank)


def to_console(title: str = "Open the console") -> Json:
    return {"title": title, "url": "${console}/", "targetBlank": True}


RUNBOOK = {"title": "Runbook", "url": "${console}/runbooks/${__value.text}", "targetBlank": True}

_FAULTS = {
    "name": "Faults",
    "datasource": DATASOURCE,
    "enable": True,
    "iconColor": FAULT,
    "target": {"expr": "lab_fault_active > 0", "refId": "Anno", "interval": "15s"},
    "titleFormat": "{{fault}}",
    "textFormat": "{{target}}, severity {{severity}}",
    "tagKeys": "fault",
}


def _links(uid: str) -> list[Json]:
    plain = {
        "type": "link",
        "tags": [],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": False,
        "targetBlank": True,
    }
    return [
        {**plain, "type": "dashboards", "title": "Dashboards", "icon": "external link", "tags": ["stepscope"], "url": "",
         "tooltip": "The other dashboards", "asDropdown": True, "includeVars": True, "keepTime": True, "targetBlank": False},
        {**plain, "title": "Console", "icon": "external link", "url": "${console}/", "tooltip": "Start and stop faults"},
        {**plain, "title": "Full screen", "icon": "external link", "url": f"/d/{uid}?kiosk", "includeVars": True,
         "keepTime": True, "targetBlank": False, "tooltip": "Without Grafana's own frame; Escape ends it"},
    ]  # fmt: skip


def _leads_onward(panel: Json) -> bool:
    """By a link of its own, or of one of its columns; texts and buttons have no fields that could."""
    if panel["type"] in ("text", "canvas"):
        return True
    config = panel["fieldConfig"]
    of_columns = (item["id"] for override in config["overrides"] for item in override["properties"])
    return bool(config["defaults"]["links"]) or "links" in of_columns


def dashboard(
    name: str, title: str, description: str, grid: Sequence[tuple[int, Cells]], variables: Sequence[Json], *,
    onward: Json, since: str = "30m",
) -> Json:  # fmt: skip
    """``variables`` come after the data source and the run, which every dashboard has. ``onward`` is where panels lead that
    have no link of their own."""
    uid = f"stepscope-{name}"
    panels = placed(grid)
    for panel in panels:
        if not _leads_onward(panel):
            panel["fieldConfig"]["defaults"]["links"] = [onward]
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["stepscope"],
        "schemaVersion": 42,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": f"now-{since}", "to": "now"},
        "timepicker": {"refresh_intervals": ["1s", "5s", "10s", "30s", "1m"]},
        "timezone": "browser",
        "templating": {"list": [SOURCE, RUN, *variables, CONSOLE]},
        "annotations": {"list": [_FAULTS]},
        "links": _links(uid),
        "panels": panels,
    }
