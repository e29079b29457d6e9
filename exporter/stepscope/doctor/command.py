"""``stepscope doctor``: node acceptance, before a job starts. To add an option: here, and its user in ``docs/doctor.md``."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

from stepscope.doctor.checks import acceptance
from stepscope.doctor.machine import LocalMachine, Machine, exists
from stepscope.doctor.report import as_json, as_metrics, as_table, write_textfile

EXITS = "Exit status: 0 nothing failed, 1 a check failed, 2 bad usage."


class UsageError(ValueError):
    """Says what was wrong and what would be right."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``doctor`` to the subcommands."""
    doctor = commands.add_parser(
        "doctor", help="acceptance of this node, before a job starts: GPUs, links, CPUs, storage", epilog=EXITS
    )
    doctor.add_argument(
        "--gpus", type=_gpus, metavar="N", help="GPUs that must be here (default: those on the PCI bus)"
    )
    doctor.add_argument(
        "--data", type=Path, metavar="PATH", help="also sample the dataset there, for half a minute at most"
    )
    doctor.add_argument(
        "--nccl", action="store_true", help="also measure an all-reduce, with nccl-tests' all_reduce_perf"
    )
    doctor.add_argument("--textfile", type=Path, metavar="FILE.prom", help="also write metrics for node_exporter")
    doctor.add_argument("--json", action="store_true", help="write JSON instead of a table")
    doctor.set_defaults(run_command=run)


def run(options: argparse.Namespace) -> int:
    return doctor(options, LocalMachine())


def doctor(options: argparse.Namespace, machine: Machine) -> int:
    """Examine the node, write the report, and return the exit status."""
    try:
        _usable(options, machine)
    except UsageError as error:
        sys.stderr.write(f"stepscope doctor: {error}\n")
        return 2
    report = acceptance(
        machine,
        name=os.environ.get("STEPSCOPE_NODE") or socket.gethostname(),
        gpus_expected=options.gpus,
        data=None if options.data is None else str(options.data),
        nccl=options.nccl,
        progress=_progress,
    )
    if options.textfile:
        write_textfile(options.textfile, as_metrics(report, now=time.time()))
    sys.stdout.write(as_json(report) + "\n" if options.json else as_table(report, coloured=wants_colour(sys.stdout)))
    return 1 if report.status == "fail" else 0


def _usable(options: argparse.Namespace, machine: Machine) -> None:
    """Refuse before anything is measured what could not be used after it."""
    if options.data is not None and exists(machine, options.data) is False:
        raise UsageError(f"--data {options.data}: no such file or folder; give the dataset's path on this node")
    if (file := options.textfile) is None:
        return
    if file.suffix != ".prom":
        raise UsageError(f"--textfile {file}: node_exporter reads files whose name ends in .prom; call it {file}.prom")
    if file.is_dir() or not file.parent.is_dir() or not os.access(file.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"--textfile {file}: cannot write a file into {file.parent}; give one in a folder that exists and is "
            "writable, the one of node_exporter's --collector.textfile.directory"
        )


def wants_colour(stream: TextIO) -> bool:
    """Only on a terminal, and not where NO_COLOR is set (no-color.org) or the terminal has none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _progress(message: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"stepscope doctor: {message} …\n")


def _gpus(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs: give one from 1 to 1024")
    return int(text)
