"""Where a diagnosis reads its numbers: the HTTP API of Prometheus, or of anything that speaks it."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

Vector: TypeAlias = list[tuple[dict[str, str], float]]
Matrix: TypeAlias = list[tuple[dict[str, str], list[tuple[float, float]]]]

TIMEOUT_SECONDS = 10.0
LARGEST_ANSWER_BYTES = 64 << 20
LARGEST_ERROR_BYTES = 64 << 10
LONGEST_ERROR_CHARACTERS = 300
RUNS_QUERY = "count by (run) (training_steps_total)"
WAY_OUT = "Name the right one with --prometheus or STEPSCOPE_PROMETHEUS, such as http://127.0.0.1:9090"
NEXT_STEPS = {
    401: " It wants credentials: put them into its address, as in https://user:password@host/.",
    403: " It refuses these credentials.",
    404: f" Is it a Prometheus, and is the path right? {WAY_OUT}.",
    503: " It is starting, or overloaded: try again in a moment.",
}
"""What an answer's status tells beyond its own words."""


class SourceError(RuntimeError):
    """The source does not answer, or refuses a query; says what to do."""


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """An alert as Prometheus evaluates it."""

    name: str
    expr: str
    for_seconds: float
    keep_seconds: float
    """Of ``keep_firing_for``."""
    interval: float
    """Seconds between two evaluations."""
    labels: Mapping[str, str]

    @property
    def cause(self) -> str:
        return self.labels.get("cause", "")

    @property
    def exhibit(self) -> bool:
        """Kept to show what it misses, or written for practice: nothing to judge by."""
        return "exhibit" in self.labels or "practice" in self.labels


class Source(Protocol):
    def rules(self) -> list[AlertRule]:
        """All alerts that are evaluated. Raises ``SourceError``."""

    def query_range(self, expr: str, start: float, end: float, step: float) -> Matrix:
        """Labels of each series, with time and value at each step. Raises ``SourceError``."""

    def query(self, expr: str, at: float) -> Vector:
        """An instant query: labels and value of each element of the vector. Raises ``SourceError``."""


