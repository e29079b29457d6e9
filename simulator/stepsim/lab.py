"""``make lab``: a job, Prometheus and Alertmanager on this machine, without Docker. The jobs are in ``lab_jobs``.

The rule files are the same as compose's, and the configs differ in host and port only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

import requests
from rich.console import Console

from stepsim.serving import listen

READY_SECONDS = 60.0
STOP_SECONDS = 10.0

COMPOSE_ADDRESSES = {"simulator": 8000, "prometheus": 9090, "alertmanager": 9093}
"""The service names and ports that the committed configs use."""

BINARIES = {"prometheus": ("prometheus",), "alertmanager": ("alertmanager", "prometheus-alertmanager")}
"""Names on PATH; Debian calls the second one differently."""


class LabError(RuntimeError):
    """The lab cannot start, or one of its parts died."""


@dataclass(kw_only=True)
class Part:
    """One running program of the lab."""

    name: str
    process: subprocess.Popen[bytes]
    url: str
    ready_path: str
    log: Path


@dataclass(kw_only=True)
class Lab:
    root: Path
    folder: Path
    """Where data, logs and written configs go."""
    ports: Mapping[str, int]
    console: Console
    parts: list[Part] = field(default_factory=list)
    rules_seen: tuple[int, int] | None = None
    """Of the practice rules: what the running Prometheus was told of last."""

    @property
    def practice_rules(self) -> Path:
        """The rule file that changes while the lab runs."""
        return self.root / "prometheus" / "rules" / "practice.yml"

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def start(
        self,
        name: str,
        command: list[str],
        ready_path: str,
        *,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start a part, and say so once it answers. Raises ``LabError`` when it does not."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        part = Part(name=name, process=process, url=url or self.url(name), ready_path=ready_path, log=log)
        self.parts.append(part)
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(part.url + ready_path):
            if process.poll() is not None:
                raise LabError(f"{name} ended at once; its log, {log}, ends with:\n{_tail(log)}")
            if time.monotonic() > deadline:
                raise LabError(f"{name} does not answer at {part.url} after {READY_SECONDS:.0f} s; its log: {log}")
            time.sleep(0.1)
        self.console.print(f"[green]ready[/]  {name:<13} {part.url}", highlight=False)

    def watch(self) -> None:
        """Watch until a part has died: raises ``LabError`` then. Prometheus is told when the practice rules change."""
        while True:
            self.reload_changed_rules()
            for part in self.parts:
                if part.process.poll() is not None:
                    raise LabError(f"{part.name} ended with status {part.process.returncode}:\n{_tail(part.log)}")
            time.sleep(0.3)

    def reload_changed_rules(self) -> None:
        """By a signal, which nobody else can send: a page that reloads on request would answer any web site, too."""
        seen = _stamp(self.practice_rules)
        if seen != self.rules_seen:
            self.rules_seen = seen
            for part in self.parts:
                if part.name == "prometheus" and part.process.poll() is None:
                    part.process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """End what was started, last first; kill what does not end."""
        for part in reversed(self.parts):
            if part.process.poll() is None:
                part.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for part in self.parts:
            try:
                part.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                part.process.kill()
                part.process.wait()


class Stopped(Exception):
    """SIGINT or SIGTERM."""


@contextmanager
def _until_signalled() -> Iterator[None]:
    def stop(signum: int, frame: object) -> None:
        for number in before:  # a second Ctrl-C does not interrupt the stopping
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class LabJob(Protocol):
    """What the lab is about."""

    def ports(self) -> Iterable[tuple[int, str]]:
        """Further ports that it needs, and the variable that moves each."""

    def preload(self, lab: Lab, data: Path) -> None:
        """Fill an empty Prometheus."""

    def start(self, lab: Lab) -> None:
        """Start its parts; one serves the API at ``lab.url("simulator")``."""


def run_lab(root: Path, folder: Path, job: LabJob, *, ports: Mapping[str, int], fresh: bool, console: Console) -> int:
    """Run until Ctrl-C (0), or until a part dies (1). Raises ``LabError`` or ``PortInUse`` when it cannot start."""
    if not (root / "prometheus" / "prometheus.yml").is_file():
        raise LabError(f"{root} holds no prometheus/prometheus.yml: run this in the project's folder, or give --root")
    own = ((port, f"{'STEPSCOPE' if name == 'simulator' else name.upper()}_PORT") for name, port in ports.items())
    needed = (*own, *job.ports())
    variables = tuple(dict.fromkeys(variable for _, variable in needed))
    # Before the ports: a lab that runs there has those, too.
    lock = _locked(folder, variables) if folder.is_dir() else None
    for port, variable in needed:
        listen("127.0.0.1", port, way_out=variable).close()
    lab = Lab(root=root, folder=folder, ports=ports, console=console)
    lab.folder.mkdir(parents=True, exist_ok=True)
    lock = lock or _locked(folder, variables)
    if fresh:
        for name in ("prometheus", "alertmanager", "history"):
            shutil.rmtree(lab.folder / name, ignore_errors=True)
        (lab.folder / "state.json").unlink(missing_ok=True)
    with _until_signalled():
        try:
            _start_all(lab, job)
            port = ports["simulator"]
            # Without it the command would find another lab, or none.
            here = f"STEPSCOPE_PORT={port} " if port != COMPOSE_ADDRESSES["simulator"] else ""
            console.print(f"Trigger a fault on the console, or: {here}{_command()} fault start straggler. Ctrl-C stops the lab.",
                          soft_wrap=True)  # fmt: skip
            lab.watch()
        except Stopped:
            console.print("stopping")
        except LabError as error:
            console.print(f"stepscope: {error}", style="red", markup=False)
            return 1
        finally:
            lab.stop()
    return 0


def _locked(folder: Path, variables: Iterable[str]) -> TextIO:
    """The folder is this lab's as long as the file is open. Raises ``LabError``."""
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise LabError(f"another lab uses {folder}: stop it, or give this one other ports ({', '.join(variables)}) and "
                       "another folder, with --data DIR") from None  # fmt: skip
    return lock


