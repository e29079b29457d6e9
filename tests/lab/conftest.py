"""A running lab: simulator, Prometheus and Alertmanager, with its preloaded past."""

import signal

import pytest

from running_lab import Lab


@pytest.fixture
def start_lab(tmp_path):
    """Starts labs, and stops them after the test."""
    started = []

    def start(*arguments, **options):
        lab = Lab(tmp_path, *arguments, **options)
        started.append(lab)
        return lab

    yield start
    for lab in started:
        lab.stop(signal.SIGTERM)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    made = Lab(tmp_path_factory.mktemp("lab"))
    try:
        made.wait_ready()
        yield made
    finally:
        made.stop(signal.SIGTERM)
