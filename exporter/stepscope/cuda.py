"""The clock of a rank on a CUDA device: pooled events on its compute stream. No synchronization while training.

Only a GPU can prove this module's figures: see docs/real-training.md. The tests drive it with fakes that behave like
CUDA's events.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

from stepscope.timeline import MAX_BACKLOG, Exhausted, local_scalar

MAX_EVENTS = MAX_BACKLOG
"""Events alive at once: one for each mark that waits for the device."""
ANCHORS = 256
"""Stamps over which the device's time is tied to the host's: some minutes, in which the two hardly drift apart."""
_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED (cuda.h)."""


class CudaClock:
    """Stamps are CUDA events with timing. ``torch`` is the module, ``device`` the rank's device. The compute stream is the
    one that is current when the clock is made: a phase that copies on another stream counts as far as compute waits for it.

    Synchronizes once, when it is made, to tie the device's time to the host's. While a CUDA graph is captured there are no
    stamps: they would become part of the graph.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._stream = torch.cuda.current_stream(device)
        self._free: deque[Any] = deque()
        self._made = 0
        self._prepared = threading.local()
        self._prepared.thread = True  # the one that trains
        self._base = self._record()
        torch.cuda.synchronize(device)
        self._newest = 0.0
        self._anchors = deque([time.time()], maxlen=ANCHORS)

    def stamp(self) -> Any:
        if self._torch.cuda.is_current_stream_capturing():
            raise Exhausted("a CUDA graph is being captured")
        return self._record()

    def _record(self) -> Any:
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
        self._prepare()
        return bool(stamp.query())

    def seconds(self, earlier: Any, later: Any) -> float:
        """CUDA measures milliseconds; of two events on one stream the later one is never before the earlier one."""
        return max(0.0, earlier.elapsed_time(later) / 1000.0)

    def epoch(self, stamp: Any) -> float:
        """A stamp that was passed was passed before now: of all that is known by this, the tightest holds."""
        self._prepare()
        seconds = self.seconds(self._base, stamp)
        if seconds > self._newest:
            self._newest = seconds
            self._anchors.append(time.time() - seconds)
        return min(self._anchors) + seconds

    def release(self, stamp: Any) -> None:
        self._free.append(stamp)

    def _prepare(self) -> None:
        """A thread that does not train asks CUDA for events: on the rank's own device, lest it open another one, and without
        breaking off the capture of a CUDA graph, which asking from another thread does otherwise."""
        if getattr(self._prepared, "thread", False):
            return
        self._prepared.thread = True
        self._torch.cuda.set_device(self._device)
        _relax_captures()

    def keep(self, value: Any) -> Any:
        """A copy on its way to pinned host memory: it has arrived when the step's last event has passed."""
        if value is None:
            return None
        local = local_scalar(value)
        if not getattr(local, "is_cuda", False):
            return None if local is None else float(local)
        pinned = self._torch.empty((), dtype=self._torch.float64, pin_memory=True)
        pinned.copy_(local.reshape(()), non_blocking=True)
        return pinned

    def number(self, kept: Any) -> float | None:
        return None if kept is None else float(kept)


def _relax_captures() -> None:
    """Let this thread ask for events while another one captures (cuThreadExchangeStreamCaptureMode, CUDA driver API);
    PyTorch's NCCL watchdog guards itself likewise."""
    with suppress(OSError, AttributeError):  # no driver
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))
