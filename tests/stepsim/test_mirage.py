"""What the project must prove: high utilization masks collapsing MFU, and the late seconds name who is to blame."""

from dataclasses import dataclass

import numpy as np
import pytest

from stepscope.phases import ALLREDUCE, BACKWARD, DATA_WAIT, FORWARD, PHASES
from stepsim.board import FaultBoard
from stepsim.engine import Engine

EPOCH = 1_700_000_000.0
WARM, SETTLE, WATCH = 60.0, 60.0, 300.0


@dataclass(frozen=True)
class Seen:
    """Means over the watched minutes."""

    step_seconds: float
    mfu: float
    utilization: float
    path: np.ndarray
    """Shares by phase."""
    late: np.ndarray
    """Shares of wall time, (phases, ranks)."""
    phases: np.ndarray
    """Seconds per step, (phases, ranks)."""
    watts: np.ndarray
    celsius: np.ndarray
    nonfinite: int


def watch(job, **request):
    """Run the job, start the fault, let it settle, and watch."""
    engine = Engine(job, FaultBoard(job), seed=7, now=EPOCH)
    engine.advance(EPOCH + WARM)
    if request:
        engine.board.start(request, now=engine.now)
    engine.advance(EPOCH + WARM + SETTLE)
    before = snapshot(engine)
    utilization, watts = [], []
    for second in range(int(WATCH)):
        engine.advance(EPOCH + WARM + SETTLE + second + 1)
        utilization.append(engine.telemetry.gpus.utilization.copy())
        watts.append(engine.telemetry.gpus.watts.copy())
    steps, path, late, phases = (now - then for now, then in zip(snapshot(engine), before, strict=True))
    wall = path.sum()
    return Seen(
        step_seconds=wall / steps,
        mfu=job.flops_per_step * steps / wall / job.gpu.peak_flops,
        utilization=float(np.mean(utilization)),
        path=path / wall,
        late=late / wall,
        phases=phases / steps,
        watts=np.mean(watts, axis=0),
        celsius=engine.telemetry.gpus.celsius,
        nonfinite=engine.totals.run.nonfinite,
    )


def snapshot(engine):
    referee = engine.referee
    return (
        engine.totals.steps,
        np.array(referee.path_seconds),
        np.array(referee.late_seconds),
        engine.totals.phase_seconds.copy(),
    )


@pytest.fixture(scope="module")
def healthy(cluster):
    return watch(cluster)


def test_a_healthy_cluster(healthy):
    """MFU as published for this model and hardware, busy GPUs at their power cap, and no culprit."""
    assert 0.36 <= healthy.mfu <= 0.48
    assert healthy.utilization >= 0.95
    assert 640 <= healthy.watts.mean() <= 700
    assert 65 <= healthy.celsius.mean() <= 72
    assert healthy.late.sum(axis=0).max() < 0.02
    assert healthy.path[[FORWARD, BACKWARD]].sum() > 0.85
    assert healthy.nonfinite == 0


def test_straggler(cluster, healthy):
    """One GPU at 70 %: MFU falls by a fifth, utilization does not move, and the late seconds name rank and phase."""
    seen = watch(cluster, fault="straggler", target={"rank": 17})
    assert seen.step_seconds >= 1.25 * healthy.step_seconds
    assert seen.mfu <= 0.8 * healthy.mfu
    assert abs(seen.utilization - healthy.utilization) < 0.02
    assert seen.phases[ALLREDUCE].argmin() == 17
    assert seen.late.sum(axis=0).argmax() == 17
    assert seen.late[[FORWARD, BACKWARD], 17].sum() > 0.95 * seen.late.sum()
    assert seen.late[BACKWARD, 17] == pytest.approx(2 * seen.late[FORWARD, 17], rel=0.05)
    victims = np.delete(np.arange(32), 17)
    assert seen.watts[victims].mean() == pytest.approx(510, abs=25)
    assert seen.celsius[victims].mean() == pytest.approx(58, abs=2)


