"""How long collectives take. All sizes in bytes, bandwidths in bytes per second, results in seconds."""

from __future__ import annotations

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
