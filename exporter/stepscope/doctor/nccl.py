"""A short all-reduce between all GPUs of the node, against what such nodes reach.

To add a node whose bandwidth is known: a row of ``BUS_GB_PER_SECOND``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.doctor.finding import Finding, Node, Status, not_applicable
from stepscope.doctor.smi import Unreadable

TIMEOUT_SECONDS = 180.0
PROGRAM = "all_reduce_perf"
SIZES = ("-b", "256M", "-e", "4G", "-f", "4", "-w", "2", "-n", "10")
"""Large messages, which alone reach the bus bandwidth: 256 MiB, 1 and 4 GiB."""
TOLERANCE_RATIO = 0.9


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Bus bandwidth of large all-reduces, GB/s: the best, and that of a ring, without NVLink SHARP (NVLS)."""

    gpus: int
    name: re.Pattern[str]
    best: float
    ring: float


BUS_GB_PER_SECOND = (
    Reached(gpus=8, name=re.compile(r"H100 80GB HBM3|H200(?! NVL)"), best=480, ring=367),
    Reached(gpus=8, name=re.compile(r"B200"), best=846, ring=682),
    Reached(gpus=8, name=re.compile(r"A100-SXM"), best=235, ring=235),
)
"""Published nccl-tests runs on 8 × H200, B200 and A100. H100 has H200's NVLinks. With NVLS, 4 GiB reach 479."""
ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s", re.MULTILINE)
"""size, count, type, redop, root, then time, algbw and busbw out of place (nccl-tests, doc/PERFORMANCE.md)."""


def nccl(node: Node) -> Finding:
    if not node.nccl:
        return not_applicable("not asked for: --nccl")
    gpus = node.inventory.gpus
    if len(gpus) < 2 or node.inventory.all_in_mig_mode:
        return not_applicable("needs two GPUs that talk to one another")
    node.progress(f"all-reduce on {len(gpus)} GPUs, for {TIMEOUT_SECONDS:g} s at most")
    output = node.machine.run((PROGRAM, *SIZES, "-g", str(len(gpus))), TIMEOUT_SECONDS)
    if output.ended == "missing":
        next_step = f"build github.com/NVIDIA/nccl-tests and put {PROGRAM} on the PATH"
        return Finding(status="warn", found=f"{PROGRAM} is not on the PATH", next_step=next_step)
    if not output.succeeded:
        return Finding(status="fail", found=f"{PROGRAM} {output.why()}")
    if not re.search(r"# Out of bounds values : 0 OK", output.text):
        return Finding(status="fail", found="wrong results: some values are out of bounds")
    return _compared(node, _bus_bandwidth(output.text))


def _bus_bandwidth(text: str) -> float:
    """Of the largest message."""
    rows = [(int(size), float(bandwidth)) for size, bandwidth in ROW.findall(text)]
    if not rows:
        raise Unreadable(f"{PROGRAM} wrote no row of results")
    return max(rows)[1]


def _compared(node: Node, measured: float) -> Finding:
    gpus = node.inventory.gpus
    known = (row for row in BUS_GB_PER_SECOND if row.gpus == len(gpus) and all(row.name.search(g.name) for g in gpus))
    if (reached := next(known, None)) is None:
        return Finding(
            status="warn",
            found=f"{measured:g} GB/s",
            expected=f"no published figure for {len(gpus)} × {gpus[0].name}",
            next_step="compare it with a node that you trust",
        )
    expected = f"{reached.best:g} GB/s in published runs; {reached.ring:g} as a ring"
    return Finding(status=_graded(measured, reached), found=f"{measured:g} GB/s", expected=expected)


def _graded(measured: float, reached: Reached) -> Status:
    """A ring's speed where NVLS should run is half a fault."""
    if measured >= TOLERANCE_RATIO * reached.best:
        return "pass"
    return "warn" if measured >= TOLERANCE_RATIO * reached.ring else "fail"
