"""The matrix's rows: each setup healthy, and with each of its faults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TypeAlias

from fault_matrix.columns import COLUMNS, Value
from fault_matrix.measuring import SETUPS, Setup, measured

Row: TypeAlias = Mapping[str, Value]


def runs() -> list[tuple[Setup, str | None]]:
    """In the tables' order: each setup healthy, then with its faults."""
    return [(setup, fault) for setup in SETUPS for fault in (None, *setup.faults)]


def setup_of(fault: str) -> Setup:
    return next(setup for setup in SETUPS if fault in setup.faults)


@cache
def row(setup: Setup, fault: str | None) -> Row:
    """By column, rounded: the rule and the look-alikes use what the reader sees."""
    reading = measured(setup, fault)
    return {key: column.rounded(column.read(reading)) for key, column in COLUMNS.items()}