class Prometheus:
    """A Prometheus at a URL, which may have a path (``http://host/prom/``) and credentials. Safe to use from threads."""

    def __init__(self, url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Raises ``SourceError`` for what is no URL."""
        parts = _split(url)
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        """Without credentials: it may be shown."""
        self._timeout_seconds = timeout_seconds
        self._headers = {"Accept": "application/json", **_authorization(parts)}
        # A proxy is for the world outside: it would look for the loopback on a machine of its own.
        local = [urllib.request.ProxyHandler({})] if parts.hostname in ("localhost", "127.0.0.1", "::1") else []
        self._open = urllib.request.build_opener(*local).open

    def query(self, expr: str, at: float) -> Vector:
        """An instant query. Values that are no finite numbers are kept as such. Raises ``SourceError``."""
        found = self._data(self._ask("query", {"query": expr, "time": f"{at:.3f}"}))
        try:
            return _vector(found)
        except (KeyError, TypeError, ValueError):
            raise SourceError(f"{self.url} answered the query {expr} with no vector of numbers") from None

    def query_range(self, expr: str, start: float, end: float, step: float) -> Matrix:
        """Labels of each series, with time and value at each step. Raises ``SourceError``."""
        form = {"query": expr, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        found = self._data(self._ask("query_range", form))
        try:
            return [(dict(one["metric"]), [(float(moment), float(value)) for moment, value in one["values"]])
                    for one in found["result"]]  # fmt: skip
        except (KeyError, TypeError, ValueError):
            raise SourceError(f"{self.url} answered the query {expr} with no matrix of numbers") from None

    def rules(self) -> list[AlertRule]:
        """All alerts that it evaluates. Raises ``SourceError``."""
        found = self._data(self._ask("rules?type=alert"))
        try:
            return [_alert(rule, float(group["interval"])) for group in found["groups"] for rule in group["rules"]]
        except (KeyError, TypeError, ValueError):
            raise SourceError(f"{self.url} answered with no list of alert rules. {WAY_OUT}.") from None

    def runs(self, at: float) -> list[str]:
        """The names of the runs that report at that moment. Raises ``SourceError``."""
        return sorted({labels["run"] for labels, _ in self.query(RUNS_QUERY, at) if labels.get("run")})

    def _ask(self, what: str, form: Mapping[str, str] | None = None) -> bytes:
        """By POST where there is a form, as queries can be longer than an address may be."""
        expr = (form or {}).get("query", what)
        body = urlencode(form).encode() if form else None
        request = urllib.request.Request(f"{self.url}/api/v1/{what}", data=body, headers=self._headers)
        try:
            with self._open(request, timeout=self._timeout_seconds) as answer:
                found: bytes = answer.read(LARGEST_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error, expr)
        except (OSError, http.client.HTTPException) as error:
            raise SourceError(f"no Prometheus answers at {self.url}: {_reason(error)}. {WAY_OUT}.") from None
        if len(found) > LARGEST_ANSWER_BYTES:
            raise SourceError(f"{self.url} answers with more than {LARGEST_ANSWER_BYTES >> 20} MiB to {expr}")
        return found

    def _data(self, body: bytes) -> Any:
        """An answer's result. Warnings beside it are left alone: it is as good as the source has it."""
        try:
            answer = json.loads(body)
            if answer["status"] == "success":
                return answer["data"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SourceError(f"{self.url} answers, but not as Prometheus does. {WAY_OUT}.") from None
        raise SourceError(f"{self.url} refuses: {_words(answer)}")

    def _refused(self, error: urllib.error.HTTPError, expr: str) -> NoReturn:
        said = _own_words(error)
        asked = f"; the query was: {expr}" if error.code in (400, 422) else ""
        raise SourceError(
            f"{self.url} answered HTTP {error.code}: {said}{asked}.{NEXT_STEPS.get(error.code, '')}"
        ) from None


def _split(url: str) -> SplitResult:
    wanted = url.strip()
    try:
        parts = urlsplit(wanted if "://" in wanted else f"http://{wanted}")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0  # a bad port raises
    except ValueError:
        usable = False
    if not usable:
        raise SourceError(f"{_without_credentials(wanted)!r} is no address of a Prometheus. {WAY_OUT}")
    return parts


def _without_credentials(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://…@{tail}" if at else url


def _authorization(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _vector(data: Any) -> Vector:
    """Of a scalar, the one value without labels. Raises what a wrong shape raises."""
    if data["resultType"] == "scalar":
        return [({}, float(data["result"][1]))]
    if data["resultType"] != "vector":
        raise ValueError(data["resultType"])
    return [(dict(one["metric"]), float(one["value"][1])) for one in data["result"]]


def _alert(rule: Mapping[str, Any], interval: float) -> AlertRule:
    return AlertRule(
        name=rule["name"], expr=rule["query"], for_seconds=float(rule["duration"]),
        keep_seconds=float(rule.get("keepFiringFor", 0)), interval=interval or 5.0, labels=dict(rule["labels"]),
    )  # fmt: skip


def _words(answer: Any) -> str:
    """Prometheus's own: kind of error, and text."""
    said = f"{answer.get('errorType', 'error')}: {answer.get('error', 'without a reason')}"
    return said[:LONGEST_ERROR_CHARACTERS]


def _own_words(error: urllib.error.HTTPError) -> str:
    """What the body of an error answer says, where it is Prometheus's; else what the status is called."""
    try:
        answer = json.loads(error.read(LARGEST_ERROR_BYTES))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return str(error.reason)
    return _words(answer) if isinstance(answer, dict) and "error" in answer else str(error.reason)


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", error)
    if isinstance(inner, TimeoutError):
        return "it takes too long"
    return str(getattr(inner, "strerror", None) or inner or repr(inner))
