"""Whether the dataset's storage answers fast enough for loader workers. The thresholds are this module's constants."""

from __future__ import annotations

import json
import sys
from statistics import median

from stepscope.doctor.finding import Finding, Node, judged, not_applicable
from stepscope.doctor.smi import Unreadable

LIMIT_SECONDS = 15.0
GRACE_SECONDS = 15.0
"""For the start of an interpreter, and one read that began in time."""
SLOW_SECONDS = 0.02
"""For 128 KiB: four workers that each read so slowly fall behind 200 samples a second."""
STALL_SECONDS = 0.3
LONG_STALL_SECONDS = 1.0
"""The mild and the plain severity of ``data_starvation`` in the fault catalogue: such reads take over the step."""
SMALL_SHARE = 0.5
MANY_FILES = 1000


def dataset(node: Node) -> Finding:
    if node.data is None:
        return not_applicable("not asked for: --data PATH")
    node.progress(f"sampling {node.data}, for {LIMIT_SECONDS:g} s at most")
    command = (sys.executable, "-m", "stepscope.doctor.sampling", node.data, f"{LIMIT_SECONDS:g}")
    output = node.machine.run(command, LIMIT_SECONDS + GRACE_SECONDS)
    if output.ended == "timeout":
        return Finding(status="fail", found=f"no answer within {LIMIT_SECONDS + GRACE_SECONDS:g} s")
    if not output.succeeded:
        return Finding(status="fail", found=f"cannot be read: the sampling {output.why()}")
    return _judged(*_parsed(output.text))


def _parsed(text: str) -> tuple[int, bool, int, list[float], int]:
    try:
        said = json.loads(text)
        reads = [float(seconds) for seconds in said["read_seconds"]]
        return int(said["files"]), bool(said["listed_all"]), int(said["small_files"]), reads, int(said["unreadable"])
    except (ValueError, TypeError, LookupError) as error:
        raise Unreadable(f"the sampling wrote {text[:100]!r}") from error


def _judged(files: int, listed_all: bool, small: int, reads: list[float], unreadable: int) -> Finding:
    if not files:
        return Finding(status="fail", found="no file in it")
    if not reads:
        return Finding(status="fail", found=f"none of {files} files could be read")
    typical, slowest = median(reads), max(reads)
    count = f"{files}{'' if listed_all else ' or more'} files, {small / files:.0%} below 1 MiB"
    found = f"reads: median {typical * 1000:.1f} ms, slowest {slowest * 1000:.0f} ms; {count}"
    long_stall = slowest >= LONG_STALL_SECONDS
    slow = typical >= SLOW_SECONDS or slowest >= STALL_SECONDS
    tiny = files >= MANY_FILES and small > SMALL_SHARE * files
    verdict = judged(
        fails=["a read stalled"] if long_stall else [],
        warns=[
            *(["slow reads"] if slow and not long_stall else []),
            *(["mostly small files"] if tiny else []),
            *([f"{unreadable} of {unreadable + len(reads)} reads failed"] if unreadable else []),
        ],
        fine="",
    )
    return Finding(status=verdict.status, found=f"{verdict.found}: {found}" if verdict.found else found)
