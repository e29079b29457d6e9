"""Faults as data: requests, targets, severities, ramps, durations."""

from dataclasses import fields

import numpy as np
import pytest

from stepsim.board import ActiveFault, FaultBoard, FaultError, UnknownFaultId, target_label
from stepsim.durations import parse_duration
from stepsim.faults import FAULTS
from stepsim.job import load_job
from stepsim.params import Params


@pytest.fixture
def board(cluster):
    return FaultBoard(cluster)


def changed(params, job):
    """Names of the parameters that differ from the healthy ones, and of what differs in the job."""
    healthy = Params.healthy(job)
    names = {field.name for field in fields(Params)} - {"job"}
    configured, now = job.model_dump(), params.job.model_dump()
    return {name for name in names if not np.array_equal(getattr(params, name), getattr(healthy, name))} | {
        name for name in configured if now[name] != configured[name]
    }


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("straggler", {"compute_scale"}),
        ("data_starvation", {"stall_probability"}),
        ("storage_node_slow", {"read_scale"}),
        ("storage_outage", {"outage_seconds"}),
        ("gradient_explosion", {"learning_rate_scale", "clip"}),
        ("thermal_throttle", {"thermal_scale"}),
        ("power_cap", {"power_limit_watts"}),
        ("memory_bound", {"kernels"}),
        ("small_batch", {"tokens_per_gpu", "loader"}),
        ("sequence_imbalance", {"token_sigma"}),
        ("jitter", {"kernels"}),
        ("cpu_starvation", {"cpu_speed"}),
        ("pcie_downgrade", {"pcie_generation", "pcie_lanes"}),
        ("network_degradation", {"network"}),
        ("nccl_fallback", {"fallback_bytes_per_second"}),
        ("checkpoint_stall", {"schedule"}),
        ("gc_pause", {"pause_probability", "pause_seconds"}),
        ("hang", {"stuck"}),
        ("gpu_lost", {"lost"}),
        ("loss_plateau", {"update_share"}),
        ("silent_corruption", {"gradient_scale"}),
    ],
)
def test_a_fault_changes_its_physical_parameter_and_nothing_else(board, cluster, fault, what):
    """At its plain severity, on its default target."""
    board.start({"fault": fault}, now=0.0)
    assert changed(board.params(1.0), cluster) - {"stall_seconds"} == what


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_the_catalogues_severities_are_in_range_and_graded(fault):
    """Mild, plain and severe, in that order, and neutral changes nothing."""
    scale = fault.severity
    grades = [scale.neutral, scale.mild, scale.plain, scale.severe]
    assert grades in (sorted(grades), sorted(grades, reverse=True))
    assert scale.neutral != scale.plain
    assert all(scale.low <= grade <= scale.high for grade in grades)
    job = load_job("cluster")
    struck = np.ones(job.ranks, dtype=bool)
    assert changed(fault.apply(Params.healthy(job), struck, scale.neutral), job) <= {"clip"}


def test_only_the_target_is_struck(board):
    """One rank, or the ranks of one node."""
    board.start({"fault": "straggler", "target": {"rank": 17}, "severity": 2}, now=0.0)
    board.start({"fault": "storage_node_slow", "target": {"node": "node-1"}}, now=0.0)
    params = board.params(0.0)
    assert np.flatnonzero(params.compute_scale != 1).tolist() == [17]
    assert np.flatnonzero(params.read_scale != 1).tolist() == list(range(8, 16))


def test_several_faults_add_up(board):
    """On two ranks, and of two kinds."""
    for rank in (3, 4):
        board.start({"fault": "straggler", "target": {"rank": rank}, "severity": 2}, now=0.0)
    board.start({"fault": "storage_outage"}, now=0.0)
    params = board.params(0.0)
    assert params.compute_scale[3:5].tolist() == [2, 2]
    assert params.outage_seconds == 10


def test_the_same_fault_on_the_same_target_is_replaced(board):
    """A second click does not double it; the later severity holds."""
    first = board.start({"fault": "straggler", "target": {"rank": 3}}, now=0.0)
    again = board.start({"fault": "straggler", "target": {"rank": 3}, "severity": 2}, now=5.0)
    assert [fault.id for fault in board.active()] == [again.id]
    assert first.id != again.id
    assert board.params(5.0).compute_scale[3] == 2.0


def test_a_ramp_rises_from_neutral_to_full(board):
    """Half way after half the time."""
    board.start({"fault": "straggler", "target": {"rank": 0}, "severity": 2, "ramp": "10s"}, now=100.0)
    assert [board.params(now).compute_scale[0] for now in (99.0, 100.0, 105.0, 110.0, 500.0)] == [1, 1, 1.5, 2, 2]


def test_a_fault_ends_after_its_duration(board):
    """And leaves the board."""
    board.start({"fault": "straggler", "duration": "1m30s"}, now=0.0)
    board.expire(89.9)
    assert len(board.active()) == 1
    assert board.params(90.0).compute_scale.max() == 1.0
    board.expire(90.0)
    assert board.active() == []


