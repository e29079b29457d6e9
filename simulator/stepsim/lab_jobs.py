"""What ``make lab`` and ``make lab-real`` run: a simulated job, or a real one, under the same Prometheus."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stepscope.publisher import METRICS_PORT
from stepsim.lab import BINARIES, Lab, LabError
from stepsim.serving import free_port

STEPSCOPE = (sys.executable, "-m", "stepsim")


@dataclass(frozen=True, kw_only=True)
class SimulatedLab:
    """The simulator, and two hours of past."""

    preset: str
    job_file: Path | None
    seed: int
    grafana_port: int
    with_history: bool
    incidents: str | None = None
    """At which pace faults strike by themselves."""

    def ports(self) -> Iterable[tuple[int, str]]:
        return ()

    def start(self, lab: Lab) -> None:
        lab.start(
            "simulator",
            [*STEPSCOPE, "simulate", *self._job(), "--port", str(lab.ports["simulator"]), *_diagnosed(lab),
             *_linked(lab),
             "--grafana-port", str(self.grafana_port), "--state", str(lab.folder / "state.json"),
             *(["--incidents", self.incidents] if self.incidents else [])],
            "/healthz",
        )  # fmt: skip

    def _job(self) -> list[str]:
        more = ["--job", str(self.job_file)] if self.job_file else []
        return ["--preset", self.preset, "--seed", str(self.seed), *more]

    def preload(self, lab: Lab, data: Path) -> None:
        """What is missing when that fails is the past, not the lab."""
        if not self.with_history or (data / "wal").exists() or any(data.glob("0*")):
            return
        if not shutil.which("promtool"):
            lab.console.print("[yellow]no past[/]: promtool is not on PATH", highlight=False)
            return
        lab.console.print("loading a past first, which takes about 20 s; it is kept for the next time")
        past = lab.folder / "history"
        started = time.monotonic()
        rules = lab.root / "prometheus" / "rules" / "recording.yml"
        data.mkdir(parents=True, exist_ok=True)
        commands = (
            [*STEPSCOPE, "history", str(past), *self._job(), "--rules", str(rules),
             "--state", str(lab.folder / "state.json")],
            ["sh", str(lab.root / "prometheus" / "load-history.sh"), str(past), str(data), str(free_port())],
        )  # fmt: skip
        with lab.console.status("simulating and loading the past"):
            for command in commands:
                code, said = _run_whole(command)
                if code != 0:
                    lab.console.print(f"[yellow]no past[/]: {said.strip()}", highlight=False)
                    return
        shutil.rmtree(past, ignore_errors=True)
        lab.console.print(f"[green]loaded[/] the past in {time.monotonic() - started:.0f} s", highlight=False)


@dataclass(frozen=True, kw_only=True)
class RealLab:
    """``examples/train_gpt.py`` under torchrun, and what watches it. Its past is what Prometheus kept of it."""

    ranks: int
    strategy: str
    grafana_port: int
    metrics_port: int = METRICS_PORT
    training_options: tuple[str, ...] = ()
    """Further ones of train_gpt.py."""

    def ports(self) -> Iterable[tuple[int, str]]:
        return [(self.metrics_port + rank, "STEPSCOPE_METRICS_PORT") for rank in range(self.ranks)]

    def preload(self, lab: Lab, data: Path) -> None:
        """There is none: the job is real."""

    def start(self, lab: Lab) -> None:
        if importlib.util.find_spec("torch") is None:
            raise LabError("a real job needs PyTorch: pip install torch (make lab-real does it)")
        script = lab.root / "examples" / "train_gpt.py"
        if not script.is_file():
            raise LabError(f"there is no {script}: run this in the project's folder, or give --root")
        discovery = lab.folder / "sd"
        shutil.rmtree(discovery, ignore_errors=True)
        lab.start(
            "watch",
            [*STEPSCOPE, "watch", str(discovery), "--ranks", str(self.ranks), "--port", str(lab.ports["simulator"]),
             "--grafana-port", str(self.grafana_port), *_linked(lab), *_diagnosed(lab)],
            "/healthz", url=lab.url("simulator"),
        )  # fmt: skip
        lab.start(
            "training",
            [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}",
             "--max-restarts=10", str(script), "--strategy", self.strategy,
             "--lab", lab.url("simulator"), "--checkpoints", str(lab.folder / "checkpoints"), *self.training_options],
            "/metrics", url=f"http://127.0.0.1:{self.metrics_port}",
            env={"STEPSCOPE_RUN": "gpt", "STEPSCOPE_METRICS_PORT": str(self.metrics_port), "STEPSCOPE_REFEREE": "none",
                 "STEPSCOPE_SD_DIR": str(discovery), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def _diagnosed(lab: Lab) -> list[str]:
    """From the lab's own Prometheus, where it can have one."""
    return ["--prometheus", lab.url("prometheus")] if shutil.which("prometheus") else []


def _linked(lab: Lab) -> list[str]:
    """The console leads to what the lab can start."""
    there = [name for name, programs in BINARIES.items() if any(shutil.which(program) for program in programs)]
    return ["--links", ",".join(f"{name.capitalize()}={lab.ports[name]}" for name in there)]


def _run_whole(command: list[str]) -> tuple[int, str]:
    """Exit status and output of a command; when we are stopped meanwhile, all that it started is ended, too."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        said, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
    return process.returncode, said.decode(errors="replace")