def test_data_starvation(cluster, healthy):
    """4 % of reads stall: MFU at least halves, utilization stays, and only the critical path says that it is data."""
    seen = watch(cluster, fault="data_starvation")
    assert seen.mfu <= 0.5 * healthy.mfu
    assert seen.utilization >= 0.9
    assert seen.path.argmax() == DATA_WAIT
    assert seen.phases[DATA_WAIT].mean() / seen.step_seconds < 0.1
    assert seen.late.sum(axis=0).max() < 0.4 * seen.late.sum()


def test_storage_node_slow(cluster, healthy):
    """One node's reads take three times as long: MFU falls by a quarter or more, and that node is named."""
    seen = watch(cluster, fault="storage_node_slow", target={"node": "node-2"})
    assert seen.mfu <= 0.75 * healthy.mfu
    assert seen.utilization >= 0.93
    by_node = seen.late.reshape(len(PHASES), 4, 8).sum(axis=2)
    assert by_node[DATA_WAIT].argmax() == 2
    assert by_node[DATA_WAIT, 2] > 0.9 * seen.late.sum()


def test_storage_outage(cluster, healthy):
    """The one data fault that utilization shows: all ranks wait at once."""
    seen = watch(cluster, fault="storage_outage")
    assert 0.6 < seen.utilization < 0.85
    assert seen.phases[DATA_WAIT].mean() / seen.step_seconds == pytest.approx(seen.path[DATA_WAIT], rel=0.1)


def test_gradient_explosion_leaves_the_hardware_alone(cluster, healthy):
    """Loss is lost, and everything that a GPU dashboard shows stays inside its healthy band."""
    seen = watch(cluster, fault="gradient_explosion")
    assert seen.nonfinite > 500
    assert seen.step_seconds == pytest.approx(healthy.step_seconds, rel=0.01)
    assert seen.mfu == pytest.approx(healthy.mfu, rel=0.01)
    assert seen.utilization == pytest.approx(healthy.utilization, abs=0.01)
    assert seen.watts.mean() == pytest.approx(healthy.watts.mean(), rel=0.01)
    assert seen.celsius.mean() == pytest.approx(healthy.celsius.mean(), abs=1)


@pytest.mark.parametrize("preset_ranks", [8, 256])
def test_the_larger_the_job_the_better_utilization_hides_starvation(preset_ranks, cluster):
    """With N ranks of which one is late at a time, a rank is idle for 1/N of the loss."""
    job = cluster.model_copy(update={"nodes": preset_ranks // 8})
    seen = watch(job, fault="data_starvation")
    assert (seen.utilization > 0.97) == (preset_ranks == 256)
    assert seen.mfu < 0.25


@pytest.mark.parametrize("seconds", [1.0, 1.5, 2.0, 2.5, 3.0, 10.0])
def test_an_explosion_stopped_at_any_moment_leaves_a_healthy_loss(cluster, seconds):
    """Before the overflow, too: a diverged network does not come back by itself, and is never checkpointed."""
    job = cluster.model_copy(update={"schedule": cluster.schedule.model_copy(update={"checkpoint_every_steps": 3})})
    engine = Engine(job, FaultBoard(job), seed=3, now=EPOCH)
    engine.advance(EPOCH + 30)
    fault = engine.board.start({"fault": "gradient_explosion"}, now=engine.now)
    engine.advance(EPOCH + 30 + seconds)
    engine.board.stop(fault.id)
    engine.advance(EPOCH + 60 + seconds)
    assert 1.8 < engine.totals.run.loss < 6
    assert engine.totals.run.gradient_norm < 0.6


def test_stopping_an_explosion_reloads_the_last_finite_checkpoint(cluster):
    """The loss is a number again, and the step counter goes on."""
    engine = Engine(cluster, FaultBoard(cluster), seed=3, now=EPOCH)
    engine.advance(EPOCH + 30)
    fault = engine.board.start({"fault": "gradient_explosion"}, now=engine.now)
    engine.advance(EPOCH + 60)
    assert engine.totals.run.loss != engine.totals.run.loss
    steps, nonfinite = engine.totals.steps, engine.totals.run.nonfinite
    engine.board.stop(fault.id)
    engine.advance(EPOCH + 90)
    assert 1.8 < engine.totals.run.loss < 6
    assert engine.totals.steps > steps
    assert engine.totals.run.nonfinite - nonfinite <= 2
