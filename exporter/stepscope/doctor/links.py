"""How the GPUs reach one another: NVLinks that are up, and pairs that have to cross a host bridge or NUMA nodes.

To add a GPU whose NVLinks are known: a row of ``NVLINKS``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

from stepscope.doctor.finding import Finding, Node, by_gpu, judged, not_applicable
from stepscope.doctor.smi import TIMEOUT_SECONDS, Gpu, Unreadable

NVLINKS = (
    (re.compile(r"V100-SXM"), 6),
    (re.compile(r"A100-SXM"), 12),
    (re.compile(r"H100 80GB HBM3|H200(?! NVL)|B200|B300"), 18),
)
"""NVLinks of GPUs that are always wired to all others: NVIDIA's data sheets, 300, 600, 900 and 1,800 GB/s in links of
50 and 100 GB/s. A card's links depend on its bridges, and so are compared with its neighbours only."""
SLOW_LINK_RATIO = 0.9
"""Links of a kind run at one speed; a lane that is down halves it."""
CROSSINGS = {
    "SYS": "cross NUMA nodes",
    "NODE": "cross host bridges",
    "PHB": "cross a host bridge",
}
"""Of the legend of ``nvidia-smi topo -m``. PIX and PXB stay behind PCIe switches, NV# is NVLink."""
SHOWN_PAIRS = 6
MIG = "in MIG mode GPUs do not talk to one another"
"""NVIDIA Multi-Instance GPU User Guide: no GPU-to-GPU P2P, over PCIe or NVLink."""


def expected_nvlinks(gpu: Gpu) -> int | None:
    return next((count for pattern, count in NVLINKS if pattern.search(gpu.name)), None)


def nvlink(node: Node) -> Finding:
    gpus = node.inventory.gpus
    if node.inventory.all_in_mig_mode:
        return not_applicable(MIG)
    output = node.machine.run(("nvidia-smi", "nvlink", "--status"), TIMEOUT_SECONDS)
    if output.ended == "timeout":
        return Finding(status="fail", found="nvidia-smi nvlink --status did not answer in time")
    speeds = _link_speeds(output.text)
    most = max((len(up) for up in map(_up, speeds.values())), default=0)
    wired = len(gpus) > 1 and any(map(expected_nvlinks, gpus))
    if not most and not wired:
        return not_applicable("no NVLink here")
    if not speeds:
        raise Unreadable(f"nvidia-smi nvlink --status {output.why()}")
    fails = by_gpu((gpu.index, _missing(gpu, speeds.get(gpu.index, []), most)) for gpu in gpus)
    fails += by_gpu((gpu.index, _fabric(gpu)) for gpu in gpus)
    warns = by_gpu((index, _slow(links, _speed(speeds))) for index, links in speeds.items())
    return judged(fails=fails, warns=warns, fine=f"{most} links up on each of {len(speeds)} GPUs")


def _link_speeds(text: str) -> dict[int, list[float]]:
    """GB/s of each link by GPU; 0 for one that is not up. A GPU without any that is up lists none."""
    speeds: dict[int, list[float]] = {}
    for line in text.splitlines():
        if gpu := re.match(r"\s*GPU (\d+):", line):
            links = speeds.setdefault(int(gpu[1]), [])
        elif link := re.match(r"\s*Link \d+:\s*(.+)", line):
            if not speeds:
                raise Unreadable(f"nvidia-smi nvlink --status lists a link before any GPU: {line.strip()!r}")
            up = re.match(r"([\d.]+) GB/s", link[1])
            links.append(float(up[1]) if up else 0.0)
    return speeds


def _up(links: list[float]) -> list[float]:
    return [speed for speed in links if speed > 0]


def _speed(speeds: dict[int, list[float]]) -> float:
    return max((speed for links in speeds.values() for speed in links), default=0.0)


def _missing(gpu: Gpu, links: list[float], most: int) -> str | None:
    up, wanted = len(_up(links)), expected_nvlinks(gpu) or max(len(links), most if links else 0)
    return f"{up} of {wanted} NVLinks up" if up < wanted else None


def _fabric(gpu: Gpu) -> str | None:
    """On NVSwitch systems since Hopper the fabric manager must have registered the GPU before CUDA can start."""
    state = gpu.text("fabric/state") if gpu.has("fabric/state") else None
    return f"NVLink fabric: {state}" if state not in (None, "Completed") else None


def _slow(links: list[float], fastest: float) -> str | None:
    slow = [speed for speed in _up(links) if speed < SLOW_LINK_RATIO * fastest]
    return f"{len(slow)} links at {min(slow):g} GB/s, others at {fastest:g}" if slow else None


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How each pair of GPUs is connected, in the words of ``nvidia-smi topo -m``."""

    paths: dict[tuple[int, int], str]


def read_topology(text: str) -> Topology:
    """Tabs do not line up with the header, which is underlined with escape codes even in a pipe."""
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in text.splitlines()]
    header = next((line.split() for line in lines if re.match(r"\s+GPU\d+\b", line)), None)
    if not header:
        raise Unreadable("nvidia-smi topo -m has no line of column headings")
    columns = [name for name in header if re.fullmatch(r"GPU\d+", name)]
    rows = {int(match[1]): match[2].split() for line in lines if (match := re.match(r"GPU(\d+)\s+(.+)", line))}
    indices = [int(name[3:]) for name in columns]
    try:
        paths = {(a, b): rows[a][indices.index(b)] for a, b in combinations(indices, 2)}
    except LookupError as error:
        raise Unreadable(f"nvidia-smi topo -m: its matrix lacks a row or column ({error})") from error
    if strange := {path for path in paths.values() if not re.fullmatch(r"NV\d+|SYS|NODE|PHB|PXB|PIX", path)}:
        raise Unreadable(f"nvidia-smi topo -m: {', '.join(sorted(strange))} is no connection that its legend knows")
    return Topology(paths=paths)


def topology(node: Node) -> Finding:
    gpus = node.inventory.gpus
    if len(gpus) == 1:
        return not_applicable("one GPU")
    if node.inventory.all_in_mig_mode:
        return not_applicable(MIG)
    output = node.machine.run(("nvidia-smi", "topo", "-m"), TIMEOUT_SECONDS)
    if not output.succeeded:
        raise Unreadable(f"nvidia-smi topo -m {output.why()}")
    paths = read_topology(output.text).paths
    fully_wired = {gpu.index for gpu in gpus if expected_nvlinks(gpu)}
    fails, warns = [], []
    for kind, words in CROSSINGS.items():
        pairs = [pair for pair, path in paths.items() if path == kind]
        broken = [pair for pair in pairs if fully_wired.issuperset(pair)]
        fails += [f"{_pairs(broken)} {words} instead of NVLink"] if broken else []
        warns += [f"{_pairs(others)} {words}"] if (others := [pair for pair in pairs if pair not in broken]) else []
    kinds = ", ".join(f"{count} {path}" for path, count in sorted(Counter(paths.values()).items()))
    return judged(fails=fails, warns=warns, fine=f"{len(paths)} pairs: {kinds}")


def _pairs(pairs: list[tuple[int, int]]) -> str:
    shown = ", ".join(f"{a}–{b}" for a, b in pairs[:SHOWN_PAIRS])
    more = f" and {len(pairs) - SHOWN_PAIRS} more" if len(pairs) > SHOWN_PAIRS else ""
    return f"GPUs {shown}{more}"
