"""What a panel shows: its queries sent as Grafana sends them, and the series by the names in its legend."""

import re

import requests

from dashboard_files import substituted

RANGE_SECONDS, STEP_SECONDS = 900, 15


def shown(url, panel, at, **variables):
    """Of each of the panel's queries, its series: legend, labels, and values of the range that ends at ``at``."""
    return [list(_series(url, target, at, variables)) for target in panel.get("targets", [])]


def last_values(url, panel, at, **variables):
    """Legend → last value, of all queries together."""
    return {name: values[-1] for query in shown(url, panel, at, **variables) for name, _, values in query}


def _series(url, target, at, variables):
    expr = substituted(target["expr"], **variables)
    if target["instant"]:
        answer = _ask(url, "query", query=expr, time=at)
    else:
        answer = _ask(url, "query_range", query=expr, start=at - RANGE_SECONDS, end=at, step=STEP_SECONDS)
    for one in answer["data"]["result"]:
        samples = one["values"] if "values" in one else [one["value"]]
        yield (
            _legend(substituted(target["legendFormat"], **variables), one["metric"]),
            one["metric"],
            [float(value) for _, value in samples],
        )


def _ask(url, path, **form):
    answer = requests.post(f"{url}/api/v1/{path}", data=form, timeout=30).json()
    assert answer["status"] == "success", (answer, form)
    return answer


def _legend(text, labels):
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), text)
