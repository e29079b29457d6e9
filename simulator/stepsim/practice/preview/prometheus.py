"""A Prometheus on the loopback over a folder of blocks, for as long as it is asked, and promtool, which makes such blocks.

Time begins at 0, as in a recording.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import secrets
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

from stepsim.practice.exact import EngineError
from stepsim.serving import free_port

Metric: TypeAlias = Mapping[str, str]
Points: TypeAlias = list[tuple[float, str]]
"""Moments, and values as Prometheus writes them."""
Answers: TypeAlias = Iterator[list[tuple[Metric, Points]]]
"""Of one span after the other, what each series was."""

MOST_POINTS = 2000
"""Of one answer: what Prometheus and this process hold at a time stays bounded, and below its limit of 11,000."""
LONGEST_BLOCK = "50000h"
"""promtool reads its input once per block. It takes Go's durations, which know no years."""
READY_SECONDS, CONNECT_SECONDS, POLL_SECONDS, ANSWER_SECONDS = 30.0, 1.0, 0.01, 150.0
STARTS = 3
"""A port that was free may be taken a moment later."""
OFF_THE_GRID = re.compile(r"\boffset\b|@|\[[^\]]*:[^\]]*\]")
"""What looks at other moments than those of evaluations."""


class QueryError(Exception):
    """An expression that cannot be evaluated, in Prometheus's words."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """When rules are evaluated."""

    every: float
    scrape: float
    last: float

    @property
    def count(self) -> int:
        """As many evaluations as the exact engine makes."""
        return math.ceil(self.last / self.every + 0.5)

    def lookback_of(self, expr: str, recorded: bool) -> float:
        """How long a sample counts, less a millisecond: until the next one is due. That is as good as a staleness marker, of
        which blocks made by promtool have none. Recorded series have a sample per evaluation, which matters to what looks
        at moments in between."""
        return max(self.scrape, self.every) if recorded and OFF_THE_GRID.search(expr) else self.scrape


@dataclass(frozen=True, kw_only=True)
class Prometheus:
    """One that runs."""

    connection: http.client.HTTPConnection
    prefix: str
    clock: Clock

    def values(self, expr: str) -> Answers:
        """What an expression gives at every evaluation. Raises ``QueryError``."""
        for first in range(0, self.clock.count, MOST_POINTS):
            last = min(first + MOST_POINTS, self.clock.count) - 1
            span = {"start": first * self.clock.every, "end": last * self.clock.every, "step": self.clock.every}
            yield [(one["metric"], one["values"]) for one in self._asked({"query": expr, **span})["result"]]

    def _asked(self, form: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            self.connection.request("POST", f"{self.prefix}/api/v1/query_range", urlencode(form), headers)
            answer = self.connection.getresponse()
            told = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineError(f"Prometheus gave no answer to {form['query']}: {error!r}") from None
        if told["status"] == "success":
            return told["data"]
        if told["errorType"] in ("bad_data", "execution"):
            raise QueryError(told["error"])
        raise EngineError(f"Prometheus gave no answer to {form['query']}: {told['error']}")


@contextmanager
def prometheus_over(folder: Path, clock: Clock, lookback: float) -> Iterator[Prometheus]:
    """Over the blocks of a folder, into which it may write. It is ended at the end. Raises ``EngineError``."""
    config = folder / "prometheus.yml"
    config.write_text(f"global: {{evaluation_interval: {_milliseconds(clock.every)}}}\n", encoding="utf-8")
    for attempt in range(1, STARTS + 1):
        port, prefix = free_port(), f"/{secrets.token_hex(8)}"  # nobody else's answers are taken for its own
        process = started(folder, config, port, prefix, lookback)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
        try:
            if ready(process, port, prefix):
                yield Prometheus(connection=connection, prefix=prefix, clock=clock)
                return
            said = (folder / "prometheus.log").read_text(encoding="utf-8").strip()[-500:]
        finally:
            connection.close()
            process.kill()  # what it has written is not kept
            process.wait()
        if "address already in use" not in said or attempt == STARTS:
            raise EngineError(f"Prometheus does not start for the preview: {said}")


def started(folder: Path, config: Path, port: int, prefix: str, lookback: float) -> subprocess.Popen[bytes]:
    """A Prometheus of one's own to end; its words go to a file in the folder. Raises ``EngineError`` without one."""
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}", "--storage.tsdb.retention.time=100y",
        f"--query.lookback-delta={1000 * lookback - 1:.0f}ms", f"--web.listen-address=127.0.0.1:{port}",
        f"--web.route-prefix={prefix}", "--log.level=error",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        try:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        except FileNotFoundError:
            raise _missing("prometheus") from None


def ready(process: subprocess.Popen[bytes], port: int, prefix: str) -> bool:
    """Whether it has come to answer."""
    deadline = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CONNECT_SECONDS)
        try:
            connection.request("GET", f"{prefix}/-/ready")
            if connection.getresponse().status == http.client.OK:
                return True
        except (OSError, http.client.HTTPException):
            pass  # not yet, or never: the process tells
        finally:
            connection.close()
        time.sleep(POLL_SECONDS)
    return False


def make_blocks(lines: Iterable[str], folder: Path) -> list[Path]:
    """Blocks of samples in the OpenMetrics format, made in a folder where nothing is yet; none of no samples. Raises
    ``EngineError``."""
    folder.mkdir()
    text = folder / "samples.om"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        empty = not file.tell()
        file.write("# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", f"--max-block-duration={LONGEST_BLOCK}", "openmetrics"]
    if not empty:
        try:
            done = subprocess.run([*command, str(text), str(folder)], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise _missing("promtool") from None
        if done.returncode:
            raise EngineError(f"promtool cannot load the recording: {(done.stderr or done.stdout).strip()[-500:]}")
    text.unlink()
    return [meta.parent for meta in sorted(folder.glob("*/meta.json"))]


def sample_lines(metric: Metric, points: Points) -> str:
    """Of one series."""
    labels = ",".join(f"{name}={_quoted(value)}" for name, value in metric.items() if name != "__name__")
    key = f"{metric['__name__']}{{{labels}}}"
    return "".join(f"{key} {value} {moment}\n" for moment, value in points)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'"{escaped}"'


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}ms"


def _missing(program: str) -> EngineError:
    return EngineError(f"{program} is not on the PATH; it comes with Prometheus (Debian: apt-get install prometheus)")
