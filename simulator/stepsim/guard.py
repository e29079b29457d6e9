"""Keeps other web pages from triggering faults: changes need a header that only a preflighted request can carry, and
an origin, where the browser names one, that is exactly one of ours."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

ACTION_HEADERS = ("X-Grafana-Action", "X-Stepscope-Action")
OTHER_HEADERS = ("content-type", "x-grafana-device-id")
"""What Grafana's pages send beside it: Grafana 10 and later put the device's id on every request."""
CHANGES = ("POST", "PUT", "PATCH", "DELETE")


class Guard:
    """Refuses changes that come from a foreign origin, and those below the ``paths`` without an action header."""

    def __init__(self, app: ASGIApp, *, origins: Iterable[str], paths: tuple[str, ...]) -> None:
        self._app, self._origins, self._paths = app, frozenset(origins), paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal:
            await JSONResponse({"error": refusal}, status_code=403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        if scope["method"] not in CHANGES:
            return None
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins:
            return f"origin {origin} may not change anything; allowed are {', '.join(sorted(self._origins))}"
        if scope["path"].startswith(self._paths) and not any(name in headers for name in ACTION_HEADERS):
            return f"a change needs the header {' or '.join(ACTION_HEADERS)}, with any value"
        return None


def guarded(origins: Iterable[str], *paths: str) -> list[Middleware]:
    """The middlewares, outermost first: answers to preflights, then the guard."""
    origins = list(origins)
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=[*OTHER_HEADERS, *(name.lower() for name in ACTION_HEADERS)],
        ),
        Middleware(Guard, origins=origins, paths=paths),
    ]
