"""The clock of a rank on a CUDA device: pooled events on its compute stream. No synchronization while training.

Only a GPU can prove this module's figures: see docs/real-training.md. The tests drive it with fakes that behave like
CUDA's events.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from stepscope.timeline import Exhausted, local_scalar

MAX_EVENTS = 16_384
"""Events alive at once: a thousand steps of sixteen marks, more than any host runs ahead."""


class CudaClock:
    """Stamps are CUDA events with timing. ``torch`` is the module, ``device`` the rank's device. The compute stream is the
    one that is current when the clock is made: a phase that copies on another stream counts as far as compute waits for it.

    Synchronizes once, when it is made, to tie the device's time to the host's.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._stream = torch.cuda.current_stream(device)
        self._free: deque[Any] = deque()
        self._made = 0
        self._base = self.stamp()
        torch.cuda.synchronize(device)
        self._epoch = time.time()

    def stamp(self) -> Any:
        try:
            event = self._free.popleft()
        except IndexError:
            event = self._new()
        event.record(self._stream)
        return event

    def _new(self) -> Any:
        if self._made < MAX_EVENTS:
            self._made += 1
            return self._torch.cuda.Event(enable_timing=True)
        raise Exhausted(f"{MAX_EVENTS} CUDA events wait for the device")

    def passed(self, stamp: Any) -> bool:
        return bool(stamp.query())

    def seconds(self, earlier: Any, later: Any) -> float:
        """CUDA measures milliseconds; of two events on one stream the later one is never before the earlier one."""
        return max(0.0, earlier.elapsed_time(later) / 1000.0)

    def epoch(self, stamp: Any) -> float:
        return self._epoch + self.seconds(self._base, stamp)

    def release(self, stamp: Any) -> None:
        self._free.append(stamp)

    def keep(self, value: Any) -> Any:
        """A copy on its way to pinned host memory: it has arrived when the step's last event has passed."""
        if value is None:
            return None
        local = local_scalar(value)
        if not getattr(local, "is_cuda", False):
            return None if local is None else float(local)
        pinned = self._torch.empty((), dtype=self._torch.float32, pin_memory=True)
        pinned.copy_(local.reshape(()), non_blocking=True)
        return pinned

    def number(self, kept: Any) -> float | None:
        return None if kept is None else float(kept)
