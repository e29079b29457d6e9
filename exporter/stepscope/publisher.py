"""One rank's publishing: an HTTP server, a discovery entry, and a thread that takes finished steps apart.

Nothing here runs in the training loop, and nothing that fails here stops it.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from stepscope.collectors import Collector, Collectors
from stepscope.discovery import HEARTBEAT_SECONDS, RUN_LABEL, TRAINING_JOB, SdEntry, sweep
from stepscope.exposition import Page, Series
from stepscope.identity import Identity
from stepscope.metrics import TRAINING, Job
from stepscope.peers import Puller
from stepscope.record import StepRecord
from stepscope.ring import StepRing, document
from stepscope.server import JSON, Answer, BadQuery, MetricsServer, PortInUse
from stepscope.timeline import MAX_BEGINNINGS, Clock, Resolver
from stepscope.totals import RankTotals

log = logging.getLogger("stepscope")

METRICS_PORT = 9401
RESOLVE_SECONDS = 0.25
HINT_STEPS = 16
"""After so many steps it is clear what the loop does not tell."""
CLOSE_SECONDS = 3.0
RETRY_SECONDS = 10.0
"""Between two attempts at a port that is taken."""
PREFIX = "STEPSCOPE_"
VARIABLES = ("RUN", "NODE", "HOST", "METRICS_PORT", "METRICS_ADDRESS", "SD_DIR", "REFEREE")
"""What a rank reads of its environment beside the launcher's variables."""
ALIKE = 0.8
"""By difflib's ratio, which is 1 for the same. What Kubernetes sets for a service ``stepscope-referee`` is less."""
PARTS = ("monitor", "collectives", "loss", "resolver", "server", "discovery", "memory", "referee")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a rank publishes."""

    port: int = METRICS_PORT
    address: str = "127.0.0.1"
    sd_dir: Path | None = None
    referee: bool = True
    """Rank 0 runs the referee in a thread."""

    @classmethod
    def from_env(cls, identity: Identity, environ: Mapping[str, str] | None = None) -> Settings:
        """``STEPSCOPE_METRICS_PORT`` + local rank, ``STEPSCOPE_METRICS_ADDRESS``, ``STEPSCOPE_SD_DIR`` and
        ``STEPSCOPE_REFEREE`` (thread or none). A job on one machine listens on its loopback, a larger one everywhere.
        The log tells of a variable that looks like one of them misspelt.
        """
        env = os.environ if environ is None else environ
        _tell_misspelt(env)
        base = env.get("STEPSCOPE_METRICS_PORT") or str(METRICS_PORT)
        if not base.isdecimal() or not 0 <= int(base) + identity.local_rank < 65536:
            raise ValueError(f"STEPSCOPE_METRICS_PORT={base!r}: give the port of local rank 0, such as {METRICS_PORT}")
        referee = env.get("STEPSCOPE_REFEREE") or "thread"
        if referee not in ("thread", "none"):
            raise ValueError(f"STEPSCOPE_REFEREE={referee!r}: it is thread (in rank 0) or none")
        address = env.get("STEPSCOPE_METRICS_ADDRESS") or ("127.0.0.1" if identity.one_node else "0.0.0.0")
        try:
            socket.getaddrinfo(address, None)
        except OSError as error:
            raise ValueError(f"STEPSCOPE_METRICS_ADDRESS={address!r}: {error.strerror}; give an address of this machine, or "
                             "0.0.0.0 for all") from None  # fmt: skip
        return cls(
            port=int(base) + identity.local_rank if int(base) else 0,
            address=address,
            sd_dir=Path(env["STEPSCOPE_SD_DIR"]) if env.get("STEPSCOPE_SD_DIR") else None,
            referee=referee == "thread",
        )


def _tell_misspelt(env: Mapping[str, str]) -> None:
    for name in (name.removeprefix(PREFIX) for name in env if name.startswith(PREFIX)):
        meant = get_close_matches(name, VARIABLES, n=1, cutoff=ALIKE)
        if meant and name not in VARIABLES:
            log.warning("%s%s is read by nobody: is %s%s meant?", PREFIX, name, PREFIX, *meant)


class Errors:
    """Counts the failures of each part, and logs the first of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(PARTS, 0))
        self._said: set[str] = set()

    def add(self, part: str, error: BaseException | str) -> None:
        self.counts[part] += 1
        said = f"{part}: {error}"
        if said not in self._said and len(self._said) < 100:
            self._said.add(said)
            log.error("%s (training goes on)", said, exc_info=error if isinstance(error, Exception) else None)


