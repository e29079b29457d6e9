"""Sends what happens to all who watch the console, as server-sent events: composed once for all of them, and only while
somebody watches."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

log = logging.getLogger("stepsim")

TICK_SECONDS = 0.25
"""Laps are sent so often at most; the state with every fourth of them."""
TICKS_PER_STATE = 4
MOST_QUEUED = 40
"""Events that a slow viewer may be behind; then it misses the oldest."""

Compose = Callable[[], Any]
"""JSON-ready; called in a worker thread. None where there is nothing new."""


class Viewers:
    """``opening`` is what a new viewer gets first, ``state`` goes to all once a second, ``lap`` as soon as there is one."""

    def __init__(self, *, opening: Compose, state: Compose, lap: Compose) -> None:
        self._opening, self._state, self._lap = opening, state, lap
        self._queues: set[asyncio.Queue[str]] = set()
        self._composing: asyncio.Task[None] | None = None

    async def follow(self) -> AsyncIterator[str]:
        """One viewer's events, without an end."""
        queue: asyncio.Queue[str] = asyncio.Queue(MOST_QUEUED)
        self._queues.add(queue)
        try:
            yield _event("opening", await run_in_threadpool(self._opening))
            if self._composing is None or self._composing.done():
                self._composing = asyncio.create_task(self._compose())
            while True:
                yield await queue.get()
        finally:
            self._queues.discard(queue)

    async def _compose(self) -> None:
        for tick in itertools.count():
            if not self._queues:
                return
            await self._tell("lap", self._lap)
            if tick % TICKS_PER_STATE == 0:
                await self._tell("state", self._state)
            await asyncio.sleep(TICK_SECONDS)

    async def _tell(self, name: str, compose: Compose) -> None:
        """What goes wrong once, as while ranks come and go, silences nobody."""
        try:
            content = await run_in_threadpool(compose)
        except Exception:
            log.exception("no %s for those who watch; the next one follows", name)
            return
        if content is not None:
            self._send(_event(name, content))

    def _send(self, event: str) -> None:
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)


def _event(name: str, content: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(content, separators=(',', ':'))}\n\n"
