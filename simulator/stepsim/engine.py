"""The engine: takes a simulated job through time, and feeds what happens to the library as a real job would.

Time is seconds since the epoch, and advances only in ``advance``: in real time, or as fast as it can.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from dataclasses import replace

import numpy as np

from stepscope.record import Column, StepRecord
from stepscope.referee import Referee
from stepsim.board import FaultBoard
from stepsim.draws import Draws, FloatArray
from stepsim.fleet import EVERY_RANK, ArrayOperations, FleetTotals
from stepsim.incidents import Incidents
from stepsim.job import Job
from stepsim.learning import Learner, Weights, local_gradient_norms
from stepsim.model import Plan, State, plan, resume_step, simulate_step
from stepsim.params import Params
from stepsim.power import thermal_limit
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
        incidents: Incidents | None = None,
    ) -> None:
        self.job, self.board, self.seed, self.attempt, self.incidents = job, board, seed, attempt, incidents
        self.lock = threading.Lock()
        self.now = now
        self.totals = FleetTotals(job.ranks)
        nodes = [rank // job.gpus_per_node for rank in range(job.ranks)]
        self.referee = Referee(nodes, ArrayOperations(job.gpus_per_node))
        self.telemetry = Telemetry(job, now)
        self.learner = Learner.start(checkpoint)
        self._draws = Draws((seed, attempt), job.ranks)
        self._signature = board.signature(now)
        self._thermal_watts: FloatArray | None = None
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
        if self.incidents:
            self.incidents.shift(seconds)
        with self.lock:
            self.now += seconds
            self.telemetry.window_start += seconds
            self._state.shift(seconds)
            self._timelines = deque(timeline.shifted(seconds) for timeline in self._timelines)
            self._records = deque(
                (end + seconds, replace(record, ended=record.ended + seconds)) for end, record in self._records
            )

    def fork(self) -> Engine:
        """A copy with a board of its own, which goes on with the same random numbers."""
        return copy.deepcopy(self, {id(lock): threading.Lock() for lock in (self.lock, self.board.lock)})

    def next_event(self) -> float:
        """When the next step or window ends: until then ``advance`` has nothing to publish."""
        ends = self._records[0][0] if self._records else self.now
        return min(ends, self.telemetry.window_end)

    @property
    def params(self) -> Params:
        """As they are now."""
        return self._plan.params

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
        if self.incidents:
            self.incidents.start_due(self.board, until)
        with self.lock:
            if self._state.waiting and self._follow_board(until):
                self._timelines.pop()
                self._keep(resume_step(self._plan, self._state, until))
            while self._state.first_end <= until:
                self._follow_board(self._state.first_end)
                self._keep(simulate_step(self._plan, self._state, self._draws))
            if self.telemetry.window_end <= until:
                blocked = self._state.loader.blocked_seconds(until)
                self.telemetry.observe(self._timelines, self._plan, blocked)
                self._follow_temperature()
            while self._records and self._records[0][0] <= until:
                self._publish(self._records.popleft()[1])
            self._retire()
            self.now = until

    def _keep(self, timeline: Timeline) -> None:
        """Take a step's timeline into account. One that waits for a stuck rank is no step yet."""
        self._timelines.append(timeline)
        if self._state.waiting:
            return
        params = self._plan.params
        learning = self.learner.step(params, self._draws.learning)
        if timeline.checkpointed:
            self.learner.save()
        norm, share = learning.gradient_norm, timeline.token_share
        record = StepRecord(
            step=timeline.step,
            attempt=self.attempt,
            before=timeline.before(),
            after=timeline.after(),
            ended=timeline.ends,
            tokens=params.job.tokens_per_gpu * share,
            flops=self._plan.flops * share,
            learning=learning,
            local_gradient_norm=None
            if norm is None
            else local_gradient_norms(norm, params.gradient_scale, self._draws.next_gradient()),
            checkpointed=timeline.checkpointed,
        )
        self._records.append((timeline.last_end, record))

    def _follow_board(self, now: float) -> bool:
        """Take over what was started, ramped or stopped since the last step; tell whether anything was."""
        self.board.expire(now)
        signature = self.board.signature(now)
        if signature == self._signature:
            return False
        self._signature = signature
        before, params = self._plan.params.learning_rate_scale, self.board.params(now)
        self._plan = plan(params, self._thermal_watts)
        if before != 1.0 == params.learning_rate_scale and self.learner.troubled:
            self.learner.reload()
        return True

    def _follow_temperature(self) -> None:
        """A GPU that gets too hot may draw less, and one that cools down more: its driver sees to that every second."""
        params = self._plan.params
        self._thermal_watts = thermal_limit(self.job, params.thermal_scale, self.telemetry.gpus.celsius)
        if (np.minimum(self._thermal_watts, params.power_limit_watts) != self._plan.limit_watts).any():
            self._plan = plan(params, self._thermal_watts)

    def _publish(self, record: StepRecord) -> None:
        self.totals.add(record)
        self.referee.add(record)

    def _retire(self) -> None:
        """Forget timelines that no window and no current phase will ask for."""
        start = self.telemetry.window_start
        while len(self._timelines) > 1 and self._timelines[0].last_end <= start:
            self._timelines.popleft()
