"""What is known of a metric's series: their labels, whether they may be NaN, how far they look back.

A shape is the labels of a series: each with its value where that is sure, else None. ``or`` and optional labels give
several. What is not known is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promql_parser import Expr

Shape: TypeAlias = Mapping[str, str | None]
Shapes: TypeAlias = tuple[Shape, ...] | None


@dataclass(frozen=True, kw_only=True)
class Family:
    """All series of one name."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "recorded"]
    shapes: Shapes
    may_be_nan: bool = False
    window_seconds: float = 0.0
    """How far back a recorded one looks."""
    conditional: bool = False
    """Whether a recorded one is absent while its condition does not hold."""

    @property
    def labels(self) -> frozenset[str]:
        """All labels that some of its series have."""
        return label_names(self.shapes)

    @property
    def counts(self) -> bool:
        return self.kind in ("counter", "histogram")


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A recording rule, parsed."""

    name: str
    expr: Expr
    labels: Mapping[str, str]


Families: TypeAlias = Mapping[str, Family]


def label_names(shapes: Shapes) -> frozenset[str]:
    return frozenset().union(*(shapes or ()))
