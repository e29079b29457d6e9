"""What survives a restart."""

import numpy as np
import pytest

from stepsim.board import ActiveFault
from stepsim.job import load_job
from stepsim.learning import Weights
from stepsim.live import LiveJob
from stepsim.state import SavedState, StateError, load_state, save_state

FAULT = ActiveFault(
    id="abc", fault="straggler", target={"rank": 5}, severity=1.43, started=1000.0, duration_seconds=600.0
)


def test_a_saved_state_is_read_back(tmp_path):
    """Faults, checkpoint and the restart count."""
    state = SavedState(
        attempt=3, checkpoint=Weights(step=1800, error=0.01, curvature=1.1, spent=2000.0), faults=[FAULT]
    )
    save_state(tmp_path / "state.json", state)
    assert load_state(tmp_path / "state.json") == state
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_no_file_is_no_state(tmp_path):
    """A first start."""
    assert load_state(tmp_path / "state.json") is None


@pytest.mark.parametrize("kept", [0, 1, 40, 0.5, 0.99])
def test_a_truncated_file_is_refused_and_left_alone(tmp_path, kept):
    """It says which file, and what to do."""
    file = tmp_path / "state.json"
    save_state(file, SavedState(faults=[FAULT]))
    whole = file.read_text()
    cut = whole[: int(kept * len(whole)) if isinstance(kept, float) else kept]
    file.write_text(cut)
    with pytest.raises(StateError, match=r"state\.json is damaged.*delete it"):
        load_state(file)
    assert file.read_text() == cut


def test_a_later_version_is_refused(tmp_path):
    """Rather than misread."""
    (tmp_path / "state.json").write_text('{"version": 99}')
    with pytest.raises(StateError, match="version 99"):
        load_state(tmp_path / "state.json")


def clock():
    return 1300.0


def started(job, file, seconds=1300.0):
    """A live job that has run for a moment."""
    live = LiveJob(job, state_file=file, clock=lambda: seconds)
    live.start()
    live.close()
    return live


def test_a_job_that_does_not_start_changes_nothing(tmp_path, cluster):
    """As when its port is in use."""
    file = tmp_path / "state.json"
    save_state(file, SavedState(run="cluster", attempt=3, until=1290.0))
    before = file.read_text()
    LiveJob(cluster, state_file=file, clock=clock)
    assert file.read_text() == before


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_machine_that_slept_or_whose_clock_was_set_goes_on_from_here(cluster, jump):
    """Nothing happened meanwhile: no step is made up, and time goes on."""
    now = [1000.0]
    live = LiveJob(cluster, clock=lambda: now[0])
    live.engine.advance(1060.0)
    steps = live.engine.totals.steps
    now[0] = 1060.0 + jump
    live._keep_up()
    assert live.engine.totals.steps - steps <= 1
    now[0] += 30.0
    live._keep_up()
    assert live.engine.totals.steps - steps == pytest.approx(90, abs=4)
    assert live.engine.telemetry.gpus.utilization.mean() > 0.9
    assert abs(live.engine.totals.last_ended.max() - now[0]) < 1.0
    np.testing.assert_allclose(
        live.engine.totals.phase_seconds.sum(axis=0), live.engine.totals.last_ended - 1000.0 - jump, atol=1e-6
    )


def test_a_restart_restores_faults_and_goes_on_from_the_checkpoint(tmp_path, cluster):
    """The attempt counts up, so that replayed steps never mix with the first ones."""
    file = tmp_path / "state.json"
    first = started(cluster, file)
    first.board.start({"fault": "straggler", "target": {"rank": 9}}, now=1300.0)
    first.engine.learner.weights.step = 1800
    first.engine.learner.save()
    first.board.start({"fault": "data_starvation"}, now=1300.0)

    again = started(cluster, file)
    assert [fault.fault for fault in again.board.active()] == ["straggler", "data_starvation"]
    assert again.engine.attempt == 1
    assert again.engine.board.params(1300.0).compute_scale[9] == 1.43
    again.engine.advance(1305.0)
    assert again.engine.totals.steps > 0
    assert again.engine._state.step > 1800
    assert load_state(file).attempt == 1


def test_an_expired_fault_does_not_come_back(tmp_path, cluster):
    """Its time ran out while the simulator was down."""
    file = tmp_path / "state.json"
    save_state(file, SavedState(run="cluster", faults=[FAULT]))
    live = LiveJob(cluster, state_file=file, clock=lambda: 1601.0)
    live.engine.advance(1602.0)
    assert live.board.active() == []


def test_a_smaller_job_drops_the_faults_that_it_cannot_have(tmp_path, caplog):
    """And says so."""
    file = tmp_path / "state.json"
    save_state(file, SavedState(run="laptop", faults=[FAULT]))
    live = LiveJob(load_job("laptop"), state_file=file, clock=clock)
    assert live.board.active() == []
    assert "no rank 5; allowed: 0 to 3" in caplog.text


def test_another_run_begins_anew(tmp_path, caplog):
    """Its faults and its checkpoint are not this one's."""
    file = tmp_path / "state.json"
    save_state(file, SavedState(run="cluster", attempt=3, checkpoint=Weights(step=1800), faults=[FAULT]))
    live = LiveJob(load_job("node"), state_file=file, clock=clock)
    assert (live.board.active(), live.engine.attempt, live.engine._state.step) == ([], 0, 0)
    assert "run 'node' begins anew" in caplog.text


def test_a_live_job_takes_up_where_a_generated_past_ends(tmp_path, cluster):
    """It catches up at once or waits, so that no gap is seen; a past that is long over is not caught up with."""
    file = tmp_path / "state.json"
    for until, begin in ((1280.0, 1280.0), (1310.0, 1310.0), (900.0, 1300.0), (1400.0, 1300.0)):
        save_state(file, SavedState(run="cluster", until=until))
        assert LiveJob(cluster, state_file=file, clock=clock).engine.now == begin
        assert started(cluster, file).engine.now == max(begin, 1300.0)
        assert load_state(file).until is None
