"""Sending events to those who watch."""

import asyncio
import json

import pytest

from stepsim import viewers
from stepsim.viewers import MOST_QUEUED, Viewers


class Counted:
    """What was composed, and how often."""

    def __init__(self, *answers):
        self.answers, self.calls = list(answers), 0

    def __call__(self):
        self.calls += 1
        return self.answers[min(self.calls, len(self.answers)) - 1]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(viewers, "TICK_SECONDS", 0.01)


async def taken(events, count):
    read = []
    async for event in events:
        name, data, *_ = event.split("\n")
        read.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        if len(read) == count:
            break
    await events.aclose()
    return read


def test_each_gets_the_opening_and_then_what_is_new():
    """A lap that was told already is none."""
    watched = Viewers(opening=Counted("hello"), state=Counted("a", "b"), lap=Counted(1, None, 2, None))
    read = asyncio.run(taken(watched.follow(), 5))
    assert read == [("opening", "hello"), ("lap", 1), ("state", "a"), ("lap", 2), ("state", "b")]


def test_it_is_composed_once_for_all_and_for_nobody_not_at_all():
    """Ten viewers cost what one does; when the last has gone, nothing is composed any more."""
    state = Counted("a")
    watched = Viewers(opening=Counted("hello"), state=state, lap=Counted(None))

    async def all_of_them():
        read = await asyncio.gather(*(taken(watched.follow(), 4) for _ in range(10)))
        calls = state.calls
        await asyncio.sleep(0.2)
        return read, calls

    read, calls = asyncio.run(all_of_them())
    assert all(one == [("opening", "hello")] + 3 * [("state", "a")] for one in read)
    assert calls <= 5
    assert state.calls <= calls + 1


def test_who_is_slow_misses_the_oldest_and_holds_nobody_up():
    """The queue is bounded."""
    laps = Counted(*range(10_000))
    watched = Viewers(opening=Counted("hello"), state=Counted("a"), lap=laps)

    async def slow():
        events = watched.follow()
        await anext(events)
        await anext(events)
        await asyncio.sleep(2)
        rest = await taken(events, MOST_QUEUED)
        return rest, laps.calls

    rest, composed = asyncio.run(slow())
    assert composed > 1.5 * MOST_QUEUED
    told = [content for name, content in rest if name == "lap"]
    assert told == list(range(told[0], told[0] + len(told)))
    assert told[0] > 1


def test_what_goes_wrong_once_silences_nobody(caplog):
    """It is logged, and the next event follows."""

    def fails_first():
        fails_first.calls += 1
        if fails_first.calls == 1:
            raise ValueError("ranks came and went")
        return fails_first.calls

    fails_first.calls = 0
    watched = Viewers(opening=Counted("hello"), state=Counted(None), lap=fails_first)
    assert asyncio.run(taken(watched.follow(), 3)) == [("opening", "hello"), ("lap", 2), ("lap", 3)]
    assert "ranks came and went" in caplog.text
