"""Reads a little of a dataset and writes down how long it took, as JSON: ``python -m stepscope.doctor.sampling PATH SECONDS``.

A program of its own, so that a file system which never answers hangs this process and not the one that waits for it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

MAX_LISTED = 20_000
MAX_READS = 64
READ_BYTES = 128 * 1024
"""An image of ImageNet is 110 KB on average; of a large file, as much of a shard as a loader's small random read."""
SMALL_BYTES = 1024 * 1024
LISTING_SHARE = 0.4
"""Of the time: listing a folder of millions must leave some for reading."""


def sample(path: str, seconds: float, rng: random.Random, clock: Callable[[], float]) -> dict[str, Any]:
    """Sizes of the first files found, and the time that opening and reading at random places takes."""
    start = clock()
    files: list[tuple[str, int]] = []
    listed_all = True
    for file in walk(path):
        files.append(file)
        if len(files) >= MAX_LISTED or clock() - start > LISTING_SHARE * seconds:
            listed_all = False
            break
    listing_seconds = clock() - start
    reads: list[float | None] = []
    while files and len(reads) < MAX_READS and clock() - start < seconds:
        reads.append(timed_read(*rng.choice(files), rng, clock))
    return {
        "files": len(files),
        "listed_all": listed_all,
        "small_files": sum(size < SMALL_BYTES for _, size in files),
        "listing_seconds": listing_seconds,
        "read_seconds": [seconds for seconds in reads if seconds is not None],
        "unreadable": sum(seconds is None for seconds in reads),
    }


def walk(path: str) -> Iterator[tuple[str, int]]:
    """Files with their sizes, breadth first; a folder that may not be read is passed over."""
    if not os.path.isdir(path):
        yield path, os.path.getsize(path)
        return
    folders = [path]
    while folders:
        with suppress(OSError), os.scandir(folders.pop(0)) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file():
                    yield entry.path, entry.stat().st_size


def timed_read(path: str, size: int, rng: random.Random, clock: Callable[[], float]) -> float | None:
    """Seconds to open a file and read from a random place, past the page cache where the kernel lets go of it."""
    try:
        before = clock()
        with open(path, "rb", buffering=0) as file:
            opened = clock() - before
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            before = clock()
            os.pread(file.fileno(), READ_BYTES, rng.randrange(max(1, size - READ_BYTES)))
        return opened + clock() - before
    except OSError:
        return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(sample(sys.argv[1], float(sys.argv[2]), random.Random(0), time.monotonic)))
