"""Prints what the fault matrix found."""

import time

import pytest

from replays import MATRIX, Replay


def pytest_terminal_summary(terminalreporter, config):
    """The fault matrix, if it was made just now; with several workers, by one of them."""
    if MATRIX.is_file() and MATRIX.stat().st_mtime > config.began:
        terminalreporter.write_sep("=", "fault matrix")
        terminalreporter.write_line(MATRIX.read_text(encoding="utf-8"))


def pytest_configure(config):
    config.began = time.time()


@pytest.fixture(scope="session")
def replay():
    """Starts a ``Replay``."""
    return Replay
