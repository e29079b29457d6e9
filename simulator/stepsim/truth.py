"""The ground truth: which faults are active. Its own endpoint and its own ``lab_`` names, absent in blind mode."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.metrics import Metric
from stepsim.board import ActiveFault, target_label
from stepsim.engine import Engine


class Truth:
    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine, self._clock = engine, clock
        self._began = engine.now

    def active(self) -> list[ActiveFault]:
        return self._engine.board.active()

    def speed(self) -> float | None:
        """Simulated by elapsed time since the start: below 1 the machine cannot keep up."""
        elapsed = self._clock() - self._began
        return (self._engine.now - self._began) / elapsed if elapsed > 1 else None


TRUTH: tuple[Metric, ...] = (
    Metric(
        name="lab_fault_active", kind="gauge", scope="run", labels=("fault", "target", "severity"),
        help="1 while the fault is being simulated.",
        values=lambda truth: [
            ((fault.fault, target_label(fault.target), f"{fault.severity:g}"), [1]) for fault in truth.active()
        ],
    ),
    Metric(
        name="lab_fault_started_timestamp_seconds", kind="gauge", scope="run", labels=("fault", "target"),
        help="When the fault was started.",
        values=lambda truth: [((fault.fault, target_label(fault.target)), [fault.started]) for fault in truth.active()],
    ),
    Metric(
        name="lab_speed_ratio", kind="gauge", scope="run",
        help="Simulated by elapsed time; below 1 the machine cannot keep up.",
        values=lambda truth: [((), [truth.speed()])],
    ),
)  # fmt: skip
"""Read from a ``Truth``."""
