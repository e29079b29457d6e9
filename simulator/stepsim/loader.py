"""The data loaders of all ranks: workers that read and decode ahead, and hand over batches in order.

Worker k mod W makes batch k. It starts when it is free and batch k − W·prefetch was taken, so a fault in storage is
felt only after the queue of finished batches has drained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsim.draws import Draws, FloatArray
from stepsim.params import OUTAGE_PERIOD_SECONDS, Params

TRAINING_CPUS_PER_GPU = 1.0
"""The Python process that launches kernels keeps one core busy."""
STALL_SHAPE = 1.6
"""Pareto shape of a stalled read: heavy-tailed, as object stores and parallel file systems are under load."""
STALL_CAP_SECONDS = 30.0
"""After which a client retries."""


@dataclass(kw_only=True, slots=True)
class Loader:
    """Arrays have shape (batches in flight, ranks); batch k has row k mod in-flight."""

    read_start: FloatArray
    read_end: FloatArray
    ready: FloatArray
    """When a batch is decoded."""
    batch: int = 0
    accounted: float = 0.0
    """Until when reading was accounted by ``blocked_seconds``."""
    taken: list[tuple[FloatArray, FloatArray]]
    """Start and end of the reads of batches that were taken, as long as they are not accounted."""

    @classmethod
    def start(cls, params: Params, draws: Draws, now: float) -> Loader:
        """Workers begin with empty queues."""
        loader = params.job.loader
        shape = (loader.workers * loader.prefetch, params.job.ranks)
        self = cls(
            read_start=np.full(shape, now), read_end=np.full(shape, now), ready=np.full(shape, now), accounted=now,
            taken=[],
        )  # fmt: skip
        decode = decode_seconds(params)
        for batch in range(shape[0]):
            free = self.ready[batch - loader.workers] if batch >= loader.workers else self.ready[batch]
            self._schedule(batch, free, params, decode, draws)
        return self

    def take(self, asked: FloatArray, params: Params, decode: FloatArray, draws: Draws) -> FloatArray:
        """When each rank, which asked at ``asked``, has its next batch. Lets the workers begin a further one.

        ``decode``: the ``decode_seconds`` of ``params``.
        """
        rows = len(self.ready)
        slot = self.batch % rows
        taken = np.maximum(asked, self.ready[slot])
        self.taken.append((self.read_start[slot].copy(), self.read_end[slot].copy()))
        free = self.ready[(self.batch + rows - params.job.loader.workers) % rows]
        self._schedule(slot, np.maximum(free, taken), params, decode, draws)
        self.batch += 1
        return taken

    def _schedule(self, slot: int, start: FloatArray, params: Params, decode: FloatArray, draws: Draws) -> None:
        loader = params.job.loader
        read = loader.read_seconds * params.read_scale * np.exp(loader.read_sigma * draws.next_read())
        uniform = draws.next_stall()
        if uniform.min() < params.stall_probability:
            read += _stalls(uniform, params)
        begin = _after_outage(start, params.outage_seconds) if params.outage_seconds else start
        self.read_start[slot] = start
        end = np.add(begin, read, out=self.read_end[slot])
        np.add(end, decode, out=self.ready[slot])

    def blocked_seconds(self, until: float) -> FloatArray:
        """Worker seconds spent in reads since the last call, per rank; more than one worker can read at once."""
        blocked: FloatArray = _overlap(self.read_start, self.read_end, self.accounted, until).sum(axis=0)
        for start, end in self.taken:
            blocked += _overlap(start, end, self.accounted, until)
        self.taken = [(start, end) for start, end in self.taken if end.max() > until]
        self.accounted = until
        return blocked

    def shift(self, seconds: float) -> None:
        """Move everything in time."""
        for moments in (self.read_start, self.read_end, self.ready, *(row for pair in self.taken for row in pair)):
            moments += seconds
        self.accounted += seconds


def decode_seconds(params: Params) -> FloatArray:
    """How long a worker of each rank decodes a batch, shape (ranks,).

    The workers of a node share the cores that the trainers leave. Where these cannot decode as fast as all workers
    together would, each worker gets slower until they can: a closed queueing network's bottleneck law, X = cores/d.
    """
    job, loader = params.job, params.job.loader
    alone: FloatArray = loader.decode_seconds / params.cpu_speed
    cores = max(1.0, job.cpus_per_node - TRAINING_CPUS_PER_GPU * job.gpus_per_node)
    workers = loader.workers * job.gpus_per_node
    return np.maximum(alone, alone * workers / cores - loader.read_seconds * params.read_scale)


def _overlap(start: FloatArray, end: FloatArray, since: float, until: float) -> FloatArray:
    return np.maximum(np.minimum(end, until) - np.maximum(start, since), 0.0)


def _stalls(uniform: FloatArray, params: Params) -> FloatArray:
    """Pareto stalls for the ranks whose draw is below the stall probability; the same draw gives the length."""
    stalled = uniform < params.stall_probability
    quantile = np.where(stalled, uniform / params.stall_probability, 1.0)
    length = params.stall_seconds * np.maximum(quantile, 1e-9) ** (-1 / STALL_SHAPE)
    return np.where(stalled, np.minimum(length, STALL_CAP_SECONDS), 0.0)


def _after_outage(start: FloatArray, outage: float) -> FloatArray:
    """Reads that start while storage stands still begin when it is back: the first seconds of every period."""
    into = np.mod(start, OUTAGE_PERIOD_SECONDS)
    return np.where(into < outage, start - into + outage, start)
