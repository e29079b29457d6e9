"""What a Prometheus would hold of a simulated job: every series, one value per scrape, kept as arrays.

Time begins at 0. Where a series is absent its value is ``STALE``, the NaN that Prometheus itself uses for that.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stepscope.exposition import Page
from stepscope.metrics import Metric
from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.pages import Pages, target_labels
from stepsim.practice.scenario import DOWN_SECONDS, Scenario

FloatArray: TypeAlias = npt.NDArray[np.float64]

STALE = np.array([0x7FF0000000000002], dtype=np.uint64).view(np.float64)[0]
"""Prometheus's own staleness marker (prometheus/model/value)."""
JOB_PAGES = ("training", "referee")
"""Of the job's processes; the others are the exporters of GPUs and hosts, which stay when it ends."""


def is_stale(values: FloatArray) -> npt.NDArray[np.bool_]:
    """Other NaN are values."""
    return np.ascontiguousarray(values).view(np.uint64) == np.array(STALE).view(np.uint64)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """``values`` has shape (distinct rows, scrapes); ``rows`` says which one each series has: many are alike."""

    scrape_seconds: float
    keys: tuple[str, ...]
    """Series as the exposition format writes them."""
    rows: npt.NDArray[np.int32]
    values: FloatArray
    visible: tuple[float, ...]
    """Of each incident: the first scrape at which the fault shows, in whichever series; infinite if it never does."""

    @property
    def scrapes(self) -> int:
        return int(self.values.shape[1])

    @property
    def last(self) -> float:
        return (self.scrapes - 1) * self.scrape_seconds

    def names(self) -> set[str]:
        """Of all metrics."""
        return {name_of(key) for key in self.keys}

    def of(self, names: Iterable[str]) -> Iterator[tuple[str, FloatArray]]:
        """The series of some metrics."""
        wanted = set(names)
        for key, row in zip(self.keys, self.rows, strict=True):
            if name_of(key) in wanted:
                yield key, self.values[row]

    def save(self, file: Path) -> None:
        """Whole, or not at all."""
        told = json.dumps({"scrape_seconds": self.scrape_seconds, "keys": self.keys, "visible": self.visible})
        unfinished = file.with_name(f".{file.name}.{threading.get_native_id()}")
        try:
            with unfinished.open("wb") as out:
                np.savez_compressed(
                    out, told=np.frombuffer(told.encode(), dtype=np.uint8), rows=self.rows, values=self.values
                )
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)


def load(file: Path) -> Recording:
    with np.load(file) as kept:
        told = json.loads(kept["told"].tobytes())
        return Recording(scrape_seconds=told["scrape_seconds"], keys=tuple(told["keys"]), visible=tuple(told["visible"]),
                         rows=kept["rows"], values=kept["values"])  # fmt: skip


def name_of(key: str) -> str:
    return key.partition("{")[0]


def record(scenario: Scenario) -> Recording:
    """Simulate one seed of a drill."""
    scrape = scenario.drill.scrape
    layout = Layout()
    moments = np.arange(0.0, scenario.seconds + scrape / 2, scrape)
    shots: list[FloatArray] = []
    play = _Play.begin(scenario)
    twins: dict[int, _Play] = {}
    visible = [float("inf")] * len(scenario.incidents)
    for moment in moments.tolist():
        for index, incident in enumerate(scenario.incidents):
            if moment - scrape < incident.begins <= moment:
                twins[index] = play.fork(without=index)
        play.advance(moment)
        shots.append(play.read(layout, moment))
        for index, twin in list(twins.items()):
            twin.advance(moment)
            if not _same(shots[-1], twin.read(layout, moment)):
                visible[index] = moment
            if visible[index] <= moment or moment > scenario.incidents[index].ends:
                del twins[index]
    return layout.recording(scrape, shots, tuple(visible))


def _same(one: FloatArray, other: FloatArray) -> bool:
    """To the last bit: a series that is absent in one is not the same."""
    length = max(len(one), len(other))
    return bool((_padded(one, length).view(np.uint64) == _padded(other, length).view(np.uint64)).all())


def _padded(shot: FloatArray, length: int) -> FloatArray:
    return np.concatenate([shot, np.full(length - len(shot), STALE)])


