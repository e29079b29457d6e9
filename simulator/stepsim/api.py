"""The lab's HTTP API: faults, metrics pages, service discovery, alerts received, and the console."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from stepscope.diagnosis.wording import with_texts
from stepscope.exposition import CONTENT_TYPE
from stepscope.metrics import Metric
from stepsim.alerts import AlertLog
from stepsim.board import Board, FaultError, UnknownFaultId
from stepsim.body import BadRequest, json_object
from stepsim.diagnoser import Diagnoser
from stepsim.guard import guarded
from stepsim.pages import metrics_path
from stepsim.practice.live.blind import Blind, Refused
from stepsim.practice.live.result import PRACTICE
from stepsim.practice.live.routes import PracticeRoutes
from stepsim.recent import Recent

NO_PROMETHEUS = "nothing is diagnosed: no Prometheus was given, by --prometheus or STEPSCOPE_PROMETHEUS"


class Watched(Protocol):
    """A job, simulated or real, as the API shows it."""

    @property
    def board(self) -> Board: ...
    @property
    def recent(self) -> Recent: ...
    @property
    def practice(self) -> Blind | None:
        """Blind drills, where the job can have them."""

    @property
    def failed(self) -> threading.Event:
        """Set when it died: the process ends then."""

    def describe(self) -> dict[str, Any]:
        """Run, nodes, ranks, accelerator and model."""

    def catalogue(self) -> dict[str, Any]:
        """The faults that it can have."""

    def start(self) -> None: ...
    def close(self) -> None: ...


class Published(Protocol):
    """The metrics pages of a job."""

    def names(self) -> list[tuple[str, str]]:
        """Source and node of every page served here."""

    def text(self, source: str, node: str = "") -> str:
        """Raises ``KeyError`` for a page that does not exist."""

    def targets(self, host: str) -> list[dict[str, Any]]:
        """For service discovery; ``host`` is the address that the caller reached us by."""

    def add(self, source: str, table: tuple[Metric, ...], read: Any) -> None:
        """A page of the lab's own, whose values are read from ``read``."""


