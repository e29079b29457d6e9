"""A grade as one HTML file that stands alone: nothing is loaded, nothing runs, and whatever a person wrote is escaped."""

from stepsim.practice.report.page import write_report

__all__ = ["write_report"]
