"""Node acceptance: what can be known of a compute node before a job starts on it. To add a check: see ``checks.py``."""

from stepscope.doctor.checks import CHECKS, Report, acceptance
from stepscope.doctor.finding import Result
from stepscope.doctor.machine import LocalMachine, Machine

__all__ = ["CHECKS", "LocalMachine", "Machine", "Report", "Result", "acceptance"]
