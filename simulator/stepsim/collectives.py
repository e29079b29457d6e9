"""How long collectives take. All sizes in bytes, bandwidths in bytes per second, results in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, sqrt

MIB = 2.0**20

NIC_EFFICIENCY = 0.73
"""Share of a NIC's line rate that a large hierarchical all-reduce reaches: derived from 82 ms for 8B bf16 gradients on
4×8 GPUs with 400G each, and within 4 % of the 365 GB/s bus bandwidth measured on 4×8 H200 over EFA."""


def allreduce_busbw(size: float, seconds: float, ranks: int) -> float:
    """Bus bandwidth as nccl-tests defines it: algorithm bandwidth · 2(n−1)/n."""
    return size / seconds * 2 * (ranks - 1) / ranks


def nvls_allreduce(size: float) -> float:
    """All-reduce on 8×H200 with NVLink SHARP: a fit to stas00/ml-engineering's measurements, mean error 3.4 %."""
    return 35.4e-6 + 8.93e-6 * sqrt(size / MIB) + size / 284.9e9


def ring_allreduce(size: float, ranks: int, *, bandwidth: float, hop: float) -> float:
    """Flat ring: 2(n−1) hops, each of a 1/n share of the data at link ``bandwidth``, plus ``hop`` seconds."""
    return 2 * (ranks - 1) * (size / (ranks * bandwidth) + hop)


RING_HOP_SECONDS, TREE_HOP_SECONDS = 4e-6, 8.5e-6
"""Latency of one hop between nodes (NCCL src/graph/tuning.cc, LL128, network)."""


def hierarchical_allreduce(
    size: float, *, nodes: int, gpus_per_node: int, busbw: float, nic: float, hop: float
) -> float:
    """Reduce inside the nodes, across them, and inside again, pipelined: the slower of the two links decides.

    ``busbw`` is the bus bandwidth inside a node, ``nic`` the line rate of the NIC of one GPU, ``hop`` the latency of
    a hop inside a node; between nodes the quicker of ring and tree is taken. The sum of both terms instead of the
    larger one would give 141 ms where 82 were measured.
    """
    k, g = nodes, gpus_per_node
    across = 2 * (k - 1) / k * (size / g) / (NIC_EFFICIENCY * nic) if k > 1 else 0.0
    inside = 2 * (g - 1) / g * size / busbw if g > 1 else 0.0
    hops = min((k - 1) * RING_HOP_SECONDS, log2(k) * TREE_HOP_SECONDS)
    return max(across, inside) + 2 * (g - 1) * hop + 2 * hops


def hierarchical_gather(size: float, *, nodes: int, gpus_per_node: int, busbw: float, nic: float, hop: float) -> float:
    """All-gather of ``size`` bytes in all, or the reduce-scatter of as many: the way there of an all-reduce, or back.

    A node receives (k−1)/k of them, over the NICs of its g GPUs; a GPU takes (g−1)/g from its neighbours.
    """
    return hierarchical_allreduce(size, nodes=nodes, gpus_per_node=gpus_per_node, busbw=busbw, nic=nic, hop=hop) / 2


GATHER_BASE_SECONDS = 14e-6
"""Before the first hop of a ring (NCCL src/graph/tuning.cc, LL128)."""
NVLS_RANKS = 8
"""GPUs of a full node, which NVSwitch reduces for."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """GPUs that communicate with each other. Bandwidths in bytes per second."""

    ranks: int
    nodes: int
    gpus_per_node: int
    """Of each node, at most."""
    busbw: float
    """Bus bandwidth inside a node."""
    nic: float
    """Line rate of one GPU's NIC."""
    hop: float
    """Seconds of a hop inside a node."""
    nvls: bool = False
    """Whether NVSwitch reduces (NVLink SHARP)."""

    def allreduce(self, size: float) -> float:
        """Between nodes hierarchical; else by NVSwitch where it reduces for a full node, or in a ring."""
        if self.ranks == 1:
            return 0.0
        if self.nodes > 1:
            return hierarchical_allreduce(
                size, nodes=self.nodes, gpus_per_node=self.gpus_per_node, busbw=self.busbw, nic=self.nic, hop=self.hop
            )
        if self.nvls and self.ranks == NVLS_RANKS:
            return nvls_allreduce(size)
        return ring_allreduce(size, self.ranks, bandwidth=self.busbw, hop=self.hop)

    def gather(self, size: float) -> float:
        """All-gather of ``size`` bytes in all, or their reduce-scatter. NVSwitch does not speed it up (361 GB/s measured
        on 8×H200, where a ring all-reduce reaches 367)."""
        if self.ranks == 1:
            return 0.0
        return GATHER_BASE_SECONDS + hierarchical_gather(
            size, nodes=self.nodes, gpus_per_node=self.gpus_per_node, busbw=self.busbw, nic=self.nic, hop=self.hop
        )

    def send(self, size: float) -> float:
        """From one member to the next one, which is on another node where there are several."""
        if self.ranks == 1:
            return 0.0
        if self.nodes > 1:
            return RING_HOP_SECONDS + size / (NIC_EFFICIENCY * self.nic)
        return self.hop + size / self.busbw

    def allreduce_bytes(self, size: float) -> float:
        """What each GPU sends in an all-reduce: 2·S·(n−1)/n, by ring or by any other algorithm without the switch."""
        return 2 * self.gather_bytes(size)

    def gather_bytes(self, size: float) -> float:
        """What each GPU sends in an all-gather or a reduce-scatter: S·(n−1)/n."""
        return size * (self.ranks - 1) / self.ranks
