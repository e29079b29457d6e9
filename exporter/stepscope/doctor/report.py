"""How a report is written: as a table for people, as JSON for scripts, as metrics for node_exporter's textfile collector."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from stepscope.doctor.checks import CHECKS, Report
from stepscope.doctor.finding import STATUSES, Result, Status

COLOURS: dict[Status, str] = {"pass": "32", "warn": "33", "fail": "1;31", "not_applicable": "2"}
"""SGR parameters (ECMA-48): green, yellow, bold red, faint."""
WORDS: dict[Status, str] = {"pass": "pass", "warn": "warn", "fail": "FAIL", "not_applicable": "n/a"}
MAX_COLUMN = 52
HEADINGS = ("", "check", "found", "expected")


def as_json(report: Report) -> str:
    checks = [asdict(result) for result in report.results]
    return json.dumps({"status": report.status, "node": report.node, "checks": checks}, indent=2, ensure_ascii=False)


def as_table(report: Report, *, coloured: bool) -> str:
    paint = _painted if coloured else _plain
    rows = [(WORDS[each.status], each.name, each.found, _worth_saying(each)) for each in report.results]
    widths = [min(MAX_COLUMN, max(map(len, column))) for column in zip(HEADINGS, *rows, strict=True)]
    lines = list(_row(HEADINGS, widths))
    for result, row in zip(report.results, rows, strict=True):
        first, *more = _row(row, widths)
        word = WORDS[result.status]
        lines += [paint(word, result.status) + first[len(word) :], *more]
    lines += ["", *_to_do(report.results, paint), _summary(report, paint)]
    if report.status == "fail":
        lines += ["", *quarantine(report)]
    return "\n".join(lines) + "\n"


def _worth_saying(result: Result) -> str:
    return "" if result.status == "not_applicable" else result.expected


def _row(cells: tuple[str, ...], widths: list[int]) -> Iterator[str]:
    columns = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    for parts in zip_longest(*columns, fillvalue=""):
        yield "  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()


def _to_do(results: tuple[Result, ...], paint: Callable[[str, Status], str]) -> list[str]:
    lines = [f"  {paint(each.name, each.status)}: {each.next_step}" for each in results if each.next_step]
    return ["What to do:", *lines, ""] if lines else []


def _summary(report: Report, paint: Callable[[str, Status], str]) -> str:
    counts = ", ".join(f"{len(report.names(status))} {WORDS[status].lower()}" for status in STATUSES)
    return f"{paint(WORDS[report.status], report.status)}: {report.node}: {counts}"


def quarantine(report: Report) -> list[str]:
    """How to keep jobs away from the node."""
    node, reason = shlex.quote(report.node), f"stepscope doctor: {', '.join(report.names('fail'))}"
    own = [check.name for check in CHECKS if check.of == "job" and check.name in report.names("fail")]
    doubt = f" (but {', '.join(own)} may be this job's own, and then no other node cures it)" if own else ""
    return [
        f"To keep jobs away from it{doubt}:",
        f'  scontrol update nodename={node} state=drain reason="{reason}"',
        f"  kubectl cordon {node}",
        f"  kubectl taint nodes {node} stepscope/doctor=failed:NoSchedule",
    ]


def _painted(text: str, status: Status) -> str:
    return f"\x1b[{COLOURS[status]}m{text}\x1b[0m"


def _plain(text: str, status: Status) -> str:
    return text


def as_metrics(report: Report, *, now: float) -> bytes:
    registry = CollectorRegistry()
    status = Gauge(
        "stepscope_doctor_check_status",
        "Node acceptance by check: 1 for the status that it has, 0 for the others.",
        ("check", "status"),
        registry=registry,
    )
    for result in report.results:
        for each in STATUSES:
            status.labels(result.name, each).set(float(each == result.status))
    last = "Unix time of the last node acceptance."
    Gauge("stepscope_doctor_last_run_timestamp_seconds", last, registry=registry).set(now)
    return generate_latest(registry)


def write_textfile(path: Path, text: bytes) -> None:
    """Whole or not at all, and readable for node_exporter, which runs as another user."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
