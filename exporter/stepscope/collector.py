"""A ``prometheus_client`` collector over the same metric table, for processes that already have a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from stepscope.exposition import Page, sample_name
from stepscope.metrics import Metric


class TableCollector(Collector):
    """Yields the families of a page. ``source`` is called once per scrape and returns what the table reads."""

    def __init__(self, page: Page, source: Callable[[], Any]) -> None:
        self._page = page
        self._source = source

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for metric, blocks in self._page.read(self._source()):
            for labels, column in blocks:
                family = families.setdefault(metric.name, _family(metric))
                self._fill(family, metric, labels, column)
        return iter(families.values())

    def describe(self) -> Iterable[Family]:
        """The families' names, so that a clash is found when registering, without a scrape."""
        return {metric.name: _family(metric) for metric in self._page.table}.values()

    def _fill(self, family: Family, metric: Metric, labels: tuple[str, ...], column: list[Any]) -> None:
        name, own = sample_name(metric, labels)
        for series, value in zip(self._page.series[metric.scope], column, strict=True):
            if value is not None:
                family.add_sample(name, {**series, **own}, value)


def _family(metric: Metric) -> Family:
    return Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
