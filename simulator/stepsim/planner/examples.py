"""Plans to begin with, one click each on the page. To add one: add a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Example:
    name: str
    given: Mapping[str, str | int]
    """Fields of ``PlanRequest``, as in the page's address."""
    notice: str
    """What to notice."""


_ONE_NODE: dict[str, str | int] = {
    "model": "Llama 2 7B",
    "accelerator": "H200 SXM",
    "strategy": "ddp",
    "gpus": 8,
    "tokens_per_gpu": 8192,
    "max_gpus": 8,
}

EXAMPLES = (
    Example(
        name="One node with an NVSwitch", given=_ONE_NODE,
        notice="Eight GPUs share a batch, and keep 89 % of what one does: gradients travel under the backward.",
    ),
    Example(
        name="The same node with PCIe alone", given=_ONE_NODE | {"topology": "pcie"},
        notice="The same GPUs and the same batch keep 55 %: 842 ms of communication, and less backward to hide them.",
    ),
    Example(
        name="A batch too small for its cluster",
        given={"model": "Llama 2 7B", "sequence": 2048, "accelerator": "H200 SXM", "strategy": "ddp", "gpus": 128,
               "global_batch": 128, "nics_per_node": 1, "nic_gbps": 100, "max_gpus": 128},
        notice="One NIC of 100 Gb/s per node: 128 sequences take longer on 128 GPUs than on eight. The knee is at 8.",
    ),
    Example(
        name="70 B: does it fit?",
        given={"model": "Llama 3 70B", "strategy": "ddp", "gpus": 64},
        notice="16-bit weights alone are 141 GB, 131 GiB. Under DDP every GPU holds them and the optimizer's, too.",
    ),
)  # fmt: skip