@dataclass
class Layout:
    """Which place in a scrape's numbers each series has. Series that come up later are added at the end."""

    places: dict[tuple[str, str, tuple[str, ...]], slice] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    def place(self, page: str, metric: str, labels: tuple[str, ...], keys: Callable[[], list[str]]) -> slice:
        known = self.places.get((page, metric, labels))
        if known is None:
            added = keys()
            known = slice(len(self.keys), len(self.keys) + len(added))
            self.places[page, metric, labels] = known
            self.keys.extend(added)
        return known

    def recording(self, scrape: float, shots: list[FloatArray], visible: tuple[float, ...]) -> Recording:
        table = np.full((len(self.keys), len(shots)), STALE)
        for number, shot in enumerate(shots):
            table[: len(shot), number] = shot
        rows, distinct = np.empty(len(table), dtype=np.int32), dict[bytes, int]()
        for index, row in enumerate(table):
            rows[index] = distinct.setdefault(row.tobytes(), len(distinct))
        _, first = np.unique(rows, return_index=True)
        return Recording(scrape_seconds=scrape, keys=tuple(self.keys), rows=rows, values=table[first], visible=visible)


@dataclass
class _Play:
    """A job under way, and what is still to come. A copy without one of the incidents is its twin: as long as both read
    the same, the fault does not show."""

    engine: Engine
    starts: list[tuple[float, int, dict[str, Any]]]
    """When, which incident, and what the board is asked for; the last is next."""
    restarts: list[float]
    down_until: float = 0.0
    counted: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Where the counters of GPUs and hosts stood when the job was restarted: they go on from there."""
    shot: FloatArray = field(default_factory=lambda: np.zeros(0))
    """What was read last."""

    def __post_init__(self) -> None:
        self.pages = Pages(self.engine, lambda: self.engine.now, labelled_targets=True, blind=True)

    @classmethod
    def begin(cls, scenario: Scenario) -> _Play:
        engine = Engine(scenario.job, FaultBoard(scenario.job), seed=scenario.seed, now=-scenario.drill.scrape)
        starts = [
            (at, index, request) for index, one in enumerate(scenario.incidents) for at, request in one.requests()
        ]
        return cls(engine=engine, starts=sorted(starts, key=lambda one: -one[0]),
                   restarts=sorted(scenario.restarts, reverse=True))  # fmt: skip

    def fork(self, without: int) -> _Play:
        starts = [start for start in self.starts if start[1] != without]
        return _Play(engine=self.engine.fork(), starts=starts, restarts=list(self.restarts), down_until=self.down_until,
                     counted=self.counted)  # fmt: skip

    def advance(self, until: float) -> None:
        while self.restarts and self.restarts[-1] <= until:
            self._restart(self.restarts.pop())
        while self.starts and self.starts[-1][0] <= until:
            at, _, request = self.starts.pop()
            self.engine.advance(at)
            self.engine.board.start(request, now=at)
        if until >= self.down_until:
            self.engine.advance(until)

    def _restart(self, at: float) -> None:
        """From the last checkpoint, by new processes, whose counters begin at 0."""
        ended = self.engine
        self.down_until = at + DOWN_SECONDS
        self.engine = Engine(ended.job, ended.board, seed=ended.seed, now=self.down_until, attempt=ended.attempt + 1,
                             checkpoint=ended.learner.checkpoint)  # fmt: skip
        self.counted = np.where(np.isnan(self.shot), 0.0, self.shot)
        self.__post_init__()

    def read(self, layout: Layout, moment: float) -> FloatArray:
        """All series, in the layout's order."""
        pieces: list[tuple[slice, FloatArray]] = []
        for (source, node), (_, served) in zip(self.pages.names(), self.pages.served(), strict=True):
            of_the_job = source in JOB_PAGES
            there = not of_the_job or moment >= self.down_until
            pieces.append((layout.place(source + node, "up", (), partial(_up, source, node)), np.array([float(there)])))
            for metric, blocks in served.read() if there else ():
                for labels, column in blocks:
                    keys = partial(_keys, served.page, metric, labels)
                    where, numbers = layout.place(source + node, metric.name, labels, keys), _numbers(column)
                    goes_on = metric.kind == "counter" and not of_the_job
                    pieces.append((where, self._since_boot(where, numbers) if goes_on else numbers))
        self.shot = np.full(len(layout.keys), STALE)
        for where, numbers in pieces:
            self.shot[where] = numbers
        return self.shot

    def _since_boot(self, where: slice, numbers: FloatArray) -> FloatArray:
        if where.stop <= len(self.counted):
            there = ~is_stale(numbers)
            numbers[there] += self.counted[where][there]
        return numbers


def _up(source: str, node: str) -> list[str]:
    labels = ",".join(f'{name}="{value}"' for name, value in target_labels(source, node).items())
    return [f"up{{{labels}}}"]


def _keys(page: Page, metric: Metric, labels: tuple[str, ...]) -> list[str]:
    return [prefix.strip() for prefix in page.prefixes(metric, labels)]


def _numbers(column: list[Any]) -> FloatArray:
    return np.array([STALE if value is None else value for value in column], dtype=np.float64)