@pytest.mark.parametrize(
    ("request_", "field", "said"),
    [
        ({}, "fault", "`fault` is missing; there are straggler, thermal_throttle"),
        ({"fault": "gremlins"}, "fault", "unknown fault 'gremlins'"),
        ({"fault": "straggler", "target": {"rank": 99}}, "target", "no rank 99; allowed: 0 to 31"),
        ({"fault": "straggler", "target": {"rank": -1}}, "target", "no rank -1"),
        ({"fault": "straggler", "target": {"rank": True}}, "target", "no rank True"),
        ({"fault": "straggler", "target": {"rank": "5"}}, "target", "no rank '5'"),
        (
            {"fault": "straggler", "target": {"node": "node-1"}},
            "target",
            r"^straggler strikes one rank: give a rank \(such as 5\), not a node$",
        ),
        (
            {"fault": "storage_node_slow", "target": {"run": True}},
            "target",
            r"^storage_node_slow strikes one node: give a node \(such as node-3\), not the whole run$",
        ),
        (
            {"fault": "data_starvation", "target": {"rank": 3}},
            "target",
            "^data_starvation strikes the whole run: leave the target out$",
        ),
        (
            {"fault": "power_cap", "target": {"run": True}},
            "target",
            r"one rank or one node: give a rank \(such as 5\) or give a node \(such as node-3\), not the whole run$",
        ),
        ({"fault": "straggler", "target": 5}, "target", 'written {"rank": 5}; not 5'),
        ({"fault": "storage_node_slow", "target": {"node": "node-4"}}, "target", "allowed: node-0 to node-3"),
        ({"fault": "data_starvation", "target": {"run": False}}, "target", "allowed: true"),
        ({"fault": "straggler", "severity": "fast"}, "severity", "a number from 1 to 20 .*not 'fast'"),
        ({"fault": "straggler", "severity": 0.5}, "severity", "from 1 to 20"),
        ({"fault": "straggler", "severity": float("nan")}, "severity", "from 1 to 20"),
        ({"fault": "straggler", "severity": True}, "severity", "not True"),
        ({"fault": "straggler", "duration": -5}, "duration", "a number of seconds from 0 on"),
        ({"fault": "straggler", "duration": "-5s"}, "duration", "not '-5s'"),
        ({"fault": "straggler", "duration": 0}, "duration", "longer than 0"),
        ({"fault": "straggler", "ramp": "soon"}, "ramp", "like 90s, 10m or 1h30m"),
        ({"fault": "straggler", "rank": 5}, "rank", "unknown field 'rank'; there are fault, target"),
    ],
)
def test_a_bad_request_is_explained_and_changes_nothing(board, request_, field, said):
    """It names the field, and what is allowed."""
    with pytest.raises(FaultError, match=said) as error:
        board.start(request_, now=0.0)
    assert error.value.field == field
    assert board.active() == []


def test_an_unknown_id_is_refused(board):
    """Stopping twice, too."""
    fault = board.start({"fault": "straggler"}, now=0.0)
    board.stop(fault.id)
    with pytest.raises(UnknownFaultId):
        board.stop(fault.id)


def test_every_change_is_reported_once(board):
    """So that it can be saved."""
    changes = []
    board.changed = lambda: changes.append(len(board.active()))
    fault = board.start({"fault": "straggler"}, now=0.0)
    board.start({"fault": "data_starvation"}, now=0.0)
    board.stop(fault.id)
    board.stop_all()
    assert changes == [1, 2, 1, 0]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5m", 90), ("250ms", 0.25), (12, 12), (0.5, 0.5)],
)
def test_durations_are_read_as_prometheus_writes_them(written, seconds):
    """Plain numbers are seconds."""
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "5", "5 m", "m", "5x", "1e3s", None, True, -1, float("inf"), float("nan"), [], "5m "]
)
def test_other_durations_are_refused(written):
    """With an example of what would be right."""
    with pytest.raises(ValueError, match="90s, 10m or 1h30m"):
        parse_duration(written)


def test_targets_have_short_names():
    """As labels show them."""
    assert [target_label(t) for t in ({"rank": 5}, {"node": "node-2"}, {"run": True})] == ["rank 5", "node-2", "run"]
    fault = ActiveFault(id="a", fault="straggler", target={"rank": 5}, severity=2.0, started=0.0)
    assert fault.level(-10.0, neutral=1.0) == 2.0


def test_what_has_ended_is_remembered():
    """Stopped, over or replaced, with the time at which the board was told last."""
    board = FaultBoard(load_job("cluster"))
    first = board.start({"fault": "straggler"}, 100.0)
    board.expire(150.0)
    board.start({"fault": "straggler", "severity": 2}, 160.0)
    short = board.start({"fault": "jitter", "duration": "30s"}, 170.0)
    board.expire(199.0)
    board.expire(200.0)
    assert [(fault.id, end) for fault, end in board.ended(0.0)] == [(first.id, 160.0), (short.id, 200.0)]
    assert [fault.id for fault, _ in board.ended(180.0)] == [short.id]


def test_what_struck_in_a_drill_is_not_told_before_it_is_revealed():
    """Though it has ended."""
    board = FaultBoard(load_job("cluster"))
    board.start({"fault": "straggler"}, 100.0)
    board.stop_all()
    board.unrevealed = lambda: True
    assert board.ended(0.0) == []
    board.unrevealed = lambda: False
    assert len(board.ended(0.0)) == 1
