"""One line of the benchmark's table, and the stop watch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table."""

    name: str
    value: float
    unit: str
    target: float
    better: Literal["lower", "higher"]

    @property
    def holds(self) -> bool:
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
