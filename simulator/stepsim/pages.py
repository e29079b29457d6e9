"""The simulated job's metrics pages: one per node and source, as the exporters of a real cluster have them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope import __version__
from stepscope.exposition import Labels, Page, Series
from stepscope.metrics import REFEREE, TRAINING, Metric, Peak
from stepscope.metrics import Job as JobSource
from stepscope.mfu import PEAK_FLOPS
from stepsim.diagnoser import DIAGNOSIS, Diagnoser
from stepsim.engine import Engine
from stepsim.fleet import NodeTotals
from stepsim.probes import DCGM, NODE_EXPORTER, GpuNode, Host, without
from stepsim.truth import TRUTH, Truth


@dataclass(frozen=True, kw_only=True)
class Served:
    """A page, and how to get what it reads. Call ``source`` with the engine's lock held."""

    page: Page
    source: Callable[[], Any]
    gone: Callable[[], Any] = lambda: None
    """Which of the page's ranks have no process any more, shape (ranks of the page,); None for none."""

    def read(self) -> list[Any]:
        """The values of all columns."""
        readings, gone = self.page.read(self.source()), self.gone()
        if gone is None or not gone.any():
            return readings
        return [(metric, [(labels, _left(metric, column, gone)) for labels, column in blocks])
                for metric, blocks in readings]  # fmt: skip


class Pages:
    """All pages of an engine. ``clock`` says what time it is; the truth's page is left out with ``blind``, the diagnosis's,
    which knows no more than the metrics tell, is not.

    With ``labelled_targets`` all series carry the labels that a scrape would add from service discovery.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float],
        *,
        per_rank_histogram: bool = False,
        blind: bool = False,
        labelled_targets: bool = False,
        diagnoser: Diagnoser | None = None,
    ) -> None:
        self._engine, self._clock = engine, clock
        self._per_rank_histogram = per_rank_histogram
        self._labelled_targets = labelled_targets
        self._served: dict[tuple[str, str], Served] = {}
        for node in range(engine.job.nodes):
            self._add_node(node)
        self._serve("referee", "", REFEREE, self._referee_series(), lambda: engine.referee)
        if not blind:
            truth = Truth(engine.board, _speed(engine, clock))
            self._serve("truth", "", TRUTH, {"run": [{}]}, lambda: truth)
        if diagnoser:
            self._serve("diagnosis", "", DIAGNOSIS, {"run": [{}]}, diagnoser.report)

    def names(self) -> list[tuple[str, str]]:
        """Source and node of every page; the node is empty for the run's own."""
        return list(self._served)

    def targets(self, host: str) -> list[dict[str, Any]]:
        """All pages for service discovery: every target has the address that the caller reached us by."""
        return [target(host, *name) for name in self.names()]

    def served(self) -> list[tuple[str, Served]]:
        """Every page with its source's name."""
        return [(source, served) for (source, _), served in self._served.items()]

    def text(self, source: str, node: str = "") -> str:
        """Raises ``KeyError`` for a page that does not exist."""
        served = self._served[source, node]
        with self._engine.lock:
            readings = served.read()
        return served.page.render(readings)

    def add(self, source: str, table: tuple[Metric, ...], read: Any) -> None:
        """A page of the lab's own, whose values are read from ``read``."""
        self._serve(source, "", table, {"run": [{}]}, lambda: read)

    def _serve(
        self,
        source: str,
        node: str,
        table: tuple[Metric, ...],
        series: Series,
        read: Callable[[], Any],
        gone: Callable[[], Any] = lambda: None,
    ) -> None:
        if self._labelled_targets:
            target = target_labels(source, node)
            series = {scope: [{**target, **labels} for labels in rows] for scope, rows in series.items()}
        self._served[source, node] = Served(page=Page(table, series), source=read, gone=gone)

    def _add_node(self, node: int) -> None:
        engine, job = self._engine, self._engine.job
        ranks = slice(node * job.gpus_per_node, (node + 1) * job.gpus_per_node)
        every = range(ranks.start, ranks.stop)
        name = job.node_name(node)
        training: Series = {
            "rank": [_rank_labels(engine, rank) for rank in every],
            "rank_info": [_rank_info(engine, rank) for rank in every],
            "node": [{"run": job.run, "node": name}],
            "run": [{"run": job.run}] if node == 0 else [],
        }
        self._serve("training", name, TRAINING, training, lambda: self._job(ranks), lambda: engine.params.lost[ranks])
        gpus, hosts = engine.telemetry.gpus, engine.telemetry.hosts
        self._serve("dcgm", name, DCGM, {"gpu": [gpu_labels(engine, r) for r in every]}, lambda: GpuNode(gpus, ranks))
        cpus: list[Labels] = [{"cpu": str(cpu)} for cpu in range(job.cpus_per_node)]
        self._serve("node", name, NODE_EXPORTER, {"host": [{}], "cpu": cpus}, lambda: Host(hosts, gpus, node))

    def _referee_series(self) -> Series:
        job = self._engine.job
        return {
            "rank": [_rank_labels(self._engine, rank) for rank in range(job.ranks)],
            "node": [{"run": job.run, "node": job.node_name(node)} for node in range(job.nodes)],
            "run": [{"run": job.run}],
        }

    def _job(self, ranks: slice) -> JobSource:
        job = self._engine.params.job
        now = self._engine.current_phase(self._clock(), ranks)
        return JobSource(
            totals=NodeTotals(self._engine.totals, ranks),
            memory_bytes=[job.memory_bytes()] * (ranks.stop - ranks.start),
            run_info=(
                job.model.name, f"{job.model.parameters:.0f}", "bf16", str(job.ranks), str(job.tokens_per_gpu),
                "tokens", "6N + 12·L·H·Q·T (PaLM), all parameters, attention not halved",
            ),
            peak=Peak(flops=PEAK_FLOPS[job.accelerator], dtype="bf16", source="datasheet"),
            version=__version__,
            per_rank_histogram=self._per_rank_histogram,
            current_phase=now,
        )  # fmt: skip