class Publisher:
    """Serves ``/metrics`` and ``/steps`` of one rank. ``announce`` is told the address once there is one."""

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        resolver: Resolver,
        job: Job,
        totals: RankTotals,
        errors: Errors,
    ) -> None:
        self.identity, self.settings, self.errors, self.job = identity, settings, errors, job
        self.strategy = "none"
        self.collectors = Collectors([])
        self.puller: Puller | None = None
        self.announce: Callable[[str], bool] = lambda address: True
        self.refresh: Callable[[], None] = lambda: None
        self.hints: Callable[[], Iterable[str]] = tuple
        self.server: MetricsServer | None = None
        self._resolver = resolver
        self._totals = totals
        self._process = uuid.uuid4().hex
        self._ring = StepRing()
        self._lock = threading.Lock()
        self._page = Page(TRAINING, {})
        self._entry: SdEntry | None = None
        self._announced = False
        self._collective = identity.world_size == 1
        self._next_try = self._next_heartbeat = 0.0
        self._owner = os.getpid()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepscope", daemon=True)

    def describe(self, info: Mapping[str, str], collectors: Sequence[Collector] = ()) -> None:
        """Fix the labels of the rank's series; ``info`` are those of ``training_rank_info`` beyond rank and node."""
        labels = self.identity.labels()
        series: Series = {
            "rank": [labels],
            "rank_info": [{**labels, **info}],
            "node": [{name: labels[name] for name in ("run", "node")}],
            "run": [{"run": labels["run"]}] if self.identity.rank == 0 else [],
        }
        page = Page(TRAINING, series)
        with self._lock:
            self._page, self.strategy = page, info.get("strategy", "none")
        if collectors:
            self.collectors = Collectors(collectors, labels)

    def start(self) -> None:
        atexit.register(self.close)
        self._thread.start()

    def close(self) -> None:
        """Resolve what is left, and take the endpoint and its discovery entry away."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner or self._closing.is_set():  # a forked loader worker is not us
            return
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)  # it may wait for a job's store that is gone
        self._guarded("resolver", self.resolve)
        if self.puller:
            self.puller.close()
        if self._entry:
            self._guarded("discovery", self._entry.remove)
        if self.server:
            self.server.close()

    def use(self, make: Callable[[], Clock]) -> bool:
        """Take another clock; False once something was recorded."""
        with self._lock:
            return self._resolver.use(make)

    def resolve(self) -> None:
        """Book the steps that the rank has passed."""
        with self._lock:
            for record in self._resolver.records():
                self._totals.add(record)
                self._ring.add(record)
                self._hint(record)
            self._totals.dropped = self._resolver.dropped

    def _hint(self, record: StepRecord) -> None:
        """Say once what a loop forgot."""
        self._collective = self._collective or record.collective
        if self._totals.steps != HINT_STEPS or self.identity.rank != 0:
            return
        if not self._collective:
            log.warning("no gradient collective in %d steps of %d ranks: pass the DDP or fully_shard model to "
                        "monitor.wrap(), else no culprit can be named", HINT_STEPS, self.identity.world_size)  # fmt: skip
        for hint in self.hints():
            log.warning("%s", hint)

    def metrics(self, query: Mapping[str, str]) -> Answer:
        self._guarded("memory", self.refresh)
        self._guarded("resolver", self.resolve)
        with self._lock:
            page = self._page
            self.job.overhead_seconds = self._resolver.overhead_seconds
            self.job.errors = dict(self.errors.counts)
            now = self._resolver.current()
            self.job.current_phase = ([now[0]], [now[1]]) if now else None
            readings = page.read(self.job)
        return Answer(page.render(readings) + (self.puller.text() if self.puller else "") + self.collectors.text())

    def steps(self, query: Mapping[str, str]) -> Answer:
        """``since``: the last step of this process that the caller knows."""
        since = _whole(query, "since", -1)
        self._guarded("resolver", self.resolve)
        with self._lock:
            rows = self._ring.since(since)
        who = self.identity
        head = {
            **who.labels(), "rank": who.rank, "process": self._process, "world_size": who.world_size,
            "strategy": self.strategy,
        }  # fmt: skip
        return Answer(document(rows, **head), JSON)

    def _run(self) -> None:
        while True:
            self._guarded("resolver", self.resolve)
            now = time.monotonic()
            if self.server is None and now >= self._next_try:
                self._next_try = now + RETRY_SECONDS
                self._guarded("server", self._serve)
            if self.server and not self._announced:
                self._guarded("referee", self._tell)
            if self._resolver.endless and not self.errors.counts["monitor"]:
                self.errors.add("monitor", f"one step had {MAX_BEGINNINGS:,} batches, forwards and backwards: does the loop "
                                           "call step_done()?")  # fmt: skip
            if self._entry and now >= self._next_heartbeat:
                self._next_heartbeat = now + HEARTBEAT_SECONDS
                self._guarded("discovery", self._entry.touch)
            if self._closing.wait(RESOLVE_SECONDS):
                return

    def _guarded(self, part: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except PortInUse as error:
            self.errors.add(part, str(error))
        except Exception as error:
            self.errors.add(part, error)

    def _serve(self) -> None:
        pages = {"/metrics": self.metrics, "/steps": self.steps}
        self.server = MetricsServer(pages, port=self.settings.port, address=self.settings.address)
        folder, who = self.settings.sd_dir, self.identity
        log.info("rank %d is served at http://%s/metrics", who.rank, self.public_address())
        if folder is not None:
            self._guarded("discovery", lambda: sweep(folder))
            name = f"{who.run}-{who.node}-{self.server.port}"
            self._entry = SdEntry(folder, name, self.public_address(), {"job": TRAINING_JOB, RUN_LABEL: who.run})
            self._next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
            self._guarded("discovery", self._entry.write)

    def _tell(self) -> None:
        self._announced = self.announce(self.public_address())

    def public_address(self) -> str:
        """Where others reach this rank's server."""
        port = self.server.port if self.server else self.settings.port
        return joined(public_host(self.settings.address), port)

    def own_address(self) -> str | None:
        """None as long as another process has the port: it may be another job's."""
        return self.public_address() if self.server else None


def public_host(address: str) -> str:
    """The address itself; or, for one that means all interfaces, the one that leads to the job's master or out."""
    if address not in ("", "0.0.0.0", "::"):
        return address
    if named := os.environ.get("STEPSCOPE_HOST"):
        return named
    master = os.environ.get("MASTER_ADDR") or "192.0.2.1"
    try:
        family, kind, _, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:  # sends nothing
            probe.connect(where)
            host: str = probe.getsockname()[0]
    except OSError:
        return socket.gethostname()
    return socket.gethostname() if host == "::1" or host.startswith("127.") else host


def joined(host: str, port: int) -> str:
    """Host and port as in a URL, where a literal of IPv6 has brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _whole(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise BadQuery(f"{name}={text!r} is no whole number, such as {name}=120") from None