def _start_all(lab: Lab, job: LabJob) -> None:
    programs = {name: _which(*names) for name, names in BINARIES.items()}
    write_configs(lab)
    data = lab.folder / "prometheus"
    if programs["prometheus"]:
        job.preload(lab, data)
    job.start(lab)
    for name, program in programs.items():
        if program is None:
            package = {"prometheus": "prometheus", "alertmanager": "prometheus-alertmanager"}[name]
            lab.console.print(f"[yellow]absent[/] {name:<13} not on PATH; the console shows the essentials without it "
                              f"(Debian: apt-get install {package})", highlight=False)  # fmt: skip
    if program := programs["alertmanager"]:
        lab.start("alertmanager", [
            program, f"--config.file={lab.folder / 'alertmanager.yml'}",
            f"--storage.path={lab.folder / 'alertmanager'}", "--cluster.listen-address=",
            f"--web.listen-address=127.0.0.1:{lab.ports['alertmanager']}",
        ], "/-/ready")  # fmt: skip
    lab.rules_seen = _stamp(lab.practice_rules)
    if program := programs["prometheus"]:
        lab.start("prometheus", [
            program, f"--config.file={lab.folder / 'prometheus.yml'}", f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{lab.ports['prometheus']}",
        ], "/-/ready")  # fmt: skip


def write_configs(lab: Lab) -> None:
    """The committed configs with this machine's addresses in place of compose's; rules stay where they are."""
    for name in ("prometheus", "alertmanager"):
        text = (lab.root / name / f"{name}.yml").read_text(encoding="utf-8")
        for service, port in COMPOSE_ADDRESSES.items():
            text = text.replace(f"{service}:{port}", f"127.0.0.1:{lab.ports[service]}")
        (lab.folder / f"{name}.yml").write_text(text, encoding="utf-8")
    rules = lab.folder / "rules"
    rules.unlink(missing_ok=True)
    rules.symlink_to(lab.root / "prometheus" / "rules")


def _command() -> str:
    """How the user calls ``stepscope`` from here."""
    script = Path(sys.executable).with_name("stepscope")
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)


def _which(*names: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=1).status_code == 200
    except requests.RequestException:
        return False


def _stamp(file: Path) -> tuple[int, int] | None:
    """Another one whenever the file was written or replaced; None without the file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _tail(log: Path, lines: int = 8) -> str:
    return os.linesep.join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
