"""The routes of blind drills; a change needs the action header, as a fault does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stepsim.alerts import AlertLog
from stepsim.body import json_object
from stepsim.diagnoser import Diagnoser
from stepsim.practice.live.blind import Blind, Refused
from stepsim.practice.live.rules import LOADED

UNREVEALED = "no blind drill has been revealed yet"
NOT_HERE = "blind drills need the simulator: a real job's ranks ask /faults what they suffer from"


class PracticeRoutes:
    """``drills`` is None where the job can have none."""

    def __init__(self, drills: Blind | None, alerts: AlertLog, diagnoser: Diagnoser | None) -> None:
        self._drills, self._alerts, self._diagnoser = drills, alerts, diagnoser

    def routes(self) -> list[Route]:
        return [
            Route("/practice", self.show, methods=["GET"]),
            Route("/practice", self.start, methods=["POST"]),
            Route("/practice/reveal", self.reveal, methods=["POST"]),
            Route("/practice/result", self.result),
        ]

    async def show(self, request: Request) -> Response:
        """Whether a drill is on; not what happens in it."""
        return JSONResponse(self.state())

    async def start(self, request: Request) -> Response:
        drills, body = self._there(), await json_object(request)
        return JSONResponse(await run_in_threadpool(drills.start, body, self._alerts.firing()), status_code=201)

    def reveal(self, request: Request) -> Response:
        """Ends the drill, too, if it is not over."""
        return JSONResponse(self._there().reveal(self._own_rules_loaded).to_dict())

    async def result(self, request: Request) -> Response:
        """Of the last drill that was revealed."""
        result = self._drills.result if self._drills else None
        if result is None:
            return JSONResponse({"error": UNREVEALED if self._drills else NOT_HERE}, status_code=404)
        return JSONResponse(result.to_dict())

    def state(self) -> dict[str, Any]:
        """What ``GET /practice`` answers."""
        return (
            self._drills.state()
            if self._drills
            else {"state": "impossible", "running": False, "revealed": False, "note": NOT_HERE}
        )

    def hear(self, alerts: Iterable[Mapping[str, Any]]) -> None:
        """What Alertmanager sends."""
        if self._drills:
            self._drills.hear(alerts)

    def refuse_by_hand(self) -> None:
        """Raises ``Refused`` while a drill is on: nobody else may start or stop a fault."""
        if self._drills:
            self._drills.refuse_by_hand()

    def _there(self) -> Blind:
        if self._drills is None:
            raise Refused(NOT_HERE)
        return self._drills

    def _own_rules_loaded(self, seconds: float) -> bool:
        query = f"max_over_time({LOADED}[{max(1, round(seconds))}s])"
        return self._diagnoser is not None and bool(self._diagnoser.largest(query))
