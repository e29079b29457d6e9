"""The latest lap as the console draws it: a row for each rank, or, in a larger job, for the last to arrive of each node, or of
as many nodes as can be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.phases import ALLREDUCE
from stepsim.draws import FloatArray
from stepsim.recent import Lap

MOST_RANKS, MOST_ROWS = 64, 128


class LapRows:
    """The rows of a job whose ranks are on ``nodes``: the name of each rank's."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.names, groups = _rows(nodes)
        self._of_ranks = len(self.names) == len(nodes)
        self._group = np.array(groups, dtype=int)
        self._begins = np.flatnonzero(np.diff(np.sort(self._group), prepend=-1))

    def drawn(self, lap: Lap) -> dict[str, Any]:
        """In milliseconds, a list of rows per phase; the median wait is over all ranks but the last to arrive.

        That one waits least in the collective. ``ranks`` tells whom each row is about.
        """
        seconds: FloatArray = np.asarray(lap.seconds, dtype=float)
        collective = seconds[ALLREDUCE]
        others = np.delete(collective, collective.argmin())
        shown = np.arange(len(collective)) if self._of_ranks else self._latest(collective)
        return {
            "step": lap.step,
            "rows": self.names,
            "ranks": shown.tolist(),
            "milliseconds": (seconds[:, shown] * 1000).round(2).tolist(),
            "median_wait_milliseconds": round(float(np.median(others) - collective.min()) * 1000, 2)
            if others.size
            else 0.0,
        }

    def _latest(self, allreduce: FloatArray) -> npt.NDArray[np.intp]:
        """Of each row the rank that spent the least time in the collective."""
        order = np.lexsort((allreduce, self._group))
        return np.asarray(order[self._begins])


def _rows(nodes: Sequence[str]) -> tuple[list[str], list[int]]:
    """The rows' names, and the row of each rank."""
    if len(nodes) <= MOST_RANKS:
        return [f"rank {rank}" for rank in range(len(nodes))], list(range(len(nodes)))
    names = list(dict.fromkeys(nodes))
    together = -(-len(names) // MOST_ROWS)
    row_of = {name: number // together for number, name in enumerate(names)}
    chunks = [names[first : first + together] for first in range(0, len(names), together)]
    shown = [chunk[0] if len(chunk) == 1 else f"{chunk[0]} … {chunk[-1]}" for chunk in chunks]
    return shown, [row_of[name] for name in nodes]
