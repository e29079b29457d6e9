"""Scenarios: what starts together."""

import pytest

from stepsim.board import FaultBoard, FaultError
from stepsim.faults import FAULTS
from stepsim.job import PRESETS, load_job
from stepsim.scenarios import SCENARIOS, UnknownScenario, possible, requests_of


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_can_start_on_the_default_job(name):
    """All of its faults, each of which ends by itself."""
    board = FaultBoard(load_job("cluster"))
    started = board.start_all(requests_of({"scenario": name}), 100.0)
    assert {fault.fault for fault in board.active()} == {request["fault"] for request in SCENARIOS[name].requests}
    assert all(fault.duration_seconds for fault in started)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_job_is_offered_what_it_can_have(preset):
    """A laptop has no network."""
    board = FaultBoard(load_job(preset))
    offered = possible(board.faults)
    assert len(offered) >= 4
    for scenario in offered:
        board.start_all(scenario.requests, 100.0)
    assert (SCENARIOS["after_the_upgrade"] in offered) == ("nccl_fallback" in board.faults)


def test_all_start_or_none():
    """The second one is impossible."""
    board = FaultBoard(load_job("cluster"))
    with pytest.raises(FaultError, match="no rank 99"):
        board.start_all([{"fault": "straggler"}, {"fault": "straggler", "target": {"rank": 99}}], 100.0)
    assert board.active() == []


@pytest.mark.parametrize("body", [{}, {"scenario": "rain"}, {"scenario": 3}, {"scenario": "peak_hours", "severity": 2}])
def test_what_names_no_scenario_is_refused(body):
    """With what there is."""
    with pytest.raises(UnknownScenario, match="there are thermal_night, peak_hours"):
        requests_of(body)


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({}, "scenario", "^`scenario` is missing; there are"),
        ({"scenario": "nope"}, "scenario", "^unknown scenario 'nope'; there are"),
        ({"scenario": "peak_hours", "severity": 2}, "severity", "^unknown field 'severity'"),
    ],
)
def test_the_wrong_part_is_named(body, field, said):
    """As with a fault."""
    with pytest.raises(UnknownScenario, match=said) as error:
        requests_of(body)
    assert error.value.field == field


def test_no_scenario_has_a_severity_that_its_fault_forbids():
    """Nor one that does nothing."""
    for scenario in SCENARIOS.values():
        for request in scenario.requests:
            scale = FAULTS[request["fault"]].severity
            assert request.get("severity", scale.plain) != scale.neutral