class Api:
    """The routes, over one live job."""

    def __init__(
        self,
        live: Watched,
        pages: Published,
        clock: Callable[[], float],
        *,
        blind: bool,
        diagnoser: Diagnoser | None = None,
    ) -> None:
        self._live, self._pages, self._clock, self._blind = live, pages, clock, blind
        self._diagnoser = diagnoser
        self._alerts = AlertLog()
        self._practice = PracticeRoutes(live.practice, self._alerts, diagnoser)

    def routes(self) -> list[Route]:
        return [
            Route("/", self.console),
            Route("/console/{name}", self.console),
            Route("/healthz", self.healthz),
            Route("/status", self.status),
            Route("/diagnosis", self.diagnosis),
            Route("/sd", self.discovery),
            Route("/metrics/{source}", self.metrics),
            Route("/metrics/{source}/{node}", self.metrics),
            Route("/faults/catalogue", self.catalogue),
            Route("/faults", self.list_faults, methods=["GET"]),
            Route("/faults", self.start_fault, methods=["POST"]),
            Route("/faults", self.stop_all_faults, methods=["DELETE"]),
            Route("/faults/stop", self.stop_all_faults, methods=["POST"]),
            Route("/faults/{fault_id}", self.stop_fault, methods=["DELETE"]),
            Route("/runbooks/{alert}", self.runbook),
            Route("/alerts", self.list_alerts, methods=["GET"]),
            Route("/alerts", self.receive_alerts, methods=["POST"]),
            *self._practice.routes(),
        ]

    # Routes that are not coroutines run in a worker thread: rendering never holds up the event loop.

    def metrics(self, request: Request) -> Response:
        source, node = request.path_params["source"], request.path_params.get("node", "")
        try:
            text = self._pages.text(source, node)
        except KeyError:
            known = " ".join(metrics_path(*name) for name in self._pages.names())
            return PlainTextResponse(f"no such page; there are: {known}\n", status_code=404)
        return Response(text, media_type=None, headers={"content-type": CONTENT_TYPE})

    async def discovery(self, request: Request) -> Response:
        """Prometheus HTTP service discovery."""
        return JSONResponse(self._pages.targets(request.headers.get("host", request.url.netloc)))

    async def healthz(self, request: Request) -> Response:
        failed = self._live.failed.is_set()
        return JSONResponse({"status": "failed" if failed else "ok"}, status_code=503 if failed else 200)

    def diagnosis(self, request: Request) -> Response:
        """What ``stepscope diagnose --json`` prints, with the numbers as text beside; 503 while there is nothing to say."""
        report = self._diagnosis()
        if report is None:
            return JSONResponse({"error": self._undiagnosed()}, status_code=503 if self._diagnoser else 404)
        return JSONResponse(report)

    def status(self, request: Request) -> Response:
        diagnosis = self._diagnosis()
        return JSONResponse(
            {
                "job": self._live.describe(),
                **self._live.recent.report(),
                "trace": self._live.recent.trace(),
                "diagnosis": diagnosis,
                "undiagnosed": None if diagnosis else self._undiagnosed(),
                "faults": self._visible_faults(),
                "practice": self._practice.state(),
                "alerts": self._alerts.firing(),
            }
        )

    def catalogue(self, request: Request) -> Response:
        return JSONResponse(self._live.catalogue())

    def list_faults(self, request: Request) -> Response:
        return JSONResponse(self._visible_faults())

    async def start_fault(self, request: Request) -> Response:
        self._practice.refuse_by_hand()
        fault = await run_in_threadpool(self._live.board.start, await json_object(request), self._clock())
        return JSONResponse(fault.to_dict(), status_code=201, headers={"location": f"/faults/{fault.id}"})

    def stop_fault(self, request: Request) -> Response:
        self._practice.refuse_by_hand()
        self._live.board.stop(request.path_params["fault_id"])
        return Response(status_code=204)

    def stop_all_faults(self, request: Request) -> Response:
        """By DELETE; by POST for dashboards, whose buttons know no other way to change anything."""
        self._practice.refuse_by_hand()
        self._live.board.stop_all()
        return Response(status_code=204)

    async def list_alerts(self, request: Request) -> Response:
        return JSONResponse({"firing": self._alerts.firing(), "received": self._alerts.received()})

    async def receive_alerts(self, request: Request) -> Response:
        """Alertmanager's webhook. JSON alone is taken: a foreign page cannot send that without asking first."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return JSONResponse({"error": "send application/json"}, status_code=415)
        notification = await json_object(request)
        try:
            count = self._alerts.add(notification, self._clock())
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=422)
        self._practice.hear(notification["alerts"])
        return JSONResponse({"alerts": count})

    async def console(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in _CONSOLE_TYPES:
            return PlainTextResponse("no such page\n", status_code=404)
        content = files("stepsim").joinpath("console", name).read_text(encoding="utf-8")
        return Response(content, media_type=_CONSOLE_TYPES[name], headers=_CONSOLE_HEADERS)

    async def runbook(self, request: Request) -> Response:
        """An alert's runbook, as it stands in docs/runbooks."""
        known = {file.stem: file for file in runbooks_folder().glob("*.md")}
        file = known.get(request.path_params["alert"])
        if file is None:
            return PlainTextResponse(f"no such runbook; there are: {' '.join(sorted(known))}\n", status_code=404)
        return PlainTextResponse(file.read_text(encoding="utf-8"), headers={"x-content-type-options": "nosniff"})

    def _diagnosis(self) -> dict[str, Any] | None:
        report = self._diagnoser.report() if self._diagnoser else None
        return with_texts(report) if report else None

    def _undiagnosed(self) -> str:
        """Why there is no diagnosis."""
        return self._diagnoser.trouble() if self._diagnoser else NO_PROMETHEUS

    def _visible_faults(self) -> list[dict[str, Any]]:
        return [] if self._blind else [fault.to_dict() for fault in self._live.board.told()]


_CONSOLE_TYPES = {
    "index.html": "text/html",
    "console.js": "text/javascript",
    "diagnosis.js": "text/javascript",
    "practice.js": "text/javascript",
    "console.css": "text/css",
}
_CONSOLE_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


def runbooks_folder() -> Path:
    """In the installed package, or in the source tree."""
    installed = Path(__file__).parent / "runbooks"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "docs" / "runbooks"


def _answer(status: int) -> Callable[[Request, Exception], Response]:
    def handle(request: Request, error: Exception) -> Response:
        field = {"field": error.field} if isinstance(error, FaultError) else {}
        return JSONResponse({"error": str(error), **field}, status_code=status)

    return handle


def _unknown_id(request: Request, error: Exception) -> Response:
    return JSONResponse(
        {"error": f"no active fault has the id {error.args[0]!r}; list the active ones first"}, status_code=404
    )


def create_app(
    live: Watched,
    pages: Published,
    *,
    origins: Iterable[str],
    clock: Callable[[], float] = time.time,
    blind: bool = False,
    diagnoser: Diagnoser | None = None,
) -> Starlette:
    """The ASGI application. ``origins`` are the web origins, exactly, whose pages may change faults."""
    if live.practice:
        pages.add("practice", PRACTICE, live.practice)
    return Starlette(
        routes=Api(live, pages, clock, blind=blind, diagnoser=diagnoser).routes(),
        middleware=guarded(origins, "/faults", "/practice"),
        exception_handlers={
            FaultError: _answer(422),
            BadRequest: _answer(400),
            Refused: _answer(409),
            UnknownFaultId: _unknown_id,
        },
    )
