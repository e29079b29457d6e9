"""What would fit where a plan does not: single options, then pairs of them, as somebody would type them.

To add one: add a row to ``CHANGES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from stepsim.job import Job
from stepsim.planner.layout import RECOMPUTATIONS, SHARDINGS
from stepsim.planner.memory import memory
from stepsim.planner.request import PlanError, PlanRequest, resolve

MOST = 4
CHANGES: Mapping[str, tuple[str, Any]] = {
    **{f"--strategy {name}": ("strategy", name) for name in SHARDINGS},
    "--microbatch 1": ("microbatch", 1),
    **{f"--recompute {name}": ("recompute", name) for name in RECOMPUTATIONS},
    **{f"--tp {count}": ("tp", count) for count in (2, 4, 8)},
    **{f"--pp {count}": ("pp", count) for count in (2, 4, 8, 16)},
}
"""The field that each option sets."""
ORDER: Mapping[str, tuple[str, ...]] = {"strategy": tuple(SHARDINGS), "recompute": RECOMPUTATIONS}


def remedies(request: PlanRequest, job: Job | None = None) -> list[str]:
    """Options of ``stepscope plan`` that, added to the request, make it fit; the simplest first, none if no two of them do."""
    useful = [option for option, (field, value) in CHANGES.items() if _more(request, field, value)]
    for count in (1, 2):
        fitting = [" ".join(some) for some in combinations(useful, count) if _fits(request, job, some)]
        if fitting:
            return fitting[:MOST]
    return []


def _more(request: PlanRequest, field: str, value: Any) -> bool:
    """Whether it divides or forgets more than the request does."""
    now = getattr(request, field)
    if field in ORDER:
        return ORDER[field].index(value) > ORDER[field].index(now)
    return bool(now != value if field == "microbatch" else value > now)


def _fits(request: PlanRequest, job: Job | None, options: tuple[str, ...]) -> bool:
    changes = dict(CHANGES[option] for option in options)
    if len(changes) < len(options):
        return False
    try:
        planned = resolve(request.model_copy(update=changes), job)
    except PlanError:
        return False
    need = memory(planned.model, planned.layout, planned.job.network.gradient_bytes).total
    return need <= planned.machine.gpu.memory_bytes
