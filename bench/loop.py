"""One rank of the example's loop at 50 to 80 ms a step, measured by MODE; run under torchrun by bench/real.py.

Costs are taken around the calls themselves, inside the loop, where caches are cold. Writes JSON: microseconds per step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from prometheus_client import CollectorRegistry, Gauge, Histogram
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from stepscope import StepMonitor, collectives

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_gpt import GPT, Config, StandardLibrary

STEPS, WARM_UP, BLOCK = 260, 60, 20
PHASES = ("data_wait", "h2d", "forward", "backward", "allreduce", "optimizer", "other")


class Cost:
    """Seconds spent in calls, per step."""

    def __init__(self) -> None:
        self.open, self.steps = 0.0, []  # type: float, list[float]

    def of(self, action: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            began = time.perf_counter()
            result = action(*args)
            self.open += time.perf_counter() - began
            return result

        return call

    def end_step(self) -> None:
        self.steps.append(1e6 * self.open)
        self.open = 0.0


class Nothing:
    """No instrumentation at all: what the stop watch itself takes."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, recording: Cost, split: Cost) -> None:
        self._call = recording.of(lambda *error: None)
        self.done = recording.of(lambda loss: None)

    def enter(self, phase: str) -> None:
        """Two calls, as for a ``with`` block."""
        self._call(None, None, None)
        self._call()


class Stepscope:
    """The monitor, with the collectives' hooks timed apart."""

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer, recording: Cost, split: Cost) -> None:
        for name in ("_forward_ended", "_first_gradient", "_ready", "_done"):
            setattr(collectives.Collectives, name, split.of(getattr(collectives.Collectives, name)))
        self.monitor = StepMonitor.from_env(model=model.module, tokens_per_step=1024)
        self.monitor.wrap(model, optimizer)
        self._recording = recording
        self._phases = {name: self.monitor.phase(name) for name in PHASES}
        self._left: Callable[..., Any] = lambda *error: None
        self.done = recording.of(lambda loss: self.monitor.step_done(loss=loss, grad_norm=1.0))

    def enter(self, phase: str) -> None:
        """Leave one ``with`` block, and enter the next."""
        self._recording.of(self._left)(None, None, None)
        entered = self._phases[phase]
        self._recording.of(entered.__enter__)()
        self._left = entered.__exit__


class Stamps:
    """The least that anybody can do: a stamp per phase, and one append per step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, recording: Cost, split: Cost) -> None:
        self._stamps: list[float] = []
        self._steps: list[tuple[float, ...]] = []
        self.enter = recording.of(lambda phase: self._stamps.append(time.perf_counter()))
        self.done = recording.of(self._done)

    def _done(self, loss: torch.Tensor) -> None:
        self._steps.append((*self._stamps, time.perf_counter()))
        self._stamps.clear()


class Naive:
    """A histogram per phase and some gauges, set in the loop: seven ``observe`` and fifteen ``set`` a step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, recording: Cost, split: Cost) -> None:
        registry = CollectorRegistry()
        histogram = Histogram("phase_seconds", "By phase.", ["rank", "phase"], registry=registry)
        gauge = Gauge("state", "By name.", ["rank", "name"], registry=registry)
        self._phases = [histogram.labels("0", phase) for phase in PHASES]
        self._gauges = [gauge.labels("0", str(number)) for number in range(15)]
        self._stamps: list[float] = []
        self.enter = recording.of(lambda phase: self._stamps.append(time.perf_counter()))
        self.done = recording.of(self._publish)

    def _publish(self, loss: torch.Tensor) -> None:
        self._stamps.append(time.perf_counter())
        for child, (began, ended) in zip(self._phases, zip(self._stamps, self._stamps[1:], strict=False), strict=False):
            child.observe(ended - began)
        for number, child in enumerate(self._gauges):
            child.set(number)
        self._stamps.clear()


class TraceML:
    """The context manager that TraceML's users put around a step; what it patched within comes on top, and is not timed."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, recording: Cost, split: Cost) -> None:
        import traceml_ai

        traceml_ai.init(mode="auto")
        self._model, self._recording = model, recording
        self.done = lambda loss: None

    def enter(self, phase: str) -> None:
        """The step lasts from forward to the optimizer's end."""
        if phase == "forward":
            self._recording.of(self._begin)()
        elif phase == "other":
            self._recording.of(self._step.__exit__)(None, None, None)

    def _begin(self) -> None:
        import traceml_ai

        self._step = traceml_ai.trace_step(self._model)
        self._step.__enter__()


MODES = {
    "nothing": Nothing, "stamps": Stamps, "stepscope": Stepscope, "naive": Naive, "profiler": Nothing, "traceml": TraceML,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    mode = parser.parse_args().mode
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    config = Config()
    model = DistributedDataParallel(GPT(config))
    optimizer = torch.optim.AdamW(model.parameters())
    recording, split = Cost(), Cost()
    loop = MODES[mode](model, optimizer, recording, split)
    batches = iter(DataLoader(StandardLibrary(config.sequence, 1 << 30, rank, torch.zeros(1)), batch_size=4))
    durations: list[float] = []
    profiled: list[float] = []
    for step in range(STEPS):
        began = time.perf_counter()
        profiling = mode == "profiler" and step // BLOCK % 2 == 1
        with torch.profiler.profile() if profiling else nullcontext():
            loop.enter("data_wait")
            inputs, targets = next(batches)
            loop.enter("forward")
            loss = model(inputs, targets)
            loop.enter("backward")
            loss.backward()
            loop.enter("optimizer")
            optimizer.step()
            optimizer.zero_grad()
            loop.enter("other")
            loop.done(loss)
        recording.end_step()
        split.end_step()
        (profiled if profiling else durations).append(1e3 * (time.perf_counter() - began))
    if rank == 0:
        result = {
            "step_ms": durations[WARM_UP:], "recording_us": recording.steps[WARM_UP:], "split_us": split.steps[WARM_UP:],
            "profiled_ms": profiled,
        }  # fmt: skip
        Path(os.environ["BENCH_OUT"]).write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
