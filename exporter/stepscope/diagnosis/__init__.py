"""Turns a run's metrics into words: what is wrong, with what evidence, and what it is not."""

from stepscope.diagnosis.judge import diagnose
from stepscope.diagnosis.report import Evidence, Report, RuledOut, Step, Suspicion, Verdict
from stepscope.diagnosis.source import Prometheus, SourceError

__all__ = ["Evidence", "Prometheus", "Report", "RuledOut", "SourceError", "Step", "Suspicion", "Verdict", "diagnose"]
