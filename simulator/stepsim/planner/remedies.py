"""What would fit where a layout does not: single changes, then pairs of them.

To add one: add a row to ``CHANGES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from stepsim.planner.layout import SHARDINGS, Layout, LayoutError
from stepsim.planner.memory import memory
from stepsim.planner.request import Planned

MOST = 4


def remedies(planned: Planned) -> list[str]:
    """Options of ``stepscope plan`` with which the layout fits, the simplest first; none if no pair of changes will do."""
    for count in (1, 2):
        names = combinations(CHANGES, count)
        fitting = [" ".join(some) for some in names if _fits(planned, some)]
        if fitting:
            return fitting[:MOST]
    return []


def _fits(planned: Planned, names: tuple[str, ...]) -> bool:
    layout = planned.layout
    if len({name.split()[0] for name in names}) < len(names):
        return False
    for name in names:
        changed = CHANGES[name](layout, planned)
        if changed == layout or not _milder(changed, layout):
            return False
        layout = changed
    try:
        layout.check(planned.model, planned.machine.gpus_per_node)
    except LayoutError:
        return False
    need = memory(planned.model, layout, planned.job.network.gradient_bytes).total
    return need <= planned.machine.gpu.memory_bytes


def _milder(changed: Layout, layout: Layout) -> bool:
    """More division than there was, and at least one replica."""
    return (
        changed.tp >= layout.tp and changed.pp >= layout.pp and changed.dp >= 1 and changed.strategy >= layout.strategy
    )


def _with(layout: Layout, **changes: Any) -> Layout:
    """The same batch for the job, on fewer replicas if need be."""
    divided = replace(layout, **changes)
    if not divided.dp:
        return layout
    more = layout.dp / divided.dp
    return replace(divided, tokens=layout.tokens * more, microbatches=round(layout.microbatches * more))


def _change(layout: Layout, planned: Planned, **changes: Any) -> Layout:
    changed = _with(layout, **changes)
    return _one_sequence(changed, planned) if changed.pp > layout.pp else changed


def _one_sequence(layout: Layout, planned: Planned) -> Layout:
    """In each microbatch."""
    return replace(layout, microbatches=max(1, int(layout.tokens // planned.model.sequence)))


CHANGES: Mapping[str, Callable[[Layout, Planned], Layout]] = {
    **{f"--strategy {name}": partial(_change, strategy=name) for name in SHARDINGS if name != "ddp"},
    "--microbatch 1": _one_sequence,
    **{f"--recompute {name}": partial(_change, recompute=name) for name in ("selective", "full")},
    **{f"--tp {count}": partial(_change, tp=count) for count in (2, 4, 8)},
    **{f"--pp {count}": partial(_change, pp=count) for count in (2, 4, 8, 16)},
}
