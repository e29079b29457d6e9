"""A practice seed to look at: all of its series in a Prometheus with its own page, until Ctrl-C."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from stepsim.practice.exact import EngineError
from stepsim.practice.preview import store_of
from stepsim.practice.preview.prometheus import ready, started
from stepsim.practice.scenario import Scenario
from stepsim.serving import listen

EVERYTHING = '{__name__=~".+"}'


@contextmanager
def explored(scenario: Scenario, data: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Raises ``EngineError``, and ``PortInUse``. Its time begins at 0, in 1970."""
    listen("127.0.0.1", port, way_out="--port").close()
    with store_of(scenario, data).opened([EVERYTHING]) as session:
        config = session.folder / "prometheus.yml"
        config.write_text("global: {}\n", encoding="utf-8")
        process = started(session.folder, config, port, "/", max(scenario.drill.scrape, scenario.drill.eval))
        try:
            if not ready(process, port, ""):
                raise EngineError(
                    f"Prometheus does not start: {(session.folder / 'prometheus.log').read_text()[-500:]}"
                )
            yield process
        finally:
            process.kill()
            process.wait()


def graph(scenario: Scenario, port: int, expr: str) -> str:
    """The address of a graph over the whole seed."""
    ends = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(scenario.seconds))
    shown = {"g0.expr": expr, "g0.tab": "0", "g0.range_input": f"{scenario.seconds:.0f}s", "g0.end_input": ends}
    return f"http://127.0.0.1:{port}/graph?{urlencode(shown)}"
