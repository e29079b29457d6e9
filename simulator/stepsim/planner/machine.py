"""The machines: GPUs by node, what links them, and the NICs between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stepsim.accelerators import Accelerator
from stepsim.collectives import Group

PCIE_BUSBW = {3: 7e9, 4: 14e9, 5: 28e9}
"""Bus bandwidth of a large all-reduce over PCIe ×16 and the host, by generation: 28 GB/s measured on 8 × RTX 5090
(stas00/ml-engineering), half as much for each older one."""
PCIE_HOP_SECONDS = 2.5e-6
"""NCCL src/graph/tuning.cc, LL128."""


class MachineError(ValueError):
    """Machines that there are not."""


def linked(gpu: Accelerator, topology: str | None) -> Accelerator:
    """The accelerator as that topology links it; None: as it is sold."""
    if topology is None or (topology == "nvswitch") == gpu.nvlink:
        return gpu
    if topology == "nvswitch":
        raise MachineError(f"topology: {gpu.name} has no NVLink to an NVSwitch; it takes pcie")
    busbw = PCIE_BUSBW[gpu.pcie_generation]
    return replace(gpu, busbw_bytes_per_second=busbw, hop_seconds=PCIE_HOP_SECONDS, nvlink=False, nvls=False)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Nodes, all alike."""

    gpu: Accelerator
    gpus_per_node: int
    nic_bytes_per_second: float
    """Line rate of one GPU's share of its node's NICs."""

    def group(self, ranks: int, *, stride: int, groups: int = 1) -> Group:
        """``ranks`` GPUs, each ``stride`` GPUs after the one before it; of ``groups`` such, one after the other, the one that
        is spread over most nodes."""
        span = ranks * stride
        begins = {number * span % self.gpus_per_node for number in range(min(groups, self.gpus_per_node))}
        nodes = max((begin + (ranks - 1) * stride) // self.gpus_per_node + 1 for begin in begins)
        return Group(
            ranks=ranks, nodes=nodes, gpus_per_node=-(-ranks // nodes), busbw=self.gpu.busbw_bytes_per_second,
            nic=self.nic_bytes_per_second, hop=self.gpu.hop_seconds, nvls=self.gpu.nvls,
        )  # fmt: skip

    def nodes(self, gpus: int) -> Mapping[str, int]:
        """``nodes`` and ``gpus_per_node`` of a job."""
        inside = min(gpus, self.gpus_per_node)
        return {"nodes": -(-gpus // inside), "gpus_per_node": inside}
