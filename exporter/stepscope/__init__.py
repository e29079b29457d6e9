"""Stepscope: takes every rank's training step apart, and publishes it to Prometheus."""

from importlib.metadata import PackageNotFoundError, version

from stepscope.critical_path import CriticalPath, critical_path
from stepscope.phases import PHASES
from stepscope.record import Learning, StepRecord
from stepscope.referee import Referee

try:
    __version__ = version("stepscope")
except PackageNotFoundError:  # imported from a source tree that is not installed
    __version__ = "unknown"

__all__ = ["PHASES", "CriticalPath", "Learning", "Referee", "StepRecord", "__version__", "critical_path"]
