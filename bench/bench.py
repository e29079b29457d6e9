"""Measures what the project promises about speed, prints a table, and writes build/bench.json.

To add a measurement: add a function to ``MEASUREMENTS``. Medians; ratios are taken against a named alternative in the
same run, because machines are shared and noisy. Run: make bench.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import requests
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

import pages
import practice
import real
from queries import committed, panels_of, shown
from results import Result, timed
from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.job import Job, load_job
from stepsim.pages import Pages
from stepsim.serving import free_port

ROOT = Path(__file__).parents[1]
EPOCH = 1_700_000_000.0
console = Console(stderr=True)


def engine(job: Job, seconds: float = 0.0) -> Engine:
    made = Engine(job, FaultBoard(job), seed=1, now=EPOCH)
    made.advance(EPOCH + seconds)
    return made


def simulation() -> Iterator[Result]:
    """Simulated by elapsed time, all telemetry included, one core."""
    for nodes, seconds, target in ((4, 300.0, 1500), (128, 100.0, 500), (2048, 10.0, 30)):
        job = load_job("cluster", nodes=nodes)
        speeds = []
        for _ in range(5):
            made = engine(job, 5.0)
            speeds.append(seconds / timed(partial(made.advance, made.now + seconds)))
        yield Result(name=f"simulation, {job.ranks:,} ranks", value=median(speeds), unit="× real time", target=target,
                     better="higher")  # fmt: skip


def rendering() -> Iterator[Result]:
    """1,024 ranks with per-rank histograms: the whole scrape, and one page of all ranks against prometheus_client."""
    pages = Pages(engine(load_job("large"), 40.0), lambda: EPOCH + 40, per_rank_histogram=True)
    names = pages.names()

    def scrape() -> list[str]:
        return [pages.text(*name) for name in names]

    scrape()
    yield Result(name="full scrape, 1,024 ranks, per-rank histograms", value=median(timed(scrape) for _ in range(9)),
                 unit="s", target=0.15, better="lower")  # fmt: skip

    wide = load_job("node").model_copy(update={"gpus_per_node": 1024})  # all ranks on one page
    served = Pages(engine(wide, 40.0), lambda: EPOCH + 40, per_rank_histogram=True).served()
    page, source = next((found.page, found.source()) for name, found in served if name == "training")
    registry = as_gauges(page.text(source))
    theirs = partial(generate_latest, registry)
    ours = partial(page.text, source)
    ratios = [timed(theirs) / median(timed(ours) for _ in range(5)) for _ in range(5)]
    yield Result(name="rendering, against prometheus_client", value=median(ratios), unit="× faster", target=40,
                 better="higher")  # fmt: skip


def as_gauges(text: str) -> CollectorRegistry:
    """The same series as ``prometheus_client``'s own gauges, as a program without a renderer of its own has them."""
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        if sample.name not in gauges:
            gauges[sample.name] = Gauge(sample.name, "A copy.", list(sample.labels), registry=registry)
        gauges[sample.name].labels(**sample.labels).set(sample.value)
    return registry


def history() -> Iterator[Result]:
    """Two hours of past: simulated, written, and loaded with all recorded series."""
    if absent("promtool", "prometheus"):
        return
    with tempfile.TemporaryDirectory() as folder:
        seconds = timed(partial(load_past, Path(folder)))
    yield Result(name="two hours of past, generated and loaded", value=seconds, unit="s", target=30, better="lower")


def absent(*programs: str) -> bool:
    """Says that the measurement is left out where one is."""
    gone = [program for program in programs if shutil.which(program) is None]
    if gone:
        console.print(f"skipped: not on PATH: {', '.join(gone)}")
    return bool(gone)


def load_past(folder: Path, *arguments: str) -> tuple[Path, float]:
    """The data folder of a Prometheus with a past, and when that ends."""
    past, data = folder / "past", folder / "data"
    data.mkdir()
    commands = (
        [sys.executable, "-m", "stepsim", "history", str(past), *arguments],
        ["sh", "prometheus/load-history.sh", str(past), str(data), str(free_port())],
    )
    for command in commands:
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return data, float((past / "end").read_text())


def dashboards() -> Iterator[Result]:
    """Every dashboard's queries over half an hour, as Grafana sends them, one after the other."""
    if absent("promtool", "prometheus"):
        return
    with past("cluster", "--hours", "0.5") as (url, end):
        slowest = max(seconds for board in committed().values() for seconds in answer_times(url, board, end, "cluster"))
    yield Result(name="slowest panel of all dashboards, 32 ranks", value=slowest, unit="s", target=0.2, better="lower")
    with past("large", "--hours", "8") as (url, end):  # a sixteenth of it, half an hour, is made of so large a job
        times = {name: sum(answer_times(url, board, end, "large")) for name, board in committed().items()}
    yield Result(name="the home dashboard's queries together, 1,024 ranks", value=times["mirage"], unit="s", target=1,
                 better="lower")  # fmt: skip
    yield Result(name="the slowest dashboard's queries together, 1,024 ranks", value=max(times.values()), unit="s", target=5,
                 better="lower")  # fmt: skip


