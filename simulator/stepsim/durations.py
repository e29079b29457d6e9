"""Durations as Prometheus writes them: ``90s``, ``10m``, ``1h30m``."""

from __future__ import annotations

import re
from typing import Any

UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
LONGEST_SECONDS = 365 * UNITS["d"]
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")


def parse_duration(value: Any) -> float:
    """Seconds. Plain numbers are seconds, too. Raises ``ValueError`` for anything else, and for negative ones."""
    seconds = -1.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, str) and value and _PARTS.sub("", value) == "":
        seconds = sum(float(number) * UNITS[unit] for number, unit in _PARTS.findall(value))
    if 0 <= seconds <= LONGEST_SECONDS:
        return float(seconds)
    raise ValueError(
        f"a duration is a number of seconds from 0 on, or written like 90s, 10m or 1h30m, up to 365d, not {value!r:.80}"
    )
