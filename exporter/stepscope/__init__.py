"""Stepscope: takes every rank's training step apart, and publishes it to Prometheus."""

from stepscope.critical_path import CriticalPath, critical_path
from stepscope.identity import Identity
from stepscope.monitor import StepMonitor
from stepscope.phases import PHASES
from stepscope.record import Learning, StepRecord
from stepscope.referee import Referee
from stepscope.version import __version__

__all__ = [
    "PHASES",
    "CriticalPath",
    "Identity",
    "Learning",
    "Referee",
    "StepMonitor",
    "StepRecord",
    "__version__",
    "critical_path",
]
