"""Diagnoses the job again and again from what Prometheus has of it, in a thread of its own; publishes the verdicts.

It reads metrics and nothing else, so blind mode hides nothing of it. To publish more: add a row to ``DIAGNOSIS``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from math import isfinite

from stepscope.diagnosis import Prometheus, Report, SourceError, Verdict, diagnose
from stepscope.diagnosis.source import Source
from stepscope.metrics import Metric, Values
from stepsim.board import target_label

log = logging.getLogger("stepsim")

EVERY_SECONDS = 10.0
STALE_SECONDS = 60.0
"""A verdict is forgotten when it could not be renewed for so long: what is not known is absent."""
QUERY_SECONDS = 5.0
CLOSE_SECONDS = 1.0
"""How long the end of the job waits for a query that is on its way."""

Judge = Callable[[Source, str, float], Report]


class Diagnoser:
    """Runs until closed. ``run`` tells the job's run once it has a name.

    A Prometheus that is away is no error: it may start later, or be started again.
    """

    def __init__(
        self,
        source: Source,
        run: Callable[[], str | None],
        *,
        judge: Judge = diagnose,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source, self._name, self._judge, self._clock = source, run, judge, clock
        self._report: Report | None = None
        self._trouble = "no diagnosis yet"
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepsim-diagnosis", daemon=True)

    @classmethod
    def of(cls, url: str | None, run: Callable[[], str | None]) -> Diagnoser | None:
        """None without a Prometheus. Raises ``SourceError`` for what is no URL."""
        return cls(Prometheus(url, timeout_seconds=QUERY_SECONDS), run) if url else None

    def report(self) -> Report | None:
        """The latest one, unless it is stale."""
        report = self._report
        return report if report and self._clock() - report.at <= STALE_SECONDS else None

    def trouble(self) -> str:
        """Why there is no report, where there is none."""
        return self._trouble

    def largest(self, expr: str) -> float | None:
        """The largest value of a query at this moment; None without one, or without an answer."""
        try:
            return max((value for _, value in self._source.query(expr, self._clock())), default=None)
        except SourceError:
            return None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def look(self) -> None:
        """Diagnose once. Nothing that goes wrong in it is the job's affair."""
        run = self._name()
        if run is None:
            self._trouble = "no rank has announced itself yet"
            return
        try:
            self._report = self._judge(self._source, run, self._clock())
        except SourceError as error:
            self._trouble = str(error)
        except Exception as error:
            if self._trouble != (trouble := f"the diagnosis failed: {error!r}"):
                log.exception("the diagnosis failed; the job goes on, and the next look follows")
            self._trouble = trouble

    def _run(self) -> None:
        while not self._closing.is_set():
            self.look()
            self._closing.wait(EVERY_SECONDS)


def _of_verdicts(value: Callable[[Verdict], float]) -> Callable[[Report | None], Values]:
    """One series per fault and target; of two such verdicts that of the costlier one, which comes first."""

    def values(report: Report | None) -> Iterator[tuple[tuple[str, ...], list[float | None]]]:
        if report is None:
            return
        found: dict[tuple[str, ...], float] = {}
        for verdict in report.verdicts:
            labels = (report.run, verdict.fault, target_label(verdict.target), verdict.runbook)
            found.setdefault(labels, value(verdict))
        yield from ((labels, [number if isfinite(number) else None]) for labels, number in found.items())

    return values


FINDING = ("run", "fault", "target", "runbook")

DIAGNOSIS: tuple[Metric, ...] = (
    Metric(
        name="stepscope_diagnosis_lost_gpus", kind="gauge", scope="run", labels=FINDING,
        help="GPU-equivalents that a thing costs which the diagnosis found wrong.",
        values=_of_verdicts(lambda verdict: verdict.lost_gpus),
    ),
    Metric(
        name="stepscope_diagnosis_confidence_ratio", kind="gauge", scope="run", labels=FINDING,
        help="How sure the diagnosis is of that, from 0 to 1.",
        values=_of_verdicts(lambda verdict: verdict.confidence),
    ),
    Metric(
        name="stepscope_diagnosis_healthy", kind="gauge", scope="run", labels=("run",),
        help="1 when the diagnosis found nothing wrong and suspects nothing, else 0; absent without enough data.",
        values=lambda report: [((report.run,), [int(report.healthy)])] if report and report.enough_data else [],
    ),
    Metric(
        name="stepscope_diagnosis_timestamp_seconds", kind="gauge", scope="run", labels=("run",),
        help="The moment that was diagnosed.",
        values=lambda report: [((report.run,), [report.at])] if report else [],
    ),
)  # fmt: skip
"""Read from a ``Report``, or from None where there is none."""
