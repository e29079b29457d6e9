"""The pages: console and calculators, and the files that they load. Nothing in them comes from anywhere else.

To add a page: put it into ``console/``, and add a row to ``PAGES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Match, Route

from stepsim.accelerators import ACCELERATORS
from stepsim.planner.answer import predict_from
from stepsim.planner.examples import EXAMPLES
from stepsim.planner.models import MODELS
from stepsim.planner.request import PlanError
from stepsim.straggler import Straggler, StragglerError, solve
from stepsim.straggler.page import page_of

FOLDER = Path(__file__).resolve().parent / "console"
PAGES = {"/": "index.html", "/straggler": "straggler.html", "/plan": "plan.html"}
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain",
}
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

Calculator = Callable[[Mapping[str, str]], Any]
"""From a page's address to what it shows; raises ``ValueError`` with what was wrong."""


def _straggler(query: Mapping[str, str]) -> dict[str, Any]:
    return page_of(solve(Straggler.of(query)))


def _plan(query: Mapping[str, str]) -> dict[str, Any]:
    answer = predict_from({name: value for name, value in query.items() if value})
    return {
        "question": answer["request"],
        **answer,
        "options": {"model": list(MODELS), "accelerator": list(ACCELERATORS)},
        "experiments": [{"name": one.name, "notice": one.notice, "question": dict(one.given)} for one in EXAMPLES],
    }


CALCULATORS: dict[str, tuple[Calculator, type[ValueError]]] = {
    "/straggler.json": (_straggler, StragglerError),
    "/plan.json": (_plan, PlanError),
}
"""What each page's numbers come from: the page's own query, answered in JSON."""


def web_routes() -> list[Route]:
    """Routes that read and change nothing."""
    return [
        *(Route(path, _file(name)) for path, name in PAGES.items()),
        *(Route(path, _calculator(*calculator)) for path, calculator in CALCULATORS.items()),
        Route("/console/{name:path}", _asset),
    ]


def no_page(request: Request, error: Exception) -> Response:
    """Of an address that no route has."""
    return JSONResponse(
        {"error": f"there is no {request.url.path}; docs/http-api.md lists all routes"}, status_code=404
    )


def other_method(request: Request, error: Exception) -> Response:
    """Of a route that is there, but does not take the request's method."""
    routes = [one for one in request.app.routes if one.matches(request.scope)[0] != Match.NONE]
    allowed = ", ".join(sorted({method for one in routes for method in one.methods}))
    said = f"{request.url.path} does not take {request.method}; it takes {allowed}"
    return JSONResponse({"error": said}, status_code=405, headers={"allow": allowed})


def _file(name: str) -> Callable[[Request], Response]:
    def page(request: Request) -> Response:
        return _served(name)

    return page


def _asset(request: Request) -> Response:
    return _served(request.path_params["name"])


def _served(name: str) -> Response:
    file = (FOLDER / name).resolve()
    if not (file.is_relative_to(FOLDER) and file.suffix in TYPES and file.is_file()):
        return PlainTextResponse(f"no such page; there are: {' '.join(PAGES)}\n", status_code=404)
    return Response(file.read_text(encoding="utf-8"), media_type=TYPES[file.suffix], headers=HEADERS)


def _calculator(answer: Calculator, refused: type[ValueError]) -> Callable[[Request], Response]:
    def calculate(request: Request) -> Response:
        try:
            return JSONResponse(answer(request.query_params))
        except refused as error:
            return JSONResponse({"error": str(error)}, status_code=422)

    return calculate
