"""What is read anew at each scrape, such as a GPU's sensors: timed, and a failure costs that part alone.

To add a collector: give it a ``name`` and a ``text()`` that returns Prometheus text, or raises.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepscope.exposition import Labels, Page
from stepscope.metrics import Metric, Values

log = logging.getLogger("stepscope")


class Collector(Protocol):
    name: str

    def text(self) -> str:
        """Its metrics. May raise: what it publishes is then absent until it works again."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    name: str
    seconds: float
    success: bool


def _by_name(readings: Iterable[Reading], field: str) -> Values:
    return [((reading.name,), [float(getattr(reading, field))]) for reading in readings]


COLLECTORS: tuple[Metric, ...] = (
    Metric(
        name="stepscope_collector_duration_seconds", kind="gauge", scope="run", labels=("collector",),
        help="How long the collector took at this scrape.", values=lambda readings: _by_name(readings, "seconds"),
    ),
    Metric(
        name="stepscope_collector_success", kind="gauge", scope="run", labels=("collector",),
        help="1 if the collector succeeded at this scrape, else 0.",
        values=lambda readings: _by_name(readings, "success"),
    ),
)  # fmt: skip
"""Read from a list of ``Reading``."""


class Collectors:
    """Several collectors as one text. A collector's failure is logged when it begins."""

    def __init__(self, collectors: Sequence[Collector], labels: Labels | None = None) -> None:
        """``labels`` are those of their own duration and success: whose collectors they are."""
        self._collectors = collectors
        self._page = Page(COLLECTORS, {"run": [labels or {}]})
        self._failing: set[str] = set()

    def text(self) -> str:
        parts, readings = [], []
        for collector in self._collectors:
            began = time.perf_counter()
            text = self._read(collector)
            readings.append(Reading(name=collector.name, seconds=time.perf_counter() - began, success=text is not None))
            parts.append(text or "")
        return "".join(parts) + (self._page.text(readings) if readings else "")

    def _read(self, collector: Any) -> str | None:
        try:
            text: str = collector.text()
        except Exception as error:
            if collector.name not in self._failing:
                log.warning("the collector %s fails, its metrics are absent: %s", collector.name, error)
            self._failing.add(collector.name)
            return None
        self._failing.discard(collector.name)
        return text
