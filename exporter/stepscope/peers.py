"""Pulls the step records of all ranks over HTTP, and keeps the verdicts on them: the referee as a thread or a process."""

from __future__ import annotations

import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from stepscope.alignment import Alignment, MalformedSteps, Steps, parse_steps
from stepscope.discovery import RUN_LABEL, TRAINING_JOB, entries
from stepscope.exposition import Page, Series
from stepscope.metrics import REFEREE
from stepscope.referee import Referee

log = logging.getLogger("stepscope")

PULL_SECONDS = 2.0
TIMEOUT_SECONDS = 2.0
LARGEST_PAUSE_SECONDS = 20.0
"""Between two attempts at a rank that does not answer."""
CLOSE_SECONDS = 3.0
WORKERS = 8
LARGEST_ANSWER_BYTES = 64 << 20

Peers: TypeAlias = Callable[[], Iterable[str]]
"""The addresses (host:port) to pull from, as they are known at this moment."""


def file_sd(folder: Path, run: str | None = None) -> Peers:
    """The ranks and nodes in a discovery folder, of one run or of all. A node's endpoint names no run."""

    def peers() -> list[str]:
        found = entries(folder)
        return [
            target
            for target, labels in found
            if labels.get("job") == TRAINING_JOB and run in (None, labels.get(RUN_LABEL, run))
        ]

    return peers


@dataclass(slots=True)
class _Peer:
    """What is known of one address: of each of its ranks the process that answered, and its newest step."""

    last: dict[int, tuple[str, int]] = field(default_factory=dict)
    failures: int = 0
    next_try: float = 0.0

    def since(self) -> int:
        """A node's ranks are asked at once: from where the one is that is furthest behind, or silent."""
        return min((step for _, step in self.last.values()), default=-1)

    def begins_anew(self, answer: Iterable[Steps]) -> bool:
        """Another process answers for a rank: the job was started again."""
        return any(self.last.get(steps.rank, (steps.process,))[0] != steps.process for steps in answer)

    def note(self, steps: Steps, asked: int) -> None:
        """A rank that is heard for the first time may have older steps than those that were asked for."""
        last = self.last[steps.rank][1] if steps.rank in self.last else -1
        if steps.last is not None and (steps.rank in self.last or asked < 0):
            last = max(last, steps.last)
        self.last[steps.rank] = steps.process, last


class Puller:
    """Asks every peer for what is new, again and again, in a thread of its own."""

    def __init__(self, peers: Peers, *, run: str | None = None, every_seconds: float = PULL_SECONDS) -> None:
        """``run`` is the only one that is judged; without it, the first that answers."""
        self._peers = peers
        self._every = every_seconds
        self._known: dict[str, _Peer] = {}
        self._lock = threading.Lock()
        self._alignment = Alignment(run)
        self._page: tuple[Referee, Page] | None = None
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="stepscope-pull")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepscope-referee", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closing.wait(self._every):
            try:
                self.sweep()
            except Exception as error:
                if self._closing.is_set() or "shutdown" in str(error):  # the interpreter ends its thread pools first
                    return
                log.exception("the referee's round failed; it goes on")

    def sweep(self) -> None:
        """One round over all peers."""
        now = time.monotonic()
        addresses = [address for address in dict.fromkeys(self._peers()) if self._due(address, now)]
        for answer in self._pool.map(self._pull, addresses):
            with self._lock:
                for steps in answer:
                    self._alignment.add(steps, time.monotonic())
        with self._lock:
            self._alignment.settle(time.monotonic())

    def text(self) -> str:
        """The critical path's metrics; empty while ranks are missing."""
        with self._lock:
            alignment = self._alignment
            if alignment.referee is None:
                return ""
            if self._page is None or self._page[0] is not alignment.referee:
                self._page = alignment.referee, Page(REFEREE, _series(alignment))
            page = self._page[1]
            readings = page.read(alignment.referee)
        return page.render(readings)

    def view(self, look: Callable[[Alignment], Any]) -> Any:
        """What ``look`` makes of the alignment, while nobody changes it."""
        with self._lock:
            return look(self._alignment)

    def _due(self, address: str, now: float) -> bool:
        return self._known.setdefault(address, _Peer()).next_try <= now

    def _pull(self, address: str) -> list[Steps]:
        peer = self._known[address]
        asked = peer.since()
        if self._closing.is_set():
            return []
        try:
            answer = _steps(address, asked)
            if asked >= 0 and peer.begins_anew(answer):
                peer.last.clear()
                asked = -1
                answer = _steps(address, asked)
        except (OSError, ValueError) as error:
            self._missed(address, peer, error)
            return []
        if peer.failures:
            log.info("%s answers again", address)
        peer.failures, peer.next_try = 0, 0.0
        for steps in answer:
            peer.note(steps, asked)
        return answer

    def _missed(self, address: str, peer: _Peer, error: Exception) -> None:
        peer.failures += 1
        pause = min(self._every * 2 ** min(peer.failures, 10), LARGEST_PAUSE_SECONDS)
        peer.next_try = time.monotonic() + pause
        if peer.failures == 2 or isinstance(error, MalformedSteps):
            log.warning("%s gives no step records: %s", address, error)


def _steps(address: str, since: int) -> list[Steps]:
    return parse_steps(json.loads(fetch(address, f"/steps?since={since}")))


def _series(alignment: Alignment) -> Series:
    run = {"run": str(alignment.run)}
    ranks: list[Mapping[str, str]] = [
        {**run, "rank": str(rank), "node": alignment.nodes[rank]} for rank in range(alignment.world_size)
    ]
    return {"rank": ranks, "node": [{**run, "node": node} for node in alignment.node_names()], "run": [run]}


def fetch(address: str, path: str, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """The body of a page at ``host:port``. Raises ``OSError`` when nobody answers, ``ValueError`` for an error answer."""
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if int(answer.headers.get("Content-Length") or 0) > LARGEST_ANSWER_BYTES:
            raise ValueError(f"{address}{path} answers with more than {LARGEST_ANSWER_BYTES} bytes")
        body = answer.read()
    except http.client.HTTPException as error:  # such as a rank that died in the middle of its answer
        raise OSError(f"{address}{path}: {error!r}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise ValueError(f"{address}{path} answered {answer.status}: {body[:200].decode(errors='replace').strip()}")
    return body
