"""Whether driver, CUDA and NCCL fit together, from their version numbers alone.

To support a new CUDA release: add its row to ``MINIMUM_DRIVER``; a new architecture, to ``MINIMUM_CUDA``.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from stepscope.doctor.finding import Finding, Node, judged
from stepscope.doctor.machine import Machine
from stepscope.doctor.smi import Inventory, Unreadable

Version: TypeAlias = tuple[int, ...]

MINIMUM_DRIVER: dict[int, Version] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
"""By CUDA's major release, on Linux: CUDA Toolkit Release Notes, "CUDA Toolkit and Minimum Required Driver Version for
CUDA Minor Version Compatibility"."""
MINIMUM_CUDA: dict[str, Version] = {"Ampere": (11, 0), "Ada Lovelace": (11, 8), "Hopper": (11, 8), "Blackwell": (12, 8)}
"""The first CUDA release that compiles for an architecture: CUDA Toolkit Release Notes of 11.0, 11.8 and 12.8."""
MAJORS = tuple(MINIMUM_DRIVER)


def versions(node: Node) -> Finding:
    inventory = node.inventory
    driver, offered = _parsed("driver_version", inventory), _parsed("cuda_version", inventory)
    torch, nccl = node.machine.package("torch"), _nccl_packages(node.machine)
    needed = _torch_cuda(node.machine, torch)
    found = [f"driver {inventory.driver_version}, which offers CUDA {inventory.cuda_version}"]
    found += [f"torch {torch}" + (f" for CUDA {_dotted(needed)}" if needed else "")] if torch else ["no torch here"]
    found += [f"NCCL {version} for CUDA {major}" for major, version in nccl.items()]
    fails: list[str] = []
    warns: list[str] = []
    if needed:
        fails += [*_too_old(inventory, needed), *_foreign_nccl(nccl, needed)]
        if offered < needed:
            enough = needed[0] in MINIMUM_DRIVER and driver >= MINIMUM_DRIVER[needed[0]]
            (warns if enough else fails).append(_offer(offered, needed, enough))
    elif torch:
        warns.append(f"torch {torch} is a build without CUDA")
    if len(nccl) > 1:
        warns.append(
            "several NCCL packages overwrite one another: " + ", ".join(f"nvidia-nccl-cu{each}" for each in nccl)
        )
    return judged(fails=fails, warns=warns, fine=", ".join(found))


def _offer(offered: Version, needed: Version, enough: bool) -> str:
    said = f"torch needs CUDA {_dotted(needed)}, the driver offers {_dotted(offered)}"
    if enough:
        return f"{said}: it runs by minor-version compatibility, without what {_dotted(needed)} adds and without PTX"
    least = MINIMUM_DRIVER.get(needed[0])
    return said + (f"; CUDA {needed[0]} needs driver {_dotted(least)} or later" if least else "")


def _too_old(inventory: Inventory, needed: Version) -> list[str]:
    """A CUDA release that came before the GPU has no code for it."""
    names = {gpu.text("product_architecture") or "" for gpu in inventory.gpus if gpu.has("product_architecture")}
    return [
        f"{name} GPUs need CUDA {_dotted(MINIMUM_CUDA[name])} or later, torch was built for {_dotted(needed)}"
        for name in sorted(names & MINIMUM_CUDA.keys())
        if needed < MINIMUM_CUDA[name]
    ]


def _foreign_nccl(nccl: dict[int, str], needed: Version) -> list[str]:
    if nccl and needed[0] not in nccl:
        return [f"NCCL is built for CUDA {', '.join(map(str, nccl))}, torch for CUDA {_dotted(needed)}"]
    return []


def _nccl_packages(machine: Machine) -> dict[int, str]:
    found = {major: machine.package(f"nvidia-nccl-cu{major}") for major in MAJORS}
    return {major: version for major, version in found.items() if version}


def _torch_cuda(machine: Machine, torch: str | None) -> Version | None:
    """From torch's local version, as in ``2.8.0+cu129``; else from the CUDA runtime that came with it from PyPI."""
    if not torch:
        return None
    if match := re.search(r"\+cu(\d+)(\d)$", torch):
        return int(match[1]), int(match[2])
    if "+" in torch:
        return None
    names = ("nvidia-cuda-runtime", *(f"nvidia-cuda-runtime-cu{major}" for major in reversed(MAJORS)))
    runtime = next(filter(None, map(machine.package, names)), None)
    return _numbers(runtime)[:2] if runtime else None


def _parsed(field: str, inventory: Inventory) -> Version:
    value = str(getattr(inventory, field))
    if not re.fullmatch(r"\d+(\.\d+)+", value):
        raise Unreadable(f"nvidia-smi's <{field}> is {value!r}, no version")
    return _numbers(value)


def _numbers(version: str) -> Version:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
