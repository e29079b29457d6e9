"""Where panels lead: other dashboards, runbooks, the console; and what buttons send."""

import json
import re

import pytest
from starlette.testclient import TestClient

from dashboard_files import BY_NAME, DASHBOARDS, PANELS
from stepsim.api import create_app
from stepsim.live import LiveJob
from stepsim.pages import Pages

UIDS = {dashboard["uid"] for dashboard in DASHBOARDS.values()}
KEPT = ("${datasource:queryparam}", "${run:queryparam}", "${console:queryparam}")
PAGES = {"${console}/", "${console}/runbooks/${__value.text}"}
"""Of the lab's API."""


def links(panel):
    """Of the panel, and of its columns."""
    config = panel.get("fieldConfig", {"defaults": {}, "overrides": []})
    yield from config["defaults"].get("links", [])
    for override in config["overrides"]:
        yield from (link for item in override["properties"] if item["id"] == "links" for link in item["value"])


LINKS = [(f"{name}: {panel['title']}", link["url"]) for name, panel in PANELS for link in links(panel)]


@pytest.mark.parametrize(("panel", "url"), LINKS)
def test_a_panels_link_leads_somewhere_and_keeps_time_and_run(panel, url):
    """To a dashboard that exists, with variables that it has; or to the lab."""
    if url.startswith("${console}"):
        assert url in PAGES
        return
    uid = re.fullmatch(r"/d/([\w-]+)\?.*", url)[1]
    assert uid in UIDS
    assert "${__url_time_range}" in url
    assert "${__all_variables}" in url or all(part in url for part in KEPT)
    target = next(dashboard for dashboard in DASHBOARDS.values() if dashboard["uid"] == uid)
    variables = {variable["name"] for variable in target["templating"]["list"]}
    assert set(re.findall(r"&var-(\w+)=", url)) <= variables


def test_two_clicks_lead_from_the_mirage_to_the_gpu_of_a_rank():
    """Verdict → ranks, with the rank chosen → its GPU and host."""
    clicks = {
        "mirage: Who holds everyone up": "/d/stepscope-ranks?.*var-rank=${__field.labels.rank}",
        "ranks: All ranks, by their lag": "/d/stepscope-gpus?.*var-rank=${__value.raw}",
    }
    for name, pattern in clicks.items():
        start, _, end = pattern.partition(".*")
        assert any(panel == name and url.startswith(start) and url.endswith(end) for panel, url in LINKS)


@pytest.mark.parametrize("name", [name for name, panel in BY_NAME.items() if panel["type"] not in ("text", "canvas")])
def test_every_panel_leads_onward(name):
    """Nobody is left with a number and no idea where to look next."""
    assert list(links(BY_NAME[name]))


@pytest.mark.parametrize(("name", "label"), [
    (f"{name}: {panel['title']}", label) for name, panel in PANELS for link in links(panel)
    for label in re.findall(r"__field\.labels\.(\w+)", link["url"])
])  # fmt: skip
def test_a_link_reads_only_labels_that_the_query_has(name, label):
    """Or the other dashboard is opened with nothing chosen."""
    assert any(f"{{{{{label}}}}}" in target["legendFormat"] for target in BY_NAME[name]["targets"])


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_every_dashboard_leads_to_all_others_to_the_console_and_to_full_screen(dashboard):
    """Keeping the time range and the variables."""
    others, console, kiosk = dashboard["links"]
    assert (others["type"], others["tags"]) == ("dashboards", ["stepscope"])
    assert console["url"] == "${console}/"
    assert kiosk["url"] == f"/d/{dashboard['uid']}?kiosk"
    assert all(link["keepTime"] and link["includeVars"] for link in (others, kiosk))


def buttons():
    for _, panel in PANELS:
        if panel["type"] == "canvas":
            yield from panel["options"]["root"]["elements"]


@pytest.mark.parametrize("button", list(buttons()), ids=lambda button: button["name"])
def test_a_button_does_what_it_says(cluster, button):
    """Sent as a browser does, with Grafana's header: the fault is on, or all are off."""
    origin, now = "http://127.0.0.1:3000", 1_700_000_000.0
    live = LiveJob(cluster, clock=lambda: now)
    client = TestClient(create_app(live, Pages(live.engine, lambda: now), origins=[origin], clock=lambda: now))
    api = button["config"]["api"]
    assert api["method"] == "POST"
    headers = {"X-Grafana-Action": "1", "content-type": api["contentType"], "Origin": origin}
    answer = client.post(api["endpoint"].removeprefix("${console}"), content=api["data"], headers=headers)
    assert answer.status_code in (201, 204)
    started = [fault["fault"] for fault in client.get("/faults").json()]
    assert started == [fault for fault in [json.loads(api["data"]).get("fault")] if fault]
