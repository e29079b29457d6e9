"""What the preview keeps of a recording: a folder of Prometheus's blocks beside it, one for each metric and recorded series
that a preview has needed. The next one links them into a folder of its own.

Whoever adds blocks has the folder alone; those who link and ask share it. What a process that was ended has left behind
is named nowhere, and is removed by the next that adds.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepsim.practice.exact import EngineError
from stepsim.practice.needed import names_in, recorded_for
from stepsim.practice.preview.prometheus import Clock, QueryError, make_blocks
from stepsim.practice.preview.session import Rule, Session, levels_of
from stepsim.practice.recording import FloatArray, Recording, is_stale

CONTENT, LOCK = "content.json", ".lock"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The blocks of one recorded series."""

    digest: str
    """Of the rule, all that it stands on, and the evaluation interval."""
    blocks: list[str]


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a store holds, by name; and what its recording says of itself, so that it need not be read again."""

    scrape: float
    last: float
    visible: list[float]
    names: list[str]
    """Of all the recording's metrics."""
    metrics: dict[str, list[str]] = field(default_factory=dict)
    records: dict[str, Kept] = field(default_factory=dict)

    @classmethod
    def of(cls, recording: Recording) -> Content:
        return cls(scrape=recording.scrape_seconds, last=recording.last, visible=list(recording.visible),
                   names=sorted(recording.names()))  # fmt: skip

    @classmethod
    def read(cls, file: Path) -> Content | None:
        if not file.is_file():
            return None
        told = json.loads(file.read_text(encoding="utf-8"))
        return cls(**{**told, "records": {name: Kept(**kept) for name, kept in told["records"].items()}})

    def blocks(self, exprs: Iterable[str]) -> list[str]:
        """Of all that expressions read themselves."""
        metrics = [self.metrics[name] for name in names_in(exprs, self.metrics)]
        records = [self.records[name].blocks for name in names_in(exprs, self.records)]
        return [block for blocks in (*metrics, *records) for block in blocks]

    def blocks_of_all(self) -> set[str]:
        return {block for blocks in self.metrics.values() for block in blocks} | {
            block for kept in self.records.values() for block in kept.blocks
        }


@dataclass(frozen=True, kw_only=True)
class Store:
    """``recording`` gives what it is made from, and is called only where something is missing."""

    folder: Path
    recording: Callable[[], Recording]
    every: float
    lab: Mapping[str, Any]

    @contextmanager
    def opened(self, exprs: Sequence[str], own: Iterable[str] = ()) -> Iterator[Session]:
        """A session that has all that some expressions need; what is missing is added. ``own``: names of series that the
        session is going to record itself. Raises ``EngineError``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            with self._locked(fcntl.LOCK_SH):
                content = Content.read(self.folder / CONTENT)
                if content and not self._missing_metrics(exprs, content) and not self._missing_records(exprs, content):
                    with self._session(content, exprs, own) as session:
                        yield session
                    return
            with self._locked(fcntl.LOCK_EX):
                self._fill(exprs)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        with (self.folder / LOCK).open("a") as file:
            fcntl.flock(file, how)
            yield

    @contextmanager
    def _session(self, content: Content, exprs: Sequence[str], own: Iterable[str] = ()) -> Iterator[Session]:
        clock = Clock(every=self.every, scrape=content.scrape, last=content.last)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".session-") as made:
            for block in content.blocks(exprs):
                shutil.copytree(self.folder / block, Path(made) / block, copy_function=_link)
            recorded = frozenset([*content.records, *own])
            yield Session(folder=Path(made), clock=clock, visible=tuple(content.visible), recorded=recorded)

    def _missing_records(self, exprs: Sequence[str], content: Content) -> list[Rule]:
        recorded = recorded_for(exprs, self.lab)
        digests = self._digests(recorded)
        kept = {name: one.digest for name, one in content.records.items()}
        return [rule for rule in recorded if kept.get(rule["record"]) != digests[rule["record"]]]

    def _missing_metrics(self, exprs: Sequence[str], content: Content) -> list[str]:
        read = [*exprs, *(rule["expr"] for rule in self._missing_records(exprs, content))]
        return sorted(names_in(read, content.names) - content.metrics.keys())

    def _digests(self, rules: Sequence[Rule]) -> dict[str, str]:
        found: dict[str, str] = {}
        for level in levels_of(rules):
            for rule in level:
                told = [rule, self.every, [found[name] for name in sorted(names_in([rule["expr"]], found))]]
                found[rule["record"]] = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        return found

    def _fill(self, exprs: Sequence[str]) -> None:
        content = Content.read(self.folder / CONTENT) or Content.of(self.recording())
        self._clean(content)
        if missing := self._missing_metrics(exprs, content):
            self._fill_metrics(content, missing)
        for level in levels_of(self._missing_records(exprs, content)):
            self._fill_records(content, level)
        self._write(content)

    def _fill_metrics(self, content: Content, names: Iterable[str]) -> None:
        recording = self.recording()
        for name in names:
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".made-") as made:
                content.metrics[name] = self._taken(make_blocks(_lines(recording, name), Path(made) / "blocks"))
            self._write(content)

    def _fill_records(self, content: Content, level: Sequence[Rule]) -> None:
        exprs = [rule["expr"] for rule in level]
        digests = self._digests(recorded_for([rule["record"] for rule in level], self.lab))

        def put(name: str, blocks: list[Path]) -> None:
            content.records[name] = Kept(digest=digests[name], blocks=self._taken(blocks))
            self._write(content)

        with self._session(content, exprs) as session:
            try:
                session.record(level, put)
            except QueryError as error:
                raise EngineError(f"the lab's {error}") from None

    def _taken(self, blocks: Iterable[Path]) -> list[str]:
        return [block.rename(self.folder / block.name).name for block in blocks]

    def _write(self, content: Content) -> None:
        unfinished = self.folder / f".{CONTENT}"
        unfinished.write_text(json.dumps(asdict(content)), encoding="utf-8")
        unfinished.replace(self.folder / CONTENT)

    def _clean(self, content: Content) -> None:
        for entry in self.folder.iterdir():
            if entry.is_dir() and entry.name not in content.blocks_of_all():
                shutil.rmtree(entry)


def _lines(recording: Recording, name: str) -> Iterator[str]:
    moments = [f"{number * recording.scrape_seconds:.3f}" for number in range(recording.scrapes)]
    for key, values in recording.of([name]):
        yield _series(key, values, moments)


def _series(key: str, values: FloatArray, moments: Sequence[str]) -> str:
    gone = is_stale(values).tolist()
    return "".join(
        f"{key} {value!r} {moment}\n"
        for value, moment, absent in zip(values.tolist(), moments, gone, strict=True)
        if not absent
    )


def _link(source: str, target: str) -> None:
    """Blocks are never written to: a second name is as good as a copy, where the file system has such."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
