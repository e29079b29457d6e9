"""The one way in which a check touches the machine, so that a test can replay what another machine said.

To let checks read something new: add a method to ``Machine``, to ``LocalMachine`` and to the tests' replay.
"""

from __future__ import annotations

import glob
import importlib.metadata
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

KILL_GRACE_SECONDS = 1.0
"""A program that hangs in the kernel, as nvidia-smi does on a sick driver, is killed and then left behind."""
MAX_READ_BYTES = 2**20
"""More than any file of /proc or /sys that a check reads."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What became of a command."""

    ended: Literal["exited", "missing", "timeout"] = "exited"
    exit_status: int = 0
    text: str = ""
    errors: str = ""

    @property
    def succeeded(self) -> bool:
        return self.ended == "exited" and self.exit_status == 0

    def why(self) -> str:
        """Why it did not succeed, in words: its own last line where it said anything."""
        if self.ended != "exited":
            return {"missing": "is not installed", "timeout": "did not answer in time"}[self.ended]
        said = (self.errors.strip() or self.text.strip()).splitlines()
        return f"exited with {self.exit_status}" + (f": {said[-1].strip()[:200]}" if said else "")


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A file system."""

    total_bytes: int
    free_bytes: int


class Machine(Protocol):
    """Nothing here raises: what is not there is None or empty."""

    def run(self, command: Sequence[str], timeout_seconds: float) -> Output:
        """Run a program to its end, or until time is up."""

    def read(self, path: str) -> str | None:
        """A small text file."""

    def glob(self, pattern: str) -> list[str]:
        """Paths that match, sorted."""

    def disk(self, path: str) -> Disk | None:
        """The file system mounted at, or above, a path."""

    def package(self, name: str) -> str | None:
        """The version of an installed Python package, of which nothing is imported."""


class LocalMachine:
    """This machine."""

    def run(self, command: Sequence[str], timeout_seconds: float) -> Output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError:
            return Output(ended="missing")
        try:
            text, errors = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            _abandon(process)
            return Output(ended="timeout")
        except BaseException:  # Ctrl-C reaches this process alone
            _abandon(process)
            raise
        return Output(exit_status=process.returncode, text=_decoded(text), errors=_decoded(errors))

    def read(self, path: str) -> str | None:
        with suppress(OSError), open(path, "rb") as file:
            return _decoded(file.read(MAX_READ_BYTES))
        return None

    def glob(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern))

    def disk(self, path: str) -> Disk | None:
        with suppress(OSError):
            found = os.statvfs(path)
            return Disk(total_bytes=found.f_blocks * found.f_frsize, free_bytes=found.f_bavail * found.f_frsize)
        return None

    def package(self, name: str) -> str | None:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
        return None


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and its children, and do not wait for one that the kernel does not let go."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=KILL_GRACE_SECONDS)


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


def exists(machine: Machine, path: Path) -> bool | None:
    """Whether there is such a path; None when its file system does not answer. Asked by a child, which may hang."""
    program = "import os, sys; sys.exit(not os.path.exists(sys.argv[1]))"
    output = machine.run((sys.executable, "-ISc", program, str(path)), timeout_seconds=10.0)
    return None if output.ended == "timeout" else output.succeeded
