"""Prometheus file-based service discovery: one file per process, replaced atomically, removed on exit.

A process that was killed leaves its file. Every live process touches its own from time to time, so that any other one
that starts can sweep those that nobody touches.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 150.0
"""Ten missed heartbeats."""
RUN_LABEL = "__stepscope_run__"
"""Of an entry: not one of its series' labels, which have their own."""
TRAINING_JOB = "training"
"""The label ``job`` of what serves step records."""
_PREFIX = "stepscope-"


class SdEntry:
    """One process's target in a folder that Prometheus reads with ``file_sd_configs``."""

    def __init__(self, folder: Path, name: str, target: str, labels: Mapping[str, str]) -> None:
        self.path = folder / f"{_PREFIX}{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.json"
        self._text = json.dumps([{"targets": [target], "labels": dict(labels)}]) + "\n"

    def write(self) -> None:
        """Atomic. Raises ``OSError``, and leaves what was there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            draft.write_text(self._text, encoding="utf-8")
            draft.replace(self.path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def touch(self) -> None:
        """Say that the process is alive; the file is written anew if it is gone."""
        try:
            os.utime(self.path)
        except FileNotFoundError:
            self.write()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def sweep(folder: Path, now: float | None = None) -> list[Path]:
    """Remove the entries of processes that are no more; returns what was removed."""
    limit = (time.time() if now is None else now) - STALE_SECONDS
    removed = []
    for file in [*folder.glob(f"{_PREFIX}*.json"), *folder.glob(f"{_PREFIX}*.tmp")]:
        try:
            if file.stat().st_mtime < limit:
                file.unlink()
                removed.append(file)
        except FileNotFoundError:  # another one swept it
            continue
    return removed


def entries(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Target and labels of every live entry; what is not readable at this moment is passed over."""
    for file in sorted(folder.glob(f"{_PREFIX}*.json")):
        try:
            groups = json.loads(file.read_text(encoding="utf-8"))
            yield from ((target, group["labels"]) for group in groups for target in group["targets"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
