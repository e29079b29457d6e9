"""Measurements of the real loop: what recording costs, beside other ways; the referee; a node's scrape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from results import Result, timed
from stepscope import StepRecord
from stepscope.node import NodeEndpoint
from stepscope.phases import ALLREDUCE, PHASES
from stepscope.ring import StepRing, document
from stepscope.server import JSON, Answer, MetricsServer

LOOP = Path(__file__).with_name("loop.py")


def recording() -> Iterator[Result]:
    """Microseconds in the loop: Stepscope, the naive way, TraceML where it is installed, and torch.profiler, less what the stop
    watch takes itself."""
    found = {mode: _loop(mode) for mode in ("nothing", "stepscope", "naive", "profiler")}
    ours, profiler = found["stepscope"], found["profiler"]
    watch = median(found["nothing"]["recording_us"])
    cost, naive = (median(found[mode]["recording_us"]) - watch for mode in ("stepscope", "naive"))
    step = median(ours["step_ms"])
    yield Result(name="recording a step, median", value=cost, unit="µs", target=10, better="lower")
    yield Result(name="recording a step, 99th percentile", value=quantiles(ours["recording_us"], n=100)[98] - watch,
                 unit="µs", target=25, better="lower")  # fmt: skip
    yield Result(name="telling backward from all-reduce", value=median(ours["split_us"]) / step / 10, unit="% of the step",
                 target=1, better="lower")  # fmt: skip
    yield Result(
        name="the naive way, against recording", value=naive / cost, unit="× as long", target=1.5, better="higher"
    )
    if find_spec("traceml_ai"):
        rival = (median(_loop("traceml")["recording_us"]) - watch) / cost
        yield Result(name="TraceML's step boundary, against recording", value=rival, unit="× as long", target=1.5,
                     better="higher")  # fmt: skip
    slower = 100 * (median(profiler["profiled_ms"]) / median(profiler["step_ms"]) - 1)
    yield Result(name="torch.profiler, for comparison", value=slower, unit="% of the step", target=2, better="higher")
    yield Result(name="the loop's step meanwhile", value=step, unit="ms", target=200, better="lower")


def _loop(mode: str) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        env = {**os.environ, "BENCH_OUT": str(out), "OMP_NUM_THREADS": "1", "STEPSCOPE_METRICS_PORT": "0"}
        subprocess.run(_launch(mode), env=env, cwd=folder, check=True, capture_output=True)
        return dict(json.loads(out.read_text(encoding="utf-8")))


def _launch(mode: str) -> list[str]:
    if mode == "traceml":  # records nothing without its own launcher, which starts what it reports to
        return [str(Path(sys.executable).with_name("traceml")), "run", str(LOOP), "--args", mode]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", str(LOOP), mode]


def referee() -> Iterator[Result]:
    """The referee over 1,024 ranks at three steps a second, by HTTP from 128 nodes, in a process of its own."""
    ranks, per_node, seconds, pace = 1024, 8, 20.0, 3.0
    began = time.monotonic()
    nodes = [
        _Node(node, per_node, ranks, lambda: int(pace * (time.monotonic() - began)))
        for node in range(ranks // per_node)
    ]
    targets = ",".join(f"127.0.0.1:{node.server.port}" for node in nodes)
    process = subprocess.Popen(
        [sys.executable, "-m", "stepsim", "referee", "--targets", targets, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(5)
        info = psutil.Process(process.pid)
        before, started = sum(info.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds)
        share = (sum(info.cpu_times()[:2]) - before) / (time.monotonic() - started)
    finally:
        process.terminate()
        process.wait(10)
        for node in nodes:
            node.server.close()
    yield Result(name="the referee, 1,024 ranks at 3 steps a second", value=100 * share, unit="% of a core", target=30,
                 better="lower")  # fmt: skip


class _Node:
    """What a node's endpoint serves of its ranks' steps, as far as they have got."""

    def __init__(self, node: int, ranks: int, world: int, step: Any) -> None:
        self._names = [node * ranks + rank for rank in range(ranks)]
        self._rings = {rank: StepRing() for rank in self._names}
        self._step, self._last = step, -1
        self._head = {"run": "r", "node": f"node-{node}", "world_size": world, "strategy": "ddp"}
        self._lock = threading.Lock()
        self.server = MetricsServer({"/steps": self._steps}, port=0)

    def _steps(self, query: Mapping[str, str]) -> Answer:
        with self._lock:
            for step in range(self._last + 1, self._step()):
                for rank in self._names:
                    self._rings[rank].add(_record(step, rank))
                self._last = step
            since = int(query["since"])
            parts = [
                document(self._rings[rank].since(since), rank=rank, process=str(rank), **self._head)
                for rank in self._names
            ]
        return Answer(f"[{','.join(parts)}]", JSON)


def _record(step: int, rank: int) -> StepRecord:
    before = [[0.03 + 0.0001 * ((rank * 7919 + step) % 31)] for _ in PHASES]
    before[ALLREDUCE] = [0.05 - 0.0001 * ((rank * 7919 + step) % 31)]
    return StepRecord(step=step, before=before, after=[[0.001] for _ in PHASES], ended=[0.0])


def node_scrape() -> Iterator[Result]:
    """One scrape of a node of eight real ranks, through its endpoint."""
    with tempfile.TemporaryDirectory() as folder:
        stop = Path(folder) / "stop"
        base = 19411
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", _RANK.format(rank=rank, stop=stop)],
                env={**os.environ, "STEPSCOPE_METRICS_PORT": str(base), "STEPSCOPE_REFEREE": "none"},
            )
            for rank in range(8)
        ]
        endpoint = NodeEndpoint([f"127.0.0.1:{base + rank}" for rank in range(8)])
        try:
            while _ranks_up(endpoint) < 8:
                time.sleep(0.2)
            seconds = median(timed(lambda: endpoint.metrics({})) for _ in range(40))
        finally:
            stop.touch()
            for process in processes:
                process.wait(20)
    yield Result(name="a scrape of 8 local ranks", value=1000 * seconds, unit="ms", target=50, better="lower")


def _ranks_up(endpoint: NodeEndpoint) -> int:
    lines = endpoint.metrics({}).body.splitlines()
    return sum(line.startswith("stepscope_rank_up{") and line.endswith(" 1") for line in lines)


_RANK = """
import os, time
from stepscope import StepMonitor
monitor = StepMonitor.from_env(run="bench", rank={rank}, world_size=8, local_rank={rank}, flops_per_step=1e9, peak=1e12)
for _ in monitor.batches(iter(int, 1)):
    with monitor.phase("backward"):
        time.sleep(0.05)
    monitor.step_done(loss=1.0)
    if os.path.exists("{stop}"):
        break
monitor.close()
"""

MEASUREMENTS = (recording, referee, node_scrape)
