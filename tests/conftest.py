"""Fixtures that several packages' tests share."""

import pytest

from stepsim.board import ActiveFault, FaultBoard
from stepsim.engine import Engine
from stepsim.job import load_job


def pytest_addoption(parser):
    parser.addoption("--golden", action="store_true", help="write the golden files anew instead of comparing")


EPOCH = 1_700_000_000.0


@pytest.fixture(scope="session")
def cluster():
    """The default job: 32 H100."""
    return load_job("cluster")


@pytest.fixture
def engine(cluster):
    """The default job's engine, at its very beginning."""
    return Engine(cluster, FaultBoard(cluster), seed=1, now=EPOCH)


@pytest.fixture(scope="session")
def straggling(cluster):
    """The default job after two minutes, the second one with a straggler: what the golden scrapes show."""
    fault = ActiveFault(id="golden", fault="straggler", target={"rank": 5}, severity=1.43, started=EPOCH + 60)
    engine = Engine(cluster, FaultBoard(cluster, [fault]), seed=1, now=EPOCH)
    engine.advance(EPOCH + 120)
    return engine
