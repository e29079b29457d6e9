"""The critical path of one lap: who arrived last, what the step waited for, and who made it wait.

All ranks leave a gradient collective together, so the rank whose own exposed all-reduce was the shortest arrived
last: its lap is the critical path, and its all-reduce is pure transfer. No clock in common is needed.

The definition stands here once. It needs a handful of operations on rows of ranks, which ``PLAIN`` does on lists;
a simulator of thousands of ranks passes the same operations on arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepscope.phases import ALLREDUCE, OTHER
from stepscope.record import Column, Rows


class Operations(Protocol):
    """The operations on rows of ranks that the critical path and the referee are made of."""

    def sum(self, a: Any, b: Any) -> Any:
        """Element by element, for two tables of rows or two columns."""

    def excess(self, column: Column, floor: float) -> Column:
        """Each value of the column less the floor."""

    def smallest(self, column: Column) -> int:
        """Index of the smallest value; of several, the first."""

    def take(self, rows: Rows, index: int) -> list[float]:
        """One column of a table: the value of each row at that index."""

    def medians_without(self, rows: Rows, index: int) -> list[float]:
        """For each row the median of all values but the one at that index; see ``middle``."""

    def by_node(self, rows: Rows, nodes: Sequence[int]) -> Rows:
        """For each row the median over the ranks of each node, see ``middle``; ``nodes`` names each rank's node."""


def middle(row: int, count: int) -> int:
    """Index of the median among so many sorted values; of an even number the one that arrived earlier.

    That is the lower middle of a phase's seconds, and the upper middle in the all-reduce row: who waited longer
    arrived earlier. So half of a node does not speak for it.
    """
    return count // 2 if row == ALLREDUCE else (count - 1) // 2


class PlainOperations:
    """``Operations`` on lists."""

    def sum(self, a: Any, b: Any) -> Any:
        if a and isinstance(a[0], list):
            return [self.sum(x, y) for x, y in zip(a, b, strict=True)]
        return [x + y for x, y in zip(a, b, strict=True)]

    def excess(self, column: Column, floor: float) -> list[float]:
        return [value - floor for value in column]

    def smallest(self, column: Column) -> int:
        return min(range(len(column)), key=column.__getitem__)

    def take(self, rows: Rows, index: int) -> list[float]:
        return [row[index] for row in rows]

    def medians_without(self, rows: Rows, index: int) -> list[float]:
        return [_median(number, [*row[:index], *row[index + 1 :]]) for number, row in enumerate(rows)]

    def by_node(self, rows: Rows, nodes: Sequence[int]) -> list[list[float]]:
        members: list[list[int]] = [[] for _ in range(max(nodes) + 1)]
        for rank, node in enumerate(nodes):
            members[node].append(rank)
        return [
            [_median(number, [row[rank] for rank in ranks]) for ranks in members] for number, row in enumerate(rows)
        ]


def _median(row: int, values: list[float]) -> float:
    return sorted(values)[middle(row, len(values))]


PLAIN = PlainOperations()


@dataclass(frozen=True, kw_only=True, slots=True)
class Lateness:
    """By how much one rank, or one node, held up the others."""

    index: int
    seconds: list[float]
    """By phase. The sum is the time by which it arrived later than the median of the others; 0 without others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticalPath:
    """The verdict on one lap."""

    seconds: list[float]
    """The last arriver's lap by phase: the sum is the lap's wall time."""
    rank: Lateness
    node: Lateness
    waits: Column
    """Per rank: seconds in the collective spent waiting for the last arriver, its transfer excluded."""


def critical_path(laps: Rows, nodes: Sequence[int], operations: Operations = PLAIN) -> CriticalPath:
    """Read one lap of all ranks.

    ``laps`` holds one row per phase and one column per rank, in seconds; ``nodes`` the index of each rank's node.
    """
    waits = laps[ALLREDUCE]
    last = operations.smallest(waits)
    path = operations.take(laps, last)
    return CriticalPath(
        seconds=path,
        rank=_lateness(laps, last, len(nodes), path, operations),
        node=_node_lateness(laps, nodes, nodes[last], operations),
        waits=operations.excess(waits, path[ALLREDUCE]),
    )


def _node_lateness(laps: Rows, nodes: Sequence[int], node: int, operations: Operations) -> Lateness:
    medians = operations.by_node(laps, nodes)
    return _lateness(medians, node, len(medians[0]), operations.take(medians, node), operations)


def _lateness(rows: Rows, index: int, count: int, own: list[float], operations: Operations) -> Lateness:
    """Book the seconds by which ``index`` was late, by phase in proportion to its positive excess over the others."""
    nobody = [0.0] * len(own)
    if count < 2:
        return Lateness(index=index, seconds=nobody)
    others = operations.medians_without(rows, index)
    late = others[ALLREDUCE] - own[ALLREDUCE]
    if late <= 0:
        return Lateness(index=index, seconds=nobody)
    excess = [max(0.0, mine - theirs) for mine, theirs in zip(own, others, strict=True)]
    excess[ALLREDUCE] = 0.0
    total = sum(excess)
    if total == 0:
        excess[OTHER] = total = 1.0
    return Lateness(index=index, seconds=[late * share / total for share in excess])