@contextmanager
def past(preset: str, *arguments: str) -> Iterator[tuple[str, float]]:
    """A Prometheus with half an hour of a job: its URL, and when the past ends."""
    with tempfile.TemporaryDirectory() as folder:
        data, end = load_past(Path(folder), "--preset", preset, *arguments)
        port = free_port()
        options = {"config.file": Path(folder) / "past/empty.yml", "storage.tsdb.path": data, "log.level": "error",
                   "web.listen-address": f"127.0.0.1:{port}"}  # fmt: skip
        command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
        with serving(command, f"http://127.0.0.1:{port}", "/-/ready") as process:
            yield process.url, end


def answer_times(url: str, board: dict[str, Any], at: float, run: str) -> list[float]:
    """Seconds that each panel's queries take, the second time: Grafana asks again every five seconds."""
    panels = list(panels_of(board))
    for panel in panels:
        shown(url, panel, at, run=run)
    return [timed(partial(shown, url, panel, at, run=run)) for panel in panels]


def scraping() -> Iterator[Result]:
    """A live simulator: memory at 1,024 ranks, and what scraping everything once a second costs at 512."""
    with simulator("--preset", "large") as process:
        time.sleep(5)
        yield Result(name="memory, 1,024 ranks", value=process.info.memory_info().rss / 1e6, unit="MB", target=500,
                     better="lower")  # fmt: skip
    with simulator("--nodes", "64") as process:
        paths = [target["labels"]["__metrics_path__"] for target in requests.get(process.url + "/sd", timeout=5).json()]
        session = requests.Session()
        quiet, busy = [], []
        for _ in range(3):
            quiet.append(core_share(process.info, 6.0, lambda: None))
            busy.append(
                core_share(process.info, 6.0, lambda: [session.get(process.url + path, timeout=5) for path in paths])
            )
        truth = session.get(process.url + "/metrics/truth", timeout=5).text
        speed = next(float(line.split()[-1]) for line in truth.splitlines() if line.startswith("lab_speed_ratio"))
    yield Result(name="scraping 512 ranks every second", value=100 * (median(busy) - median(quiet)), unit="% of a core",
                 target=5, better="lower")  # fmt: skip
    yield Result(name="the engine's pace meanwhile", value=speed, unit="× real time", target=0.99, better="higher")


def core_share(process: psutil.Process, seconds: float, every_second: Callable[[], Any]) -> float:
    """CPU time of a process by wall time while something happens once a second."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            began = time.monotonic()
            every_second()
            stop.wait(max(0.0, 1.0 - (time.monotonic() - began)))

    thread = threading.Thread(target=repeat)
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    thread.start()
    time.sleep(seconds)
    used, wall = sum(process.cpu_times()[:2]) - before, time.monotonic() - began
    stop.set()
    thread.join()
    return used / wall


@dataclass(frozen=True)
class Running:
    url: str
    info: psutil.Process


@contextmanager
def simulator(*arguments: str) -> Iterator[Running]:
    port = free_port()
    command = [sys.executable, "-m", "stepsim", "simulate", "--port", str(port), "--per-rank-histogram", *arguments]
    with serving(command, f"http://127.0.0.1:{port}", "/healthz") as process:
        yield process


@contextmanager
def serving(command: list[str], url: str, ready: str) -> Iterator[Running]:
    """A process that answers ``ready`` below its URL."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                if requests.get(url + ready, timeout=1).ok:
                    break
            except requests.RequestException:
                pass
            time.sleep(0.1)
        yield Running(url=url, info=psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait(10)


MEASUREMENTS = (
    simulation,
    rendering,
    history,
    dashboards,
    scraping,
    *practice.MEASUREMENTS,
    *pages.MEASUREMENTS,
    *real.MEASUREMENTS,
)


def main() -> int:
    results: list[Result] = []
    for measure in MEASUREMENTS:
        with console.status((measure.__doc__ or "").splitlines()[0]):
            results.extend(measure())
    table = Table("what", "measured", "target", "holds")
    for result in results:
        sign = "≤" if result.better == "lower" else "≥"
        table.add_row(result.name, f"{result.value:,.3g} {result.unit}" if result.value < 100 else
                      f"{result.value:,.0f} {result.unit}", f"{sign} {result.target:,g}",
                      "[green]yes[/]" if result.holds else "[red]no[/]")  # fmt: skip
    Console().print(table)
    out = ROOT / "build" / "bench.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([{**asdict(r), "holds": r.holds} for r in results], indent=1) + "\n", encoding="utf-8")
    Console().print(f"written to {out.relative_to(ROOT)}")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
