"""The last half minute in numbers."""

import pytest

from stepsim.live import LiveJob


class Played:
    """A simulated job whose clock is moved by hand."""

    def __init__(self, job):
        self.now = 1_700_000_000.0
        self.job = LiveJob(job, clock=lambda: self.now)

    def run(self, seconds):
        reports = []
        for _ in range(seconds):
            self.now += 1
            self.job.engine.advance(self.now)
            self.job.recent.sample()
            reports.append(self.job.recent.report())
        return reports


@pytest.fixture
def played(cluster):
    return Played(cluster)


def test_nothing_is_known_before_the_first_window_is_over(played):
    """Not zero: nothing."""
    assert played.job.recent.report()["utilization"] is None
    assert played.run(2)[-1]["utilization"] is not None


def test_gpus_that_all_stand_still_count(played):
    """Storage that stands still for 10 s of every 30 leaves three quarters of utilization: idle seconds count, too."""
    played.run(30)
    played.job.board.start({"fault": "storage_outage"}, played.now)
    reports = played.run(150)[60:]
    mean = sum(report["utilization"] for report in reports) / len(reports)
    assert 0.65 < mean < 0.82
    assert [report["time"] for report in reports] == [reports[0]["time"] + n for n in range(len(reports))]


def test_mfu_falls_to_nothing_while_no_step_ends(played):
    """And a step has no length then; the moment of the last one is known."""
    healthy = played.run(40)[-1]
    assert 0.4 < healthy["mfu"] < 0.5
    played.job.board.start({"fault": "hang", "target": {"rank": 3}}, played.now)
    reports = played.run(60)
    assert reports[20]["mfu"] < 0.8 * healthy["mfu"]
    assert reports[-1]["mfu"] == 0
    assert reports[-1]["step_seconds"] is None
    assert 50 < played.now - played.job.recent.lap_ended <= 62
