"""Fixtures that several packages' tests share, and what is skipped where a service is missing."""

import os
import shutil
import subprocess

import pytest

from running_lab import poll_until
from stepsim.board import ActiveFault, FaultBoard
from stepsim.engine import Engine
from stepsim.job import load_job


def pytest_addoption(parser):
    parser.addoption("--golden", action="store_true", help="write the golden files anew instead of comparing")
    parser.addoption("--quiet-minutes", type=float, default=0.3, help="minutes of real training that accuse nobody")
    parser.addoption("--quiet-hours", type=float, default=1.0, help="simulated hours that must fire no alert")


def pytest_collection_modifyitems(items):
    """Skip what needs a service that is not here; services named in STEPSCOPE_REQUIRE are never skipped. What takes longest
    comes first, so that with several workers none is left with it at the end.
    """
    items.sort(key=lambda item: next((n for n, name in enumerate(LONGEST) if name in str(item.path)), len(LONGEST)))
    required = os.environ.get("STEPSCOPE_REQUIRE", "").split()
    missing = {name: reason for name, find in SERVICES.items() if name not in required and (reason := find())}
    for item in items:
        for name, reason in missing.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


LONGEST = ("test_quiet", "test_matrix", "test_grades", "tests/lab")


def no_prometheus():
    binaries = ("prometheus", "promtool", "amtool")
    absent = [name for name in binaries if not shutil.which(name)]
    if not (shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")):
        absent.append("alertmanager")
    return f"not on PATH: {', '.join(absent)}" if absent else None


def no_compose():
    """The images must be there already: a test downloads nothing."""
    images = [os.environ.get(name, "") for name in ("PROMETHEUS_IMAGE", "ALERTMANAGER_IMAGE", "PYTHON_IMAGE")]
    if not shutil.which("docker") or not all(images):
        return "no docker, or PROMETHEUS_IMAGE, ALERTMANAGER_IMAGE and PYTHON_IMAGE are not set"
    done = subprocess.run(["docker", "image", "inspect", *images], capture_output=True, check=False)
    return None if done.returncode == 0 else "no Docker engine that has the images"


def no_program(name):
    return lambda: None if shutil.which(name) else f"not on PATH: {name}"


SERVICES = {
    "prometheus": no_prometheus,
    "victoria": no_program("victoria-metrics"),
    "kubectl": no_program("kubectl"),
    "browser": no_program("chromium"),
    "compose": no_compose,
}


@pytest.fixture(scope="session", name="poll_until")
def poll_until_fixture():
    """The one way to wait for something."""
    return poll_until


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
