"""The ground truth: which faults are active. Its own endpoint and its own ``lab_`` names, absent in blind mode; during a blind
drill it tells of no fault."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.metrics import Metric
from stepsim.board import Board, target_label


class Truth:
    """``speed`` tells how fast simulated time passes, where there is any."""

    def __init__(self, board: Board, speed: Callable[[], float | None] = lambda: None) -> None:
        self.active = board.told
        self.speed = speed


TRUTH: tuple[Metric, ...] = (
    Metric(
        name="lab_fault_active", kind="gauge", scope="run", labels=("fault", "target", "severity"),
        help="1 while the fault is active.",
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
