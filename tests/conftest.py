"""Fixtures that several packages' tests share."""

import pytest

from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.job import load_job

EPOCH = 1_700_000_000.0


@pytest.fixture(scope="session")
def cluster():
    """The default job: 32 H100."""
    return load_job("cluster")


@pytest.fixture
def engine(cluster):
    """The default job's engine, not yet started."""
    return Engine(cluster, FaultBoard(cluster), seed=1, now=EPOCH)


def run_with(job, seconds, *, seed=1, warm=120.0, **request):
    """An engine that ran ``warm`` seconds, then so many more with the fault that ``request`` describes."""
    engine = Engine(job, FaultBoard(job), seed=seed, now=EPOCH)
    engine.advance(EPOCH + warm)
    if request:
        engine.board.start(request, now=engine.now)
    engine.advance(EPOCH + warm + seconds)
    return engine
