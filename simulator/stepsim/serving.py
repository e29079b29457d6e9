"""Serves a job, simulated or real, over HTTP until it is told to stop."""

from __future__ import annotations

import errno
import signal
import socket
import threading
from collections.abc import Mapping

import uvicorn

from stepscope.server import PortInUse
from stepsim.api import Published, create_app
from stepsim.diagnoser import Diagnoser
from stepsim.shown import Watched


def listen(host: str, port: int, way_out: str = "STEPSCOPE_PORT") -> socket.socket:
    """A listening socket. Raises ``PortInUse`` with the way out."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        hint = f"Stop what uses it, or set {way_out} to a free port." if taken else "Is it an address of this machine?"
        raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror}. {hint}") from error
    listener.listen(256)
    return listener


def free_port() -> int:
    """A port of the loopback that nobody uses at this moment."""
    with listen("127.0.0.1", 0) as taken:
        port: int = taken.getsockname()[1]
    return port


def web_origins(*ports: int, extra: tuple[str, ...] = ()) -> list[str]:
    """The origins of pages served on this machine's loopback at those ports, and further ones."""
    return [f"http://{host}:{port}" for port in ports for host in ("127.0.0.1", "localhost")] + list(extra)


class LinkError(ValueError):
    """Links that are not written as they should be."""


def parse_links(text: str) -> dict[str, int]:
    """``Grafana=3000,Prometheus=9090``: ports of this machine by name. Raises ``LinkError``."""
    pairs = [pair.strip().partition("=") for pair in text.split(",") if pair.strip()]
    wrong = [
        name for name, _, port in pairs if not (name and port.isascii() and port.isdigit() and 0 < int(port) < 65536)
    ]
    if wrong:
        raise LinkError(f"links are written like Grafana=3000,Prometheus=9090, and not {text!r}")
    return {name: int(port) for name, _, port in pairs}


def serve(
    live: Watched,
    pages: Published,
    listener: socket.socket,
    *,
    origins: list[str],
    blind: bool = False,
    diagnoser: Diagnoser | None = None,
    links: Mapping[str, int],
) -> bool:
    """Run until SIGINT or SIGTERM. False when the job failed. ``links``: as for ``create_app``."""
    app = create_app(live, pages, origins=origins, blind=blind, diagnoser=diagnoser, links=links)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, lifespan="off")
    server = uvicorn.Server(config)
    threading.Thread(target=_stop_when_failed, args=(live, server), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _already_handled)
    lasting: list[Watched | Diagnoser] = [live, *([diagnoser] if diagnoser else [])]
    for one in lasting:
        one.start()
    try:
        server.run(sockets=[listener])
    finally:
        for one in reversed(lasting):
            one.close()
    return not live.failed.is_set()


def _already_handled(signum: int, frame: object) -> None:
    """uvicorn stops at a signal, and then raises it once more: that one would kill the process."""


def _stop_when_failed(live: Watched, server: uvicorn.Server) -> None:
    live.failed.wait()
    server.should_exit = True
