"""A seed's series, to look at."""

import socket

import pytest
import requests

from practice_drills import drill_of
from stepscope.server import PortInUse
from stepsim.practice.explore import explored, graph
from stepsim.practice.scenario import draw_scenario
from stepsim.serving import free_port

pytestmark = pytest.mark.prometheus


def test_all_series_of_a_seed_are_there_recorded_ones_too(tmp_path):
    """At its own times, and for as long as somebody looks; a graph's address covers all of it."""
    scenario = draw_scenario(drill_of(ranks=2, quiet_hours=0.2), 1)
    (incident,) = scenario.incidents
    port = free_port()
    with explored(scenario, tmp_path, port) as process:
        asked = {"query": "topk(1, rank:training_culprit:share)", "time": incident.ends - 30}
        answer = requests.get(f"http://127.0.0.1:{port}/api/v1/query", params=asked, timeout=10).json()
        (named,) = answer["data"]["result"]
        assert named["metric"]["rank"] == str(incident.target["rank"])
        assert requests.get(graph(scenario, port, "up"), timeout=10).status_code == 200
    assert process.poll() is not None


def test_a_port_in_use_is_said(tmp_path):
    """Before anything is simulated."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortInUse, match="--port"):  # noqa: SIM117
        with explored(draw_scenario(drill_of(), 1), tmp_path, taken.getsockname()[1]):
            pass
    assert list(tmp_path.iterdir()) == []
