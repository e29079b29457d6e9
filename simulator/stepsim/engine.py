"""The engine: takes a simulated job through time, and feeds what happens to the library as a real job would.

Time is seconds since the epoch, and advances only in ``advance``: in real time, or as fast as it can.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace

import numpy as np

from stepscope.record import Column, StepRecord
from stepscope.referee import Referee
from stepsim.board import FaultBoard
from stepsim.draws import Draws
from stepsim.fleet import EVERY_RANK, ArrayOperations, FleetTotals
from stepsim.job import Job
from stepsim.learning import Learner, Weights
from stepsim.model import Plan, State, plan, simulate_step
from stepsim.telemetry import Telemetry
from stepsim.timeline import PHASE_OF_SEGMENT, SEGMENTS, Timeline


class Engine:
    """Hold ``lock`` while reading ``totals``, ``referee`` or ``telemetry``."""

    def __init__(
        self,
        job: Job,
        board: FaultBoard,
        *,
        seed: int,
        now: float,
        attempt: int = 0,
        checkpoint: Weights | None = None,
    ) -> None:
        self.job, self.board, self.attempt = job, board, attempt
        self.lock = threading.Lock()
        self.now = now
        self.totals = FleetTotals(job.ranks)
        nodes = [rank // job.gpus_per_node for rank in range(job.ranks)]
        self.referee = Referee(nodes, ArrayOperations(job.gpus_per_node))
        self.telemetry = Telemetry(job, now)
        self.learner = Learner.start(checkpoint)
        self._draws = Draws((seed, attempt), job.ranks)
        self._signature = board.signature(now)
        self._plan: Plan = plan(board.params(now))
        self._state = State.start(self._plan, self._draws, now=now, step=self.learner.weights.step)
        self._timelines: deque[Timeline] = deque()
        self._records: deque[tuple[float, StepRecord]] = deque()
        """Not yet published, with the time at which the last rank has ended them."""

    def advance(self, until: float) -> None:
        """Simulate up to that moment, window by window: nothing that ends later is published."""
        while self.telemetry.window_end <= until:
            self._advance_within(self.telemetry.window_end)
        self._advance_within(until)

    def shift(self, seconds: float) -> None:
        """Move all that is under way in time, as when the machine slept: nothing happened meanwhile."""
        with self.lock:
            self.now += seconds
            self.telemetry.window_start += seconds
            self._state.shift(seconds)
            self._timelines = deque(timeline.shifted(seconds) for timeline in self._timelines)
            self._records = deque(
                (end + seconds, replace(record, ended=record.ended + seconds)) for end, record in self._records
            )

    def next_event(self) -> float:
        """When the next step or window ends: until then ``advance`` has nothing to publish."""
        ends = self._records[0][0] if self._records else self.now
        return min(ends, self.telemetry.window_end)

    def current_phase(self, now: float, ranks: slice = EVERY_RANK) -> tuple[Column, Column] | None:
        """Per rank the index of the phase entered last, and when it was entered."""
        if not self._timelines:
            return None
        starts = np.concatenate([timeline.edges[:-1, ranks] for timeline in self._timelines])
        entered = np.maximum((starts <= now).sum(axis=0) - 1, 0)
        phases = np.array(PHASE_OF_SEGMENT)[entered % len(SEGMENTS)]
        return phases, starts[entered, np.arange(starts.shape[1])]

    def _advance_within(self, until: float) -> None:
        """As ``advance``, for a moment not later than the end of the current window."""
        with self.lock:
            while self._state.first_end <= until:
                self._simulate()
            if self.telemetry.window_end <= until:
                blocked = self._state.loader.blocked_seconds(until)
                self.telemetry.observe(self._timelines, self._plan, blocked)
            while self._records and self._records[0][0] <= until:
                self._publish(self._records.popleft()[1])
            self._retire()
            self.now = until

    def _simulate(self) -> None:
        self._follow_board(self._state.first_end)
        timeline = simulate_step(self._plan, self._state, self._draws)
        learning = self.learner.step(self._plan.params, self._draws.learning)
        if timeline.checkpointed:
            self.learner.save()
        self._timelines.append(timeline)
        record = StepRecord(
            step=timeline.step,
            attempt=self.attempt,
            before=timeline.before(),
            after=timeline.after(),
            ended=timeline.ends,
            tokens=self.job.tokens_per_gpu,
            flops=self.job.flops_per_step,
            learning=learning,
            checkpointed=timeline.checkpointed,
        )
        self._records.append((timeline.last_end, record))

    def _follow_board(self, now: float) -> None:
        """Take over what was started, ramped or stopped since the last step."""
        self.board.expire(now)
        signature = self.board.signature(now)
        if signature == self._signature:
            return
        self._signature = signature
        self._plan = plan(self.board.params(now))
        if self._plan.params.learning_rate_scale == 1.0 and self.learner.troubled:
            self.learner.reload()

    def _publish(self, record: StepRecord) -> None:
        self.totals.add(record)
        self.referee.add(record)

    def _retire(self) -> None:
        """Forget timelines that no window and no current phase will ask for."""
        start = self.telemetry.window_start
        while len(self._timelines) > 1 and self._timelines[0].last_end <= start:
            self._timelines.popleft()
