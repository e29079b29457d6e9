"""The lab's pages: what a console's viewer costs the simulator of 1,024 ranks, whether twenty slow it, how long a plan takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from results import Result, timed
from stepsim.planner.answer import predict_from
from stepsim.serving import free_port

VIEWERS = 20
SECONDS = 20.0
SETTLE_SECONDS = 4.0


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Over a while."""

    cores: float
    """CPU seconds per second."""
    steps_per_second: float


def viewers() -> Iterator[Result]:
    """CPU seconds of the simulator's process without viewers, with one and with twenty, in the same run."""
    with _simulator() as (url, pid):
        none, one, many = (_with_viewers(url, pid, count) for count in (0, 1, VIEWERS))
    yield Result(name="a console viewer, 1,024 ranks", value=100 * (one.cores - none.cores), unit="% of a core", target=5,
                 better="lower")  # fmt: skip
    yield Result(name=f"each of {VIEWERS} viewers", value=100 * (many.cores - none.cores) / VIEWERS, unit="% of a core",
                 target=5, better="lower")  # fmt: skip
    yield Result(name=f"simulated steps per second with {VIEWERS} viewers, by without",
                 value=many.steps_per_second / none.steps_per_second, unit="×", target=0.98, better="higher")  # fmt: skip


@contextmanager
def _simulator() -> Iterator[tuple[str, int]]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "stepsim", "simulate", "--preset", "large", "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            if _steps(url) > 0:
                break
            time.sleep(0.1)
        time.sleep(SETTLE_SECONDS)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def _with_viewers(url: str, pid: int, count: int) -> Taken:
    ended = threading.Event()
    threads = [threading.Thread(target=_view, args=(url, ended), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(SETTLE_SECONDS)
    began, cpu, steps = time.monotonic(), _cpu_seconds(pid), _steps(url)
    time.sleep(SECONDS)
    wall = time.monotonic() - began
    taken = Taken(cores=(_cpu_seconds(pid) - cpu) / wall, steps_per_second=(_steps(url) - steps) / wall)
    ended.set()
    for thread in threads:
        thread.join()
    return taken


def _view(url: str, ended: threading.Event) -> None:
    with requests.get(f"{url}/events", stream=True, timeout=10) as answer:
        answer.raise_for_status()
        for _ in answer.iter_content(65_536):
            if ended.is_set():
                return


def _cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _steps(url: str) -> float:
    """Of the run, as its own page says."""
    try:
        text = requests.get(f"{url}/metrics/training/node-0", timeout=5).text
    except requests.RequestException:
        return 0.0
    found = re.search(r"^training_steps_total\{.*\} (\S+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def planner() -> Iterator[Result]:
    """What the planner's page waits for."""
    query = {"max_gpus": "4096", "strategy": "ddp"}
    predict_from(query)
    seconds = min(timed(lambda: predict_from(query)) for _ in range(5))
    yield Result(name="a plan with its curve to 4,096 GPUs", value=seconds, unit="s", target=0.15, better="lower")


MEASUREMENTS = (viewers, planner)
