"""The engine: time, determinism, and what it publishes when."""

import threading

import numpy as np
import pytest

from stepscope.phases import PHASES
from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.pages import Pages

EPOCH = 1_700_000_000.0


def make(job, seed=1):
    return Engine(job, FaultBoard(job), seed=seed, now=EPOCH)


def all_text(engine):
    pages = Pages(engine, lambda: engine.now)
    return [pages.text(*name) for name in pages.names() if name[0] != "truth"]


def values(lines, prefix):
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(prefix)]


def test_the_same_seed_gives_the_same_run_however_time_advances(cluster):
    """In one leap, or in many small steps."""
    leap, walk, other = make(cluster), make(cluster), make(cluster, seed=2)
    leap.advance(EPOCH + 40)
    other.advance(EPOCH + 40)
    for moment in np.linspace(0, 40, 301):
        walk.advance(EPOCH + float(moment))
    assert all_text(leap) == all_text(walk)
    assert all_text(leap) != all_text(other)


def test_nothing_is_published_before_it_happened(cluster):
    """A step appears when its last rank has ended it."""
    engine = make(cluster)
    engine.advance(EPOCH + 0.5)
    assert engine.totals.steps == 0
    assert engine.next_event() > EPOCH + 0.5
    engine.advance(EPOCH + 5)
    assert 5 < engine.totals.steps < 15
    assert engine.totals.last_ended.max() <= EPOCH + 5


def test_phases_add_up_to_the_time_that_passed(cluster):
    """For each rank, from the start to the end of its last step, to the microsecond."""
    engine = make(cluster)
    engine.advance(EPOCH + 300)
    np.testing.assert_allclose(engine.totals.phase_seconds.sum(axis=0), engine.totals.last_ended - EPOCH, atol=1e-6)


def test_the_current_phase_is_the_one_entered_last(cluster):
    """While one rank computes, the others wait in all-reduce."""
    engine = make(cluster)
    engine.board.start({"fault": "straggler", "target": {"rank": 9}, "severity": 20}, now=EPOCH)
    counts = dict.fromkeys(PHASES, 0)
    for moment in EPOCH + np.linspace(20, 40, 101):
        engine.advance(float(moment))
        phases, since = engine.current_phase(float(moment))
        assert (since <= moment).all()
        if PHASES[phases[0]] == "allreduce":
            counts[PHASES[phases[9]]] += 1
    assert counts["backward"] > 10
    assert counts["allreduce"] == 0


def test_a_fault_strikes_the_step_that_starts_after_it(cluster):
    """And is gone with the step that starts after it was stopped."""
    engine = make(cluster)
    engine.advance(EPOCH + 30)
    fault = engine.board.start({"fault": "straggler", "severity": 3}, now=engine.now)
    engine.advance(EPOCH + 33)
    assert engine.totals.last_duration.max() > 0.8
    engine.board.stop(fault.id)
    engine.advance(EPOCH + 36)
    assert engine.totals.last_duration.max() < 0.4


def test_only_the_end_of_a_learning_rate_fault_reloads_the_checkpoint(cluster):
    """What else is started or stopped changes no weights, even when the gradient is out of band."""
    engine = make(cluster)
    engine.advance(EPOCH + 30)
    corrupt = engine.board.start({"fault": "silent_corruption", "severity": 1000}, now=engine.now)
    engine.advance(EPOCH + 40)
    assert engine.learner.troubled
    engine.board.start({"fault": "straggler"}, now=engine.now)
    engine.board.stop(corrupt.id)
    spent = engine.learner.weights.spent
    engine.advance(EPOCH + 41)
    assert engine.learner.weights.spent > spent
    faulty = engine.board.start({"fault": "gradient_explosion"}, now=engine.now)
    engine.advance(EPOCH + 50)
    engine.board.stop(faulty.id)
    engine.advance(EPOCH + 51)
    assert engine.learner.weights.spent < spent


def test_evaluation_and_checkpoints_come_on_schedule(cluster):
    """The distractors of a healthy run."""
    engine = make(cluster)
    engine.advance(EPOCH + 1250)
    assert engine.totals.run.checkpoints == engine.totals.steps // engine.job.schedule.checkpoint_every_steps
    assert engine.totals.run.checkpoints >= 1
    assert engine.totals.run.last_checkpoint < EPOCH + 1250


def test_reading_while_the_engine_runs_is_safe(cluster):
    """Pages are rendered from a copy: no scrape sees half a step."""
    engine = make(cluster)
    engine.advance(EPOCH + 10)
    pages = Pages(engine, lambda: engine.now)
    wrong, done = [], threading.Event()

    def scrape():
        while not done.is_set():
            lines = pages.text("training", "node-0").splitlines()
            phases = sum(values(lines, "training_phase_seconds_total{"))
            total = sum(values(lines, "training_step_duration_seconds_sum"))
            if phases != pytest.approx(total, rel=1e-9):
                wrong.append((phases, total))

    threads = [threading.Thread(target=scrape) for _ in range(3)]
    for thread in threads:
        thread.start()
    for second in range(200):
        engine.advance(EPOCH + 11 + second)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
