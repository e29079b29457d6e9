"""One endpoint for all ranks of a node."""

import json

import pytest

from stepscope.collectors import Collectors
from stepscope.node import NodeEndpoint, merge
from stepscope.server import Answer, MetricsServer

PAGE = """\
# HELP steps_total Steps.
# TYPE steps_total counter
steps_total{{rank="{rank}"}} 5
# HELP seconds Durations.
# TYPE seconds histogram
seconds_bucket{{node="a",le="0.5"}} {rank}
seconds_sum{{node="a"}} 1.5
seconds_count{{node="a"}} 3
# HELP build_info Always 1.
# TYPE build_info gauge
build_info{{version="1"}} 1
"""


def test_pages_are_merged_family_by_family():
    """Each family is headed once; what ranks share adds up, and of a shared gauge the largest stands."""
    assert merge([PAGE.format(rank=1), PAGE.format(rank=2)]) == (
        "# HELP steps_total Steps.\n# TYPE steps_total counter\n"
        'steps_total{rank="1"} 5\nsteps_total{rank="2"} 5\n'
        "# HELP seconds Durations.\n# TYPE seconds histogram\n"
        'seconds_bucket{node="a",le="0.5"} 3\nseconds_sum{node="a"} 3.0\nseconds_count{node="a"} 6\n'
        '# HELP build_info Always 1.\n# TYPE build_info gauge\nbuild_info{version="1"} 1\n'
    )
    assert merge([]) == ""


@pytest.fixture
def ranks():
    """Two local ranks that answer."""
    servers = [
        MetricsServer(
            {
                "/metrics": lambda query, rank=rank: Answer(PAGE.format(rank=rank)),
                "/steps": lambda query, rank=rank: Answer(json.dumps({"rank": rank, **query})),
            },
            port=0,
        )
        for rank in (1, 2)
    ]
    yield servers
    for server in servers:
        server.close()


def test_a_node_serves_what_its_ranks_serve(ranks):
    """One that does not answer is absent and said to be down; the others' series are there."""
    gone = MetricsServer({}, port=0)
    gone.close()
    endpoint = NodeEndpoint([f"127.0.0.1:{port}" for port in (ranks[0].port, gone.port, ranks[1].port)])
    text = endpoint.metrics({}).body
    assert 'steps_total{rank="1"} 5' in text
    assert 'steps_total{rank="2"} 5' in text
    assert f'stepscope_rank_up{{port="{ranks[0].port}"}} 1' in text
    assert f'stepscope_rank_up{{port="{gone.port}"}} 0' in text


def test_what_ranks_and_node_both_publish_is_there_once(ranks):
    """NVML in both, for example; and another program on a rank's port is no rank."""

    class Steps:
        name = "steps"

        def text(self):
            return PAGE.format(rank=1)

    other = MetricsServer({"/metrics": lambda query: Answer("# a comment\nhello\n")}, port=0)
    endpoint = NodeEndpoint([f"127.0.0.1:{ranks[0].port}", f"127.0.0.1:{other.port}"], [Steps()])
    lines = endpoint.metrics({}).body.splitlines()
    assert len(lines) == len(set(lines))
    assert sum(line.startswith("# TYPE steps_total") for line in lines) == 1
    assert f'stepscope_rank_up{{port="{other.port}"}} 0' in lines
    other.close()


def test_step_records_are_passed_on_with_the_query(ranks):
    """A list of the ranks' documents; what is no number is not passed on."""
    endpoint = NodeEndpoint([f"127.0.0.1:{server.port}" for server in ranks])
    found = json.loads(endpoint.steps({"since": "-1", "x": "y z"}).body)
    assert found == [{"rank": rank, "since": "-1"} for rank in (1, 2)]


class Sensor:
    name = "sensor"

    def __init__(self):
        self.broken = False

    def text(self):
        if self.broken:
            raise RuntimeError("the driver is gone")
        return "temperature 40\n"


def test_a_collector_that_fails_is_counted_and_said_once(caplog):
    """Its metrics are absent until it works again; the others' go on."""
    sensor = Sensor()
    collectors = Collectors([sensor])
    assert "temperature 40" in collectors.text()
    sensor.broken = True
    for _ in range(3):
        text = collectors.text()
        assert "temperature" not in text
        assert 'stepscope_collector_success{collector="sensor"} 0.0' in text
        assert 'stepscope_collector_duration_seconds{collector="sensor"}' in text
    assert caplog.text.count("the driver is gone") == 1
    sensor.broken = False
    assert 'stepscope_collector_success{collector="sensor"} 1.0' in collectors.text()
