"""A small HTTP server for metrics, in a thread of its own: a slow or hanging scraper costs a thread, nothing else."""

from __future__ import annotations

import errno
import gzip
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from stepscope.exposition import CONTENT_TYPE

log = logging.getLogger("stepscope")

CLIENT_TIMEOUT_SECONDS = 10.0
"""How long a client may take over its request, or over reading a part of the answer."""
MAX_CLIENTS = 64
"""Connections held at once; further ones are closed."""


JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    body: str
    content_type: str = CONTENT_TYPE


Route: TypeAlias = Callable[[Mapping[str, str]], Answer]
"""Takes the query's parameters. A ``BadQuery`` that it raises is the client's fault."""


class BadQuery(ValueError):
    """A parameter that the page cannot use; the message says what would be right."""


class PortInUse(OSError):
    """The address is taken, or may not be bound."""


class MetricsServer:
    """Serves ``pages`` by path until closed. Port 0 takes a free one."""

    def __init__(
        self,
        pages: Mapping[str, Route],
        *,
        port: int,
        address: str = "127.0.0.1",
        way_out: str = "STEPSCOPE_METRICS_PORT",
    ) -> None:
        """``way_out`` is where another port is chosen. Raises ``PortInUse``."""
        try:
            self._http = _Server((address, port), _handler(pages))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            hint = (
                f"Choose another port ({way_out})."
                if taken
                else "Is it an address of this machine, and a port for you?"
            )
            raise PortInUse(f"cannot listen on {address}:{port}: {error.strerror}. {hint}") from error
        _close_in_children(self._http)
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, name="stepscope-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _close_in_children(server: ThreadingHTTPServer) -> None:
    """A forked loader worker that outlives us must not keep the port."""
    ours = weakref.ref(server.socket)

    def close() -> None:
        if (listening := ours()) is not None:
            listening.close()

    os.register_at_fork(after_in_child=close)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.slots = threading.BoundedSemaphore(MAX_CLIENTS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """``::`` means all interfaces, those of IPv4 among them."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection, or close it when there are too many: silent ones count, too."""
        if not self.slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self.slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is its own affair: no traceback in the training log."""


def _handler(pages: Mapping[str, Route]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_TIMEOUT_SECONDS

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            page = pages.get(path)
            if page is None:
                self._say(HTTPStatus.NOT_FOUND, f"no such page; there is: {' '.join(pages)}")
                return
            try:
                answer = page(dict(parse_qsl(query)))
            except BadQuery as error:
                self._say(HTTPStatus.BAD_REQUEST, str(error))
            except Exception:
                log.exception("the page %s cannot be written", self.path)
                self._say(HTTPStatus.INTERNAL_SERVER_ERROR, "this page cannot be written; see the log")
            else:
                self._answer(HTTPStatus.OK, answer.body.encode(), answer.content_type)

        def _say(self, status: HTTPStatus, message: str) -> None:
            self._answer(status, f"{message}\n".encode(), "text/plain; charset=utf-8")

        def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
            self.send_response(status)
            if len(body) > 1024 and "gzip" in self.headers.get("Accept-Encoding", ""):
                body = gzip.compress(body, compresslevel=1)
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not news."""

    return Handler
