"""The lab's HTTP API: faults, metrics pages, service discovery, alerts received, and the console."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from stepscope.exposition import CONTENT_TYPE
from stepscope.metrics import Metric
from stepsim.alerts import AlertLog
from stepsim.board import ActiveFault, FaultError, UnknownFaultId
from stepsim.body import BadRequest, json_object
from stepsim.diagnoser import Diagnoser
from stepsim.guard import guarded
from stepsim.pages import metrics_path
from stepsim.practice.live.blind import Refused
from stepsim.practice.live.result import PRACTICE
from stepsim.practice.live.routes import PracticeRoutes
from stepsim.scenarios import possible, requests_of
from stepsim.shown import Shown, Watched
from stepsim.viewers import Viewers
from stepsim.web import no_page, other_method, web_routes


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
        links: Mapping[str, int],
    ) -> None:
        self._live, self._pages, self._clock = live, pages, clock
        self._alerts = AlertLog()
        self._practice = PracticeRoutes(live.practice, self._alerts, diagnoser)
        self._shown = Shown(live, self._alerts, self._practice, diagnoser, clock, blind=blind, links=links)
        self._viewers = Viewers(opening=self._shown.opening, state=self._shown.state, lap=self._shown.new_lap)

    def routes(self) -> list[Route]:
        return [
            *web_routes(),
            Route("/healthz", self.healthz),
            Route("/status", self.status),
            Route("/events", self.events),
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
            Route("/scenarios", self.list_scenarios, methods=["GET"]),
            Route("/scenarios", self.start_scenario, methods=["POST"]),
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
        report = self._shown.diagnosis()
        if report is None:
            error = {"error": self._shown.undiagnosed()}
            return JSONResponse(error, status_code=503 if self._shown.diagnoses else 404)
        return JSONResponse(report)

    def status(self, request: Request) -> Response:
        """What the console shows, without the laps."""
        return JSONResponse({**self._shown.state(), "trace": self._live.recent.trace()})

    async def events(self, request: Request) -> Response:
        """Server-sent events: ``opening`` once, ``state`` every second, ``lap`` whenever there is a new one."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._viewers.follow(), media_type="text/event-stream", headers=headers)

    def list_scenarios(self, request: Request) -> Response:
        return JSONResponse([scenario.to_dict() for scenario in possible(self._live.board.faults)])

    async def start_scenario(self, request: Request) -> Response:
        """Start all faults of a scenario, or none."""
        faults = await run_in_threadpool(self._start, requests_of(await json_object(request)))
        return JSONResponse([fault.to_dict() for fault in faults], status_code=201)

    def catalogue(self, request: Request) -> Response:
        return JSONResponse(self._live.catalogue())

    def list_faults(self, request: Request) -> Response:
        return JSONResponse(self._shown.faults())

    async def start_fault(self, request: Request) -> Response:
        (fault,) = await run_in_threadpool(self._start, [await json_object(request)])
        return JSONResponse(fault.to_dict(), status_code=201, headers={"location": f"/faults/{fault.id}"})

    def stop_fault(self, request: Request) -> Response:
        self._practice.refuse_by_hand()
        fault_id = request.path_params["fault_id"]
        try:
            self._live.board.stop(fault_id)
        except UnknownFaultId:
            return JSONResponse(
                {"error": f"no active fault has the id {fault_id!r}; {self._shown.there()}"}, status_code=404
            )
        return Response(status_code=204)

    def stop_all_faults(self, request: Request) -> Response:
        """By DELETE; by POST for dashboards, whose buttons know no other way to change anything."""
        self._practice.refuse_by_hand()
        self._live.board.stop_all()
        return Response(status_code=204)

    def _start(self, requests: Sequence[Mapping[str, Any]]) -> list[ActiveFault]:
        """A drill may have begun while the request was on its way."""
        self._practice.refuse_by_hand()
        return self._live.board.start_all(requests, self._clock())

    async def list_alerts(self, request: Request) -> Response:
        return JSONResponse({"firing": self._alerts.firing(), "received": self._alerts.received()})

    async def receive_alerts(self, request: Request) -> Response:
        """Alertmanager's webhook. JSON alone is taken: a foreign page cannot send that without asking first."""
        sent = request.headers.get("content-type", "")
        if sent.partition(";")[0].strip() != "application/json":
            was = f"it was {sent!r}" if sent else "there was none"
            return JSONResponse({"error": f"the content type must be application/json; {was}"}, status_code=415)
        notification = await json_object(request)
        try:
            count = self._alerts.add(notification, self._clock())
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=422)
        self._practice.hear(notification["alerts"])
        return JSONResponse({"alerts": count})

    async def runbook(self, request: Request) -> Response:
        """An alert's runbook, as it stands in docs/runbooks."""
        known = {file.stem: file for file in runbooks_folder().glob("*.md")}
        file = known.get(request.path_params["alert"])
        if file is None:
            return PlainTextResponse(f"no such runbook; there are: {' '.join(sorted(known))}\n", status_code=404)
        return PlainTextResponse(file.read_text(encoding="utf-8"), headers={"x-content-type-options": "nosniff"})


def runbooks_folder() -> Path:
    """In the installed package, or in the source tree."""
    installed = Path(__file__).parent / "runbooks"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "docs" / "runbooks"


def _answer(status: int) -> Callable[[Request, Exception], Response]:
    def handle(request: Request, error: Exception) -> Response:
        field = {"field": error.field} if isinstance(error, FaultError) else {}
        return JSONResponse({"error": str(error), **field}, status_code=status)

    return handle


def create_app(
    live: Watched,
    pages: Published,
    *,
    origins: Iterable[str],
    clock: Callable[[], float] = time.time,
    blind: bool = False,
    diagnoser: Diagnoser | None = None,
    links: Mapping[str, int] = MappingProxyType({}),
) -> Starlette:
    """The ASGI application. ``origins`` are the web origins, exactly, whose pages may change faults; ``links`` are the ports of
    the lab's other pages by name."""
    if live.practice:
        pages.add("practice", PRACTICE, live.practice)
    return Starlette(
        routes=Api(live, pages, clock, blind=blind, diagnoser=diagnoser, links=links).routes(),
        middleware=guarded(origins, "/faults", "/practice", "/scenarios"),
        exception_handlers={
            FaultError: _answer(422),
            BadRequest: _answer(400),
            Refused: _answer(409),
            404: no_page,
            405: other_method,
        },
    )
