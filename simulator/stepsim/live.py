"""A simulated job in real time: the engine's thread, its state file, and what the last half minute looked like."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepsim.board import ActiveFault, FaultBoard, FaultError
from stepsim.catalogue import catalogue
from stepsim.engine import Engine
from stepsim.history import LEAD_SECONDS
from stepsim.incidents import Incidents, Pace, draw, incident_rng, log_incident
from stepsim.job import Job
from stepsim.practice.live.blind import Blind
from stepsim.recent import Lap, Recent, Sample
from stepsim.state import SavedState, load_state, save_state

log = logging.getLogger("stepsim")

CATCH_UP_SECONDS = 120.0
LONGEST_SLEEP_SECONDS, SHORTEST_SLEEP_SECONDS = 0.25, 0.005


class LiveJob:
    """Runs until closed. ``failed`` is set when the engine's thread died, which ends the process."""

    def __init__(
        self,
        job: Job,
        *,
        seed: int = 0,
        state_file: Path | None = None,
        clock: Callable[[], float] = time.time,
        incidents: Pace | None = None,
        blind: bool = False,
    ) -> None:
        self._clock = clock
        self._state_file = state_file
        saved = load_state(state_file) if state_file else None
        if saved and saved.run != job.run:
            log.warning("the state file is of run %r: run %r begins anew", saved.run, job.run)
            saved = None
        self._attempt = saved.attempt + 1 if saved else 0
        checkpoint = saved.checkpoint if saved else None
        self.board = FaultBoard(job, _applicable(job, saved, clock()) if saved else [])
        begin = _begin(saved, clock())
        drawn = draw(job, incidents, incident_rng(seed, self._attempt)) if incidents else None
        usual = Incidents(drawn, begin=begin, told=None if blind else log_incident) if drawn else None
        self.practice = Blind(job, self.board, clock, usual)
        self.engine = Engine(
            job, self.board, seed=seed, now=begin, attempt=self._attempt, checkpoint=checkpoint, incidents=self.practice.stage,
        )  # fmt: skip
        self.recent = Recent(EngineSource(self.engine))
        self.failed = threading.Event()
        self._closing = threading.Event()
        self._saving = threading.Lock()
        self.board.changed = self._save
        self._thread = threading.Thread(target=self._run, name="stepsim-engine", daemon=True)

    def describe(self) -> dict[str, Any]:
        """What runs, in the console's words."""
        job = self.engine.job
        return {"run": job.run, "nodes": job.nodes, "ranks": job.ranks, "accelerator": job.gpu.model_name,
                "model": job.model.name, "gpus_per_node": job.gpus_per_node,
                "gradient_bytes": job.model.parameters * job.network.gradient_bytes}  # fmt: skip

    def catalogue(self) -> dict[str, Any]:
        return catalogue(self.engine.job, self.board.faults)

    def start(self) -> None:
        self._save()
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        checkpoints = 0
        try:
            while not self._closing.is_set():
                self._keep_up()
                self.recent.sample()
                if self.engine.totals.run.checkpoints != checkpoints:
                    checkpoints = self.engine.totals.run.checkpoints
                    self._save()
                wait = self.engine.next_event() - self._clock()
                self._closing.wait(min(max(wait, SHORTEST_SLEEP_SECONDS), LONGEST_SLEEP_SECONDS))
        except Exception:
            log.exception("the simulation stopped")
            self.failed.set()

    def _keep_up(self) -> None:
        """Advance to the present. A machine that slept, or whose clock was set, slept with its job: time is shifted."""
        ahead = self._clock() - self.engine.now
        if ahead > CATCH_UP_SECONDS or ahead < -2 * LEAD_SECONDS:
            log.warning("the clock jumped by %.0f s: the job goes on from here", ahead)
            self.engine.shift(ahead)
        self.engine.advance(max(self._clock(), self.engine.now))

    def _save(self) -> None:
        if self._state_file is None:
            return
        with self._saving:
            checkpoint, faults = self.engine.learner.checkpoint, self.board.told()  # a drill's do not survive it
            state = SavedState(run=self.engine.job.run, attempt=self._attempt, checkpoint=checkpoint, faults=faults)
            try:
                save_state(self._state_file, state)
            except OSError as error:
                log.error("cannot save faults and checkpoint: %s", error)


class EngineSource:
    """A simulated job's totals, for the console."""

    def __init__(self, engine: Engine) -> None:
        job = engine.job
        self._engine = engine
        self._nodes = tuple(job.node_name(rank // job.gpus_per_node) for rank in range(job.ranks))
        self.ideal_step_seconds = job.tokens_per_gpu * job.model.flops_per_token / job.gpu.peak_flops

    def now(self) -> float:
        return self._engine.now

    def nodes(self) -> Sequence[str]:
        return self._nodes

    def lap(self) -> Lap | None:
        lap = self._engine.referee.lap
        return Lap(step=lap[0], seconds=lap[1], nodes=self._nodes) if lap else None

    def sample(self) -> Sample | None:
        """None before the first finished window of the telemetry."""
        engine = self._engine
        if not engine.telemetry.gpus.observed:
            return None
        with engine.lock:
            referee, run = engine.referee, engine.totals.run
            return Sample(
                time=engine.now,
                laps=referee.outcomes["complete"],
                path=np.array(referee.path_seconds),
                late=np.array(referee.late_seconds),
                late_steps=np.array(referee.late_steps, dtype=float),
                utilization=float(engine.telemetry.gpus.utilization.mean()),
                loss=run.loss,
                gradient_norm=run.gradient_norm,
                nonfinite=run.nonfinite,
            )


def _begin(saved: SavedState | None, now: float) -> float:
    """Where a generated past ends, if that is about now: the engine catches up at once, or waits. Else now."""
    until = saved.until if saved else None
    return until if until is not None and -LEAD_SECONDS <= now - until < CATCH_UP_SECONDS else now


def _applicable(job: Job, saved: SavedState, now: float) -> list[ActiveFault]:
    """The saved faults that this job can have: it may have fewer ranks than the one that saved them."""
    board = FaultBoard(job)
    kept = []
    for fault in saved.faults:
        try:
            board.check({"fault": fault.fault, "target": fault.target, "severity": fault.severity}, now)
        except FaultError as error:
            log.warning("dropped a saved fault that this job cannot have: %s", error)
        else:
            kept.append(fault)
    return kept
