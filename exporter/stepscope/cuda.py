"""The clock of a rank on a CUDA device: pooled events on its compute stream. No synchronization while training.

Only a GPU can prove this module's figures: see docs/real-training.md. The tests drive it with fakes that behave like
CUDA's events.
"""

from __future__ import annotations

import time
from typing import Any

from stepscope.timeline import Exhausted, local_scalar

MAX_EVENTS = 16_384
"""Events alive at once: a thousand steps of sixteen marks, more than any host runs ahead."""


class CudaClock:
    """Stamps are CUDA events with timing. ``torch`` is the module, ``device`` the rank's device.

    Synchronizes once, when it is made, to tie the device's time to the host's.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._free: list[Any] = []
        self._made = 0
        self._base = self.stamp()
        torch.cuda.synchronize(device)
        self._epoch = time.time()

    def stamp(self) -> Any:
        if self._free:
            event = self._free.pop()
        elif self._made < MAX_EVENTS:
            event = self._torch.cuda.Event(enable_timing=True)
            self._made += 1
        else:
            raise Exhausted(f"{MAX_EVENTS} CUDA events wait for the device")
        event.record(self._torch.cuda.current_stream(self._device))
        return event

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