def _left(metric: Metric, column: Any, gone: Any) -> Any:
    """What is still published: a dead process has no series, and the run's own are the first rank's."""
    if metric.scope in ("rank", "rank_info"):
        return without(column, gone)
    return [None] if metric.scope == "run" and gone[0] else column


def _speed(engine: Engine, clock: Callable[[], float]) -> Callable[[], float | None]:
    """Simulated by elapsed time since now: below 1 the machine cannot keep up."""
    began = engine.now

    def speed() -> float | None:
        elapsed = clock() - began
        return (engine.now - began) / elapsed if elapsed > 1 else None

    return speed


def metrics_path(source: str, node: str) -> str:
    return f"/metrics/{source}/{node}" if node else f"/metrics/{source}"


def target(host: str, source: str, node: str) -> dict[str, Any]:
    """One page as a target of Prometheus HTTP service discovery."""
    return {
        "targets": [host],
        "labels": {**target_labels(source, node), "__metrics_path__": metrics_path(source, node)},
    }


def target_labels(source: str, node: str) -> dict[str, str]:
    """The labels of a page's target. ``node`` is among them only where the series lack it: a target's label would
    rename a metric's own."""
    labels = {"job": source, "instance": node or source}
    if source in ("dcgm", "node"):
        labels["node"] = node
    return labels


def _rank_labels(engine: Engine, rank: int) -> Labels:
    job = engine.job
    return {"run": job.run, "rank": str(rank), "node": job.node_name(rank // job.gpus_per_node)}


def gpu_uuid(run: str, rank: int) -> str:
    """A simulated GPU keeps its UUID for good."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'stepsim/{run}/{rank}')}"


def gpu_labels(engine: Engine, rank: int) -> Labels:
    """dcgm-exporter's own label set."""
    job = engine.job
    local = rank % job.gpus_per_node
    return {
        "gpu": str(local),
        "UUID": gpu_uuid(job.run, rank),
        "pci_bus_id": f"00000000:{(0x0A + 0x0B * local) % 0x100:02X}:00.0",
        "device": f"nvidia{local}",
        "modelName": job.gpu.model_name,
        "hostname": job.node_name(rank // job.gpus_per_node),
    }


def _rank_info(engine: Engine, rank: int) -> Labels:
    job = engine.job
    local = str(rank % job.gpus_per_node)
    return {
        **_rank_labels(engine, rank),
        "local_rank": local,
        "gpu": local,
        "UUID": gpu_uuid(job.run, rank),
        "device_name": job.gpu.model_name,
        "backend": "simulated",
        "strategy": "ddp",
    }
