"""Drills for tests: small ones, simulated once."""

import pytest

from practice_drills import drill_of
from stepsim.practice.recording import record
from stepsim.practice.scenario import draw_scenario


@pytest.fixture(scope="session")
def played():
    """A straggler and a restart within an hour and a half: scenario and recording."""
    scenario = draw_scenario(drill_of(distractors=["job_restart"]), seed=3)
    return scenario, record(scenario)
