"""One endpoint for a whole node: the pages of its local ranks as one, and the node's GPUs and host beside them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from stepscope.collectors import Collector, Collectors
from stepscope.exposition import Page
from stepscope.metrics import Metric
from stepscope.peers import fetch
from stepscope.server import JSON, Answer

log = logging.getLogger("stepscope")

NODE: tuple[Metric, ...] = (
    Metric(
        name="stepscope_rank_up", kind="gauge", scope="run", labels=("port",),
        help="1 if the local rank that listens on this port answered, else 0.",
        values=lambda answers: [((address.rpartition(":")[2],), [int(page is not None)]) for address, page in answers],
    ),
)  # fmt: skip
"""Read from (address, page or None) of each local rank."""

_PAGE = Page(NODE, {"run": [{}]})


class NodeEndpoint:
    """Serves what the local ranks at ``addresses`` serve. A rank that does not answer is absent, and said to be down."""

    def __init__(self, addresses: Sequence[str], collectors: Sequence[Collector] = ()) -> None:
        self._addresses = addresses
        self._collectors = Collectors(collectors)
        self._pool = ThreadPoolExecutor(max(1, len(addresses)), thread_name_prefix="stepscope-node")

    def metrics(self, query: Mapping[str, str]) -> Answer:
        answers = list(zip(self._addresses, self._pool.map(_page, self._addresses), strict=True))
        pages = [page for _, page in answers if page is not None]
        return Answer(merge([*pages, _PAGE.text(answers), self._collectors.text()]))

    def steps(self, query: Mapping[str, str]) -> Answer:
        """A list of the ranks' own documents."""
        suffix = "&".join(f"{name}={value}" for name, value in query.items() if value.lstrip("-").isdecimal())
        paths = [(address, f"/steps?{suffix}") for address in self._addresses]
        found = [page for page in self._pool.map(lambda ask: _page(*ask), paths) if page is not None]
        return Answer(f"[{','.join(found)}]", JSON)


def _page(address: str, path: str = "/metrics") -> str | None:
    """None from a rank that does not answer, and from another program on its port."""
    try:
        page = fetch(address, path).decode()
        return merge([page]) if path == "/metrics" else page
    except (OSError, ValueError):
        return None


@dataclass(slots=True)
class _Family:
    head: list[str] = field(default_factory=list)
    kind: str = "gauge"
    samples: dict[str, str] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Ranks share the series of their node and run: counts of the node add up, of a gauge the largest stands."""
        name, _, value = line.rpartition(" ")
        there = self.samples.get(name)
        if there is None:
            self.samples[name] = value
        elif self.kind == "gauge":
            self.samples[name] = max(there, value, key=float)
        else:
            self.samples[name] = _sum(there, value)


def _sum(a: str, b: str) -> str:
    """Whole counts stay whole."""
    return repr(float(a) + float(b)) if "." in a + b or "e" in a + b else str(int(a) + int(b))


def merge(pages: Iterable[str]) -> str:
    """Several Prometheus pages as one: each family once, each series once."""
    families: dict[str, _Family] = {}
    for page in pages:
        family = _Family()
        for line in page.splitlines():
            if line.startswith("#"):
                _, keyword, name, rest = line.split(" ", 3)  # raises ValueError for what we would not write
                family = families.setdefault(name, _Family())
                if keyword == "TYPE":
                    family.kind = rest
                if line not in family.head:
                    family.head.append(line)
            elif line:
                float(line.rpartition(" ")[2])
                family.add(line)
    lines = (
        line
        for family in families.values()
        for line in [*family.head, *(f"{name} {value}" for name, value in family.samples.items())]
    )
    return "\n".join(lines) + "\n" if families else ""
