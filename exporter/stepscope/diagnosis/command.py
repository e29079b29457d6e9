"""``stepscope diagnose``: what is wrong with a run, from its metrics in Prometheus, in words or as JSON."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from stepscope.diagnosis.judge import diagnose
from stepscope.diagnosis.source import Prometheus, SourceError
from stepscope.diagnosis.wording import as_json, coloured, in_words, plain

HEALTHY, FINDING, CANNOT = 0, 1, 2
"""Exit statuses. A suspicion is a finding, and so is not enough data: nothing was proven healthy."""
UNIT_SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
AGO = re.compile(r"(\d+(?:\.\d+)?)([wdhms])")
CLOCKS_DIFFER_SECONDS = 60.0
"""By how much a moment may lie ahead of this machine's clock."""
FORMS = "RFC 3339 with an offset (2026-01-31T12:00:00Z), seconds since 1970, or how long ago (90s, 10m, 1h30m)"


class NoRun(ValueError):
    """Which run is meant cannot be told."""


def add_to(commands: Any) -> None:
    """Register the command with an ``argparse`` parser's subcommands."""
    command = commands.add_parser(
        "diagnose",
        help="what is wrong with a run, with what evidence, and what it is not",
        description="Says what is wrong with a run, from its metrics in Prometheus. "
        "Exit status: 0 healthy, 1 a finding, a suspicion or not enough data, 2 bad usage or no Prometheus.",
    )
    command.add_argument("--prometheus", metavar="URL", help="its address, with a path and user:password@ if need be "
                         "(default: STEPSCOPE_PROMETHEUS, else 127.0.0.1 at PROMETHEUS_PORT, else at 9090)")  # fmt: skip
    command.add_argument("--run", help="of several runs, this one")
    command.add_argument("--at", metavar="TIME", type=_moment, help=f"the moment: {FORMS}; default: now")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run_command=run)


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis; returns the exit status."""
    at = time.time() if options.at is None else options.at
    try:
        source = Prometheus(options.prometheus or default_url(os.environ))
        runs = source.runs(at)
        name = options.run or _only(runs, source.url)
        report = diagnose(source, name, at)
    except (SourceError, NoRun) as error:
        sys.stderr.write(f"stepscope: {error}\n")
        return CANNOT
    if options.json:
        sys.stdout.write(json.dumps(as_json(report), allow_nan=False) + "\n")
    else:
        sys.stdout.write(in_words(report, coloured if _colours(os.environ) else plain))
    if name not in runs:
        sys.stderr.write(f"stepscope: run {name!r} does not report at that moment; {_there_are(runs)}\n")
    return HEALTHY if report.healthy else FINDING


def default_url(environment: Mapping[str, str]) -> str:
    """Where the lab's Prometheus is, unless the environment names another."""
    return environment.get("STEPSCOPE_PROMETHEUS") or f"http://127.0.0.1:{environment.get('PROMETHEUS_PORT') or 9090}"


def moment(text: str, now: float) -> float:
    """Seconds since 1970 of a time as people write it. Raises ``ValueError`` that says how to."""
    at = _seconds(text.strip(), now)
    if at > now + CLOCKS_DIFFER_SECONDS:
        raise ValueError(f"{text!r} lies in the future; give {FORMS}")
    return at


def _seconds(text: str, now: float) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if text and not AGO.sub("", text):
        return max(0.0, now - sum(float(number) * UNIT_SECONDS[unit] for number, unit in AGO.findall(text)))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; give {FORMS}") from None
    if at.tzinfo is None:
        raise ValueError(f"{text!r} does not say in which zone; write {text}Z for UTC, or an offset such as +01:00")
    return at.timestamp()


def _moment(text: str) -> float:
    try:
        return moment(text, time.time())
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _only(runs: list[str], url: str) -> str:
    if len(runs) == 1:
        return runs[0]
    if runs:
        raise NoRun(f"which run? {_there_are(runs)}; choose with --run")
    raise NoRun(f"no run reports to {url} at that moment: it has no training_steps_total; is the job scraped?")


def _there_are(runs: list[str]) -> str:
    return f"there are {', '.join(runs)}" if runs else "there is none"


def _colours(environment: Mapping[str, str]) -> bool:
    """See no-color.org: any value but an empty one turns them off."""
    return sys.stdout.isatty() and not environment.get("NO_COLOR")
