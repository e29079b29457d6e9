"""The dashboards as files: up to date, linted, and every query parsed."""

import json
import re
import subprocess
import sys
from itertools import combinations

import promql_parser
import pytest
import yaml

from dashboard_files import DASHBOARDS, FILES, PANELS, QUERIES
from queries import substituted
from running_lab import ROOT

SCREEN_ROWS = 25
"""Of 30 px, with gaps of 8, below some 100 px of Grafana's own."""

every_panel = pytest.mark.parametrize(
    ("name", "panel"), PANELS, ids=lambda value: value if isinstance(value, str) else value["title"]
)


def test_the_committed_json_is_what_the_generator_writes(tmp_path):
    """``make generate`` changes nothing."""
    subprocess.run([sys.executable, ROOT / "grafana/dashboards.py", tmp_path], check=True, capture_output=True)
    written = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert written == {file.name: file.read_text(encoding="utf-8") for file in FILES}


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS.keys())
def test_a_dashboard_follows_the_house_rules(dashboard):
    """Read-only, one datasource by variable, variables that follow the time range, ids that are unique."""
    assert dashboard["editable"] is False
    assert dashboard["uid"].startswith("stepscope-")
    assert dashboard["graphTooltip"] == 1
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in dashboard["panels"]]
    assert len(titles) == len(set(titles))
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert all(variable["refresh"] == 2 for variable in variables.values() if variable["type"] == "query")
    used = set(re.findall(r"\$\{?([^\W\d]\w*)", json.dumps(dashboard["panels"])))
    assert {name for name in used if not name.startswith("__")} <= variables.keys()


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS.keys())
def test_panels_do_not_overlap_and_fill_the_width(dashboard):
    """A grid of 24 columns, on one screen of 1920 × 1080."""
    boxes = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(box["x"] + box["w"] <= 24 for box in boxes)
    for a, b in combinations(boxes, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (a, b)
    bottom = max(box["y"] + box["h"] for box in boxes)
    assert sum(box["w"] * box["h"] for box in boxes) == 24 * bottom
    assert bottom <= SCREEN_ROWS


@every_panel
def test_a_panel_explains_itself(name, panel):
    """Title, a description that is a sentence, a unit, and the datasource by variable."""
    assert panel["title"]
    assert panel["description"].endswith(".")
    if panel["type"] == "text":
        return
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    refs = [target["refId"] for target in panel["targets"]]
    assert len(refs) == len(set(refs))


@pytest.mark.parametrize(("title", "expr"), QUERIES)
@pytest.mark.parametrize("price", ["2.5", "25", ""])
def test_a_query_parses(title, expr, price):
    """With every variable filled in; the price may be empty."""
    promql_parser.parse(substituted(expr, price=price))


def test_one_colour_per_phase_everywhere():
    """The console's too."""
    css = (ROOT / "simulator/stepsim/console/console.css").read_text(encoding="utf-8").lower()
    colours = {}
    for _, panel in PANELS:
        for override in panel.get("fieldConfig", {}).get("overrides", []):
            for item in override["properties"]:
                if item["id"] == "color":
                    colours.setdefault(override["matcher"]["options"], set()).add(item["value"]["fixedColor"])
    assert all(len(shades) == 1 for shades in colours.values())
    for phase in ("data_wait", "h2d", "forward", "backward", "allreduce", "optimizer", "checkpoint", "other"):
        (shade,) = colours[phase]
        assert f"--{phase}: {shade.lower()};" in css


def test_grafana_is_open_to_viewers_and_closed_to_the_outside():
    """Anonymous, in a role that one variable sets; refreshed every second if wanted; nothing is fetched or reported."""
    settings = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["grafana"][
        "environment"
    ]
    assert settings["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "${GRAFANA_ANONYMOUS_ROLE:-Viewer}"
    assert "GRAFANA_ANONYMOUS_ROLE=Viewer" in (ROOT / ".env").read_text(encoding="utf-8")
    fastest = settings["GF_DASHBOARDS_MIN_REFRESH_INTERVAL"]
    assert all(board["timepicker"]["refresh_intervals"][0] == fastest for board in DASHBOARDS.values())
    outside = [
        name for name in settings if "REPORTING" in name or "CHECK_FOR" in name or name.endswith("NEWS_FEED_ENABLED")
    ]
    assert len(outside) == 4
    assert {settings[name] for name in outside} == {"false"}
    assert settings["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"


def test_provisioning_points_at_what_exists():
    """The datasource's uid and interval, the folder, the home dashboard."""
    sources = yaml.safe_load((ROOT / "grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))
    config = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    (source,) = sources["datasources"]
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    assert source["uid"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["grafana"]
    folder = "/var/lib/grafana-dashboards"
    assert f"./grafana/dashboards:{folder}:ro" in compose["volumes"]
    home = min(DASHBOARDS, key=lambda name: DASHBOARDS[name]["title"])
    assert compose["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{folder}/{home}.json"
    provider = yaml.safe_load((ROOT / "grafana/provisioning/dashboards/stepscope.yml").read_text(encoding="utf-8"))
    assert provider["providers"][0]["options"]["path"] == folder
