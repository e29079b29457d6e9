"""What a training cluster runs: ``stepscope serve`` and ``stepscope referee``, and the commands that look at it.

They need the library's core alone; ``stepsim.cli`` hands them over.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.device import NvmlDevices, NvmlUnavailable, load_nvml
from stepscope.diagnosis import command as diagnosis
from stepscope.discovery import HEARTBEAT_SECONDS, TRAINING_JOB, SdEntry, sweep
from stepscope.doctor import command as doctor
from stepscope.host import HostMetrics, node_exporter_runs
from stepscope.node import NodeEndpoint
from stepscope.peers import PULL_SECONDS, Puller, file_sd
from stepscope.publisher import METRICS_PORT, joined, public_host
from stepscope.server import Answer, MetricsServer, Route

log = logging.getLogger("stepscope")

NODE_PORT, REFEREE_PORT = 9420, 9421
"""Beside a dcgm-exporter, which has 9400, and the ranks of a node, from 9401 on."""
COMMANDS = ("serve", "referee", "diagnose", "doctor")


def main(arguments: Sequence[str]) -> int:
    """Run a command; those that serve, until SIGINT or SIGTERM. Returns the exit status: 2 when it could not start."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    options = parser().parse_args(arguments)
    try:
        return int(options.run_command(options))
    except OSError as error:  # a port in use among them
        sys.stderr.write(f"stepscope: {error}\n")
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="stepscope", description="What a training cluster runs beside its ranks.")
    commands = top.add_subparsers(required=True, metavar=f"{{{','.join(COMMANDS)}}}")

    serve = commands.add_parser("serve", help="one endpoint per node: all local ranks, GPUs through NVML, and the host")
    serve.add_argument("--ranks", type=_count, default=8, help="local ranks to gather (default 8; 0 for none)")
    serve.add_argument("--base-port", type=_port, default=METRICS_PORT, help=f"port of local rank 0 ({METRICS_PORT})")
    serve.add_argument("--nvml", action=argparse.BooleanOptionalAction, default=True, help="read the node's GPUs")
    serve.add_argument("--host-metrics", action=argparse.BooleanOptionalAction, default=None,
                       help="read the host (default: only where no node_exporter listens on 9100)")  # fmt: skip
    serve.add_argument("--sd-dir", type=Path, help="write a discovery file for Prometheus into this folder")
    _common(serve, _serve, NODE_PORT)

    referee = commands.add_parser(
        "referee", help="the critical path of one run, from the step records of all its ranks"
    )
    where = referee.add_mutually_exclusive_group(required=True)
    where.add_argument("--targets", type=_targets, help="host:port of every rank or node, with commas")
    where.add_argument("--sd-dir", type=Path, help="folder with the ranks' discovery files; its own is put there, too")
    referee.add_argument("--run", help="of several runs, this one (default: the one that answers)")
    referee.add_argument(
        "--every", type=_seconds, default=PULL_SECONDS, help=f"seconds between rounds ({PULL_SECONDS:g})"
    )
    _common(referee, _referee, REFEREE_PORT)
    diagnosis.add_to(commands)
    doctor.add_to(commands)
    return top


def _common(command: argparse.ArgumentParser, run: Any, port: int) -> None:
    command.add_argument("--port", type=_port, default=port, help=f"port to listen on ({port})")
    command.add_argument("--address", default="127.0.0.1", help="address to listen on (127.0.0.1; 0.0.0.0 for all)")
    command.set_defaults(run_command=run)


def _serve(options: argparse.Namespace) -> int:
    node = os.environ.get("STEPSCOPE_NODE") or socket.gethostname()
    addresses = [f"127.0.0.1:{options.base_port + rank}" for rank in range(options.ranks)]
    collectors: list[Any] = []
    if options.nvml:
        try:
            collectors.append(NvmlDevices(load_nvml(), hostname=node))
        except NvmlUnavailable as error:
            log.info("without GPU metrics: %s", error)
    if options.host_metrics or (options.host_metrics is None and not node_exporter_runs()):
        collectors.append(HostMetrics())
    endpoint = NodeEndpoint(addresses, collectors)
    _until_stopped(options, {"/metrics": endpoint.metrics, "/steps": endpoint.steps}, {"job": TRAINING_JOB}, node)
    return 0


def _referee(options: argparse.Namespace) -> int:
    peers = (lambda: options.targets) if options.targets else file_sd(options.sd_dir, options.run)
    if options.sd_dir and not options.sd_dir.is_dir():
        log.warning(
            "no folder %s: it is made now, and ranks must announce themselves there (STEPSCOPE_SD_DIR)", options.sd_dir
        )
    puller = Puller(peers, run=options.run, every_seconds=options.every)

    def metrics(query: Mapping[str, str]) -> Answer:
        return Answer(puller.text())

    puller.start()
    try:
        _until_stopped(options, {"/metrics": metrics}, {"job": "referee"}, f"referee-{options.run or 'run'}")
    finally:
        puller.close()
    return 0


def _until_stopped(
    options: argparse.Namespace, pages: Mapping[str, Route], labels: Mapping[str, str], name: str
) -> None:
    server = MetricsServer(pages, port=options.port, address=options.address, way_out="--port")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda signum, frame: stop.set())
    address = joined(public_host(options.address), server.port)
    entry = None
    if options.sd_dir:
        sweep(options.sd_dir)
        entry = SdEntry(options.sd_dir, f"{name}-{server.port}", address, labels)
        entry.write()
    sys.stderr.write(f"stepscope: http://{address}/metrics\n")
    while not stop.wait(HEARTBEAT_SECONDS):
        if entry:
            entry.touch()
    if entry:
        entry.remove()
    server.close()


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, such as {PULL_SECONDS:g}")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks on a node")
    return int(text)


def _targets(text: str) -> list[str]:
    targets = [target.strip() for target in text.split(",") if target.strip()]
    wrong = [target for target in targets if not target.rpartition(":")[2].isdecimal() or target.startswith(":")]
    if wrong or not targets:
        raise argparse.ArgumentTypeError(f"{text!r}: write host:port,host:port; {wrong[0] if wrong else 'none'} is not")
    return targets
