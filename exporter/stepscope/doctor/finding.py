"""What a check is and what it finds. To add a check: write ``run`` beside its kin and add a row to ``checks.CHECKS``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stepscope.doctor.machine import Machine
from stepscope.doctor.smi import Inventory, Unreadable

Status: TypeAlias = Literal["pass", "warn", "fail", "not_applicable"]
STATUSES: tuple[Status, ...] = ("pass", "warn", "fail", "not_applicable")
Needs: TypeAlias = Literal["nothing", "a GPU", "a GPU that answers"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """What is examined, and what the caller knows about it."""

    name: str
    machine: Machine
    inventory: Inventory
    gpus_expected: int | None = None
    data: str | None = None
    nccl: bool = False
    progress: Callable[[str], None]

    @property
    def has_gpus(self) -> bool:
        """Whether it is a node with GPUs, be they well or not."""
        return self.gpus_expected is not None or self.inventory.expected

    @property
    def ranks(self) -> int:
        """Processes that a job would start here: one per GPU, and one without any."""
        return max(1, self.gpus_expected or len(self.inventory.gpus))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check found. ``expected`` and ``next_step`` replace the check's own where it knows better."""

    status: Status
    found: str
    expected: str = ""
    next_step: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A row of the table of checks."""

    name: str
    expected: str
    next_step: str
    needs: Needs = "nothing"
    of: Literal["node", "job"] = "node"
    """Whose it is: what a job was given or brought along is not cured by taking another node."""
    run: Callable[[Node], Finding]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A check that was made. ``next_step`` is empty unless there is something to do."""

    name: str
    status: Status
    found: str
    expected: str
    next_step: str


def judged(*, fails: Sequence[str] = (), warns: Sequence[str] = (), fine: str) -> Finding:
    """A failure if anything failed, else a warning if anything is doubtful, else fine."""
    status: Status = "fail" if fails else "warn" if warns else "pass"
    return Finding(status=status, found="; ".join((*fails, *warns)) or fine)


def not_applicable(why: str) -> Finding:
    return Finding(status="not_applicable", found=why)


def by_gpu(problems: Iterable[tuple[int, str | None]]) -> list[str]:
    """``GPU 0, 3: gen 1 of 5``: what several GPUs have in common is said once; None is no problem."""
    gpus: dict[str, list[int]] = {}
    for index, problem in problems:
        if problem:
            gpus.setdefault(problem, []).append(index)
    return [f"GPU {', '.join(map(str, indices))}: {problem}" for problem, indices in gpus.items()]


def examine(check: Check, node: Node) -> Result:
    """Make a check. Whatever goes wrong in it is its finding, never the end of the command."""
    finding = _unmet(check, node) or _made(check, node)
    to_do = finding.status in ("warn", "fail")
    return Result(
        name=check.name,
        status=finding.status,
        found=finding.found,
        expected=finding.expected or check.expected,
        next_step=(finding.next_step or check.next_step) if to_do else "",
    )


def _unmet(check: Check, node: Node) -> Finding | None:
    if check.needs != "nothing" and not node.has_gpus:
        return not_applicable("no NVIDIA GPU here")
    if check.needs == "a GPU that answers" and not node.inventory.gpus:
        return not_applicable("not measured: the GPUs do not answer (see gpu)")
    return None


def _made(check: Check, node: Node) -> Finding:
    try:
        return check.run(node)
    except Unreadable as error:
        return Finding(status="warn", found=f"not understood: {error}")
    except Exception as error:  # noqa: BLE001  # one check must not cost the others
        what = f"{type(error).__name__}: {error}"
        return Finding(status="warn", found=f"the check itself failed: {what}", next_step="report this as a bug")
