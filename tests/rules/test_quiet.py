"""A healthy job fires nothing: simulated hours, evaluated by promtool every 15 s, in overlapping chunks.

``--quiet-hours`` says how many; the soak asks for 24.
"""

import pytest

from stepsim.job import load_job

STEP = 15
CHUNK, OVERLAP = 480, 60
"""Scrapes: two hours, and fifteen minutes."""

pytestmark = pytest.mark.prometheus


@pytest.mark.parametrize("preset", ["cluster", "laptop", "node"])
def test_a_healthy_day_fires_nothing(request, tmp_path, replay, preset):
    """Checkpoints, evaluations, jitter and the odd slow read included."""
    job = load_job(preset)
    day = replay(job, step=STEP).run(3600 * request.config.getoption("quiet_hours"))
    assert len(day.series) > 25 * job.ranks
    for first in range(0, day.scrapes, CHUNK - OVERLAP):
        assert day.firings(tmp_path, first, min(first + CHUNK, day.scrapes)) == {}
