"""A past for an empty Prometheus: two hours of the job with three incidents, so that no dashboard begins empty."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import yaml
from rich.console import Console
from rich.progress import track

from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.job import Job
from stepsim.pages import Pages
from stepsim.state import SavedState, load_state, save_state

SCRAPE_SECONDS, LATE_SCRAPE_SECONDS, LATE_SECONDS = 15.0, 5.0, 120.0
"""Between two samples; the last two minutes are sampled as densely as the live job is, and before them by and by less."""
RAMP_SECONDS = 400.0
"""In which the spacing grows by a factor of e. A rate over a minute extrapolates to the window's edge if the gap there is at most
1.1 times the mean spacing (Prometheus, extrapolatedRate), else by half of it, and reads too low: spacing that changes by less
than 1.1 within half a window is safe."""
LEAD_SECONDS = 15.0
"""How far the past reaches beyond the present: about as long as writing and loading it takes on a laptop. Else the
live job's first minute would begin with a hole, and every rate over it would read too low."""
LOADING = 3.5
"""Times as long as writing takes loading it and starting the lab: loading alone was measured at 2.3 for 32 ranks, 3.1 for 1,024. A
machine that is busy gets a past that is longer by that."""
FULL_LENGTH_RANKS = 64
"""Larger jobs get a shorter past, so that writing and loading it stays a matter of seconds."""


class HistoryError(ValueError):
    """The past cannot be written."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A fault of the past. Times are shares of the whole span."""

    fault: str
    begins: float
    lasts: float


INCIDENTS = (
    Incident(fault="straggler", begins=0.2, lasts=1 / 12),
    Incident(fault="data_starvation", begins=0.5, lasts=1 / 12),
    Incident(fault="gradient_explosion", begins=0.8, lasts=1 / 60),
)


def write_history(
    job: Job,
    out: Path,
    *,
    seed: int,
    hours: float,
    rules: Path,
    state_file: Path | None = None,
    console: Console,
    now: float | None = None,
) -> None:
    """Write ``history.om``, the recording rules by level, and the span that they cover.

    Samples carry the labels that a live scrape of the job would add, and end ``LEAD_SECONDS`` after ``now``; without it
    after the present, or as long after it as loading them will take. With ``state_file`` the live job goes on where this past ends.
    """
    if not rules.is_file():
        raise HistoryError(f"no recording rules at {rules}: run this in the project's folder, or give --rules")
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    end = float(round((now or time.time()) + LEAD_SECONDS))
    start = end - 3600 * hours * min(1.0, FULL_LENGTH_RANKS / job.ranks)

    board = FaultBoard(job)
    engine = Engine(job, board, seed=seed, now=start)
    with (out / "history.om").open("w", encoding="utf-8") as file:
        _simulate(engine, end, () if now else _until_loaded(end, began), file, console)
    end = engine.now
    write_rules(rules, out, start, end)
    if state_file:
        engine.learner.save()
        known = load_state(state_file)
        kept = known if known and known.run == job.run else SavedState(run=job.run)
        save_state(state_file, replace(kept, checkpoint=engine.learner.checkpoint, until=end))
    console.print(f"{engine.totals.steps:,} steps of {job.run}, until {time.ctime(end)}: {out}", highlight=False)


def write_rules(rules: Path, out: Path, start: float, end: float) -> None:
    """What load-history.sh needs beside the samples: the recording rules by level, a config without any, and the span."""
    levels = rule_levels(yaml.safe_load(rules.read_text(encoding="utf-8")))
    for number, level in enumerate(levels, 1):
        (out / f"recording-{number}.yml").write_text(yaml.safe_dump(level, sort_keys=False), encoding="utf-8")
    (out / "empty.yml").write_text("global: {}\n", encoding="utf-8")
    (out / "start").write_text(f"{start:.0f}", encoding="utf-8")
    (out / "end").write_text(f"{end:.0f}", encoding="utf-8")


def _until_loaded(end: float, began: float) -> Iterator[float]:
    """Further samples, for a machine on which writing has taken so long that loading will end after ``end``."""
    loaded = time.time() + LOADING * (time.monotonic() - began)
    while end + LATE_SCRAPE_SECONDS <= loaded:
        end += LATE_SCRAPE_SECONDS
        yield end


def _simulate(engine: Engine, end: float, further: Iterable[float], file: TextIO, console: Console) -> None:
    start, span = engine.now, end - engine.now
    pages = Pages(engine, lambda: engine.now, labelled_targets=True)
    due = sorted(INCIDENTS, key=lambda incident: incident.begins)
    shown = ""
    moments = scrapes(start, end)
    for moment in track(
        chain(moments, further), "simulating the past", total=len(moments), console=console, transient=True
    ):
        while due and start + due[0].begins * span <= engine.now:
            incident = due.pop(0)
            request = {"fault": incident.fault, "duration": incident.lasts * span}
            engine.board.start(request, now=engine.now)
        engine.advance(moment)
        for source, node in pages.names():
            text = pages.text(source, node)
            if source == "truth":
                text, shown = text + _ended(shown, text), text
            file.write(_timed(text, moment))
    file.write("# EOF\n")


def scrapes(start: float, end: float) -> list[float]:
    """When a past is sampled, seconds since the epoch: densest, and last, at its end; not before the job has taken up its work."""
    moments, spacing = [end], LATE_SCRAPE_SECONDS
    while moments[-1] - spacing >= start + SCRAPE_SECONDS:
        moments.append(moments[-1] - spacing)
        if end - moments[-1] > LATE_SECONDS:
            spacing = min(SCRAPE_SECONDS, spacing * (1 + spacing / RAMP_SECONDS))
    return moments[::-1]


def _ended(before: str, now: str) -> str:
    """Zeros for the faults that are gone: a generated past has no staleness markers, which end a live series."""
    series = {line.rpartition(" ")[0] for line in before.split("\n") if line.startswith("lab_fault_active")}
    return "".join(f"{name} 0\n" for name in sorted(series) if f"{name} " not in now)


def _timed(text: str, moment: float) -> str:
    """The page's samples with their time, without comments: families may then appear once per scrape."""
    lines = [line for line in text.split("\n") if line and line[0] != "#"]
    return f" {moment:.3f}\n".join(lines) + f" {moment:.3f}\n" if lines else ""


_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*:[a-zA-Z0-9_:]+")


def rule_levels(rules: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rule files, each of which needs only raw series and those of the files before it."""
    by_name = {rule["record"]: rule for group in rules["groups"] for rule in group["rules"]}
    depth: dict[str, int] = {}

    def measure(name: str) -> int:
        if name not in depth:
            needed = set(_NAME.findall(by_name[name]["expr"])) & by_name.keys()
            depth[name] = 1 + max((measure(other) for other in needed), default=0)
        return depth[name]

    for name in by_name:
        measure(name)
    return [
        {"groups": [{"name": f"level-{level}", "rules": [by_name[n] for n in by_name if depth[n] == level]}]}
        for level in range(1, max(depth.values()) + 1)
    ]
