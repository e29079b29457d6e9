"""A healthy job fires nothing: simulated hours, evaluated by promtool every 15 s, in overlapping chunks.

``--quiet-hours`` says how many of ``cluster``; the soak asks for a week. What no alert has grounds for, the diagnosis, whose
grounds are the same, does not find either.
"""

import pytest

from stepsim.job import load_job

STEP = 15
CHUNK, OVERLAP = 480, 60
"""Scrapes: two hours, and fifteen minutes."""
SHARES = {"cluster": 1.0, "laptop": 1 / 12, "node": 1 / 12, "vision": 1 / 12}
"""Of the hours."""

pytestmark = pytest.mark.prometheus


@pytest.mark.parametrize("preset", SHARES)
def test_a_healthy_day_fires_nothing(request, tmp_path, replay, preset):
    """Checkpoints, evaluations, jitter and the odd slow read included."""
    job = load_job(preset)
    hours = max(0.5, SHARES[preset] * request.config.getoption("quiet_hours"))
    day = replay(job, step=STEP)
    while (day.forgotten + day.scrapes) * STEP < 3600 * hours:
        day.run(STEP * min(CHUNK - day.scrapes, round(3600 * hours / STEP) - day.forgotten - day.scrapes))
        assert len(day.series) > 25 * job.ranks
        assert day.firings(tmp_path) == {}
        day.forget(max(0, day.scrapes - OVERLAP))
