"""What is run, and what is scraped of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.faults import FAULTS
from stepsim.job import Job, load_job
from stepsim.pages import Pages

SEED, EPOCH = 4, 1_700_000_000.0
HEALTHY_SECONDS = 120.0
SETTLE_SECONDS = 60.0
"""Between a fault's start and the window: a hot GPU takes about that long."""
WINDOW_SECONDS = 120.0
SCRAPE_SECONDS = 5.0
"""As in prometheus/prometheus.yml."""

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)  # each is itself, and a key
class Setup:
    """A job, and the faults that are measured on it, against its own healthy row."""

    title: str
    preset: str = "cluster"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[str, ...]

    def job(self) -> Job:
        return load_job(self.preset, **self.overrides)


OWN_SETUPS = (
    Setup(title="healthy, `vision`", preset="vision", faults=("pcie_downgrade",)),
    Setup(
        title="healthy, checkpoints",
        # A stalled checkpoint takes 55 s: both rows have one that begins and ends in the window.
        overrides={"schedule": {"checkpoint_every_steps": 600}},
        faults=("checkpoint_stall",),
    ),
)
ELSEWHERE = frozenset(name for setup in OWN_SETUPS for name in setup.faults)
SETUPS = (Setup(title="healthy", faults=tuple(name for name in FAULTS if name not in ELSEWHERE)), *OWN_SETUPS)


Scrape: TypeAlias = Mapping[str, Mapping[str, float]]
"""By a metric's name: its series by their labels, in the page's order."""

COUNTED = ("training", "referee", "node")
SAMPLED = ("training", "dcgm")
SKIPPED = ("training_step_duration_seconds", "training_memory_bytes")
NODE = re.compile(r'\bnode="([^"]+)"')
RANK = re.compile(r'\brank="([^"]+)"')


def scrape(pages: Pages, sources: Sequence[str]) -> Scrape:
    """What a scrape of these pages gets at this moment. A node page's series get the label that its target has."""
    found: dict[str, dict[str, float]] = {}
    for source, node in pages.names():
        if source not in sources:
            continue
        target = f'node="{node}",' if source == "node" else ""
        for line in pages.text(source, node).splitlines():
            if line.startswith(("#", *SKIPPED)):
                continue
            head, _, value = line.rpartition(" ")
            name, _, labels = head.partition("{")
            found.setdefault(name, {})[target + labels] = float(value)
    return found


def picked(scraped: Scrape, name: str, *labels: str) -> dict[str, float]:
    return {key: value for key, value in scraped.get(name, {}).items() if all(label in key for label in labels)}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was scraped over a window: the counters at both its ends, the gauges every few seconds."""

    first: Scrape
    last: Scrape
    samples: tuple[tuple[float, Scrape], ...]
    """Each with its time."""

    def increases(self, name: str, *labels: str) -> dict[str, float]:
        """Of every series of a counter."""
        before = picked(self.first, name, *labels)
        return {key: now - before[key] for key, now in picked(self.last, name, *labels).items() if key in before}

    def gained(self, name: str, *labels: str) -> Floats:
        return np.array(list(self.increases(name, *labels).values()))

    def by(self, part: re.Pattern[str], name: str, *labels: str) -> dict[str, float]:
        """A counter's increase, summed over all that share a node or a rank."""
        sums: dict[str, float] = {}
        for key, value in self.increases(name, *labels).items():
            (whose,) = part.findall(key)
            sums[whose] = sums.get(whose, 0.0) + value
        return sums

    def gauge(self, name: str, *labels: str) -> Floats:
        """Shape (samples, series)."""
        return np.array([list(picked(one, name, *labels).values()) for _, one in self.samples])


def measured(setup: Setup, fault: str | None) -> Reading:
    """Healthy for a while, then with the fault, then read."""
    job = setup.job()
    engine = Engine(job, FaultBoard(job), seed=SEED, now=EPOCH)
    pages = Pages(engine, lambda: engine.now)
    engine.advance(engine.now + HEALTHY_SECONDS)
    if fault:
        engine.board.start({"fault": fault}, now=engine.now)
    engine.advance(engine.now + SETTLE_SECONDS)
    first = scrape(pages, COUNTED)
    samples = tuple(sampled(engine, pages))
    return Reading(first=first, last=scrape(pages, COUNTED), samples=samples)


def sampled(engine: Engine, pages: Pages) -> Iterator[tuple[float, Scrape]]:
    for _ in range(int(WINDOW_SECONDS / SCRAPE_SECONDS)):
        engine.advance(engine.now + SCRAPE_SECONDS)
        yield engine.now, scrape(pages, SAMPLED)
