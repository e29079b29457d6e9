"""Model FLOPs utilization: FLOPs of decoder transformers, and peaks of accelerators.

To add an accelerator: add a row to ``DATASHEET`` with its dense figures and where they were read, and how its driver
names it to ``DEVICE_NAMES``.
"""

from __future__ import annotations

import re

DATASHEET = {
    # Dense FLOP/s of the tensor cores by dtype, with fp32 accumulation; fp32 without tensor cores. Sources: the makers'
    # datasheets, bf16 as collected in stas00/ml-engineering (accelerators) and torchtitan's peak table.
    "A100 SXM": {"bf16": 312e12, "fp16": 312e12, "tf32": 156e12, "fp32": 19.5e12},
    "A100 PCIe": {"bf16": 312e12, "fp16": 312e12, "tf32": 156e12, "fp32": 19.5e12},
    "H100 SXM": {"bf16": 989e12, "fp16": 989e12, "fp8": 1979e12, "tf32": 494e12, "fp32": 67e12},
    "H100 PCIe": {"bf16": 756e12, "fp16": 756e12, "fp8": 1513e12, "tf32": 378e12, "fp32": 51e12},
    "H200 SXM": {"bf16": 989e12, "fp16": 989e12, "fp8": 1979e12, "tf32": 494e12, "fp32": 67e12},
    "B200": {"bf16": 2250e12, "fp16": 2250e12, "fp8": 4500e12, "tf32": 1100e12, "fp32": 75e12},
    "L40S": {"bf16": 362e12, "fp16": 362e12, "fp8": 733e12, "tf32": 183e12, "fp32": 91.6e12},
    # 330 holds for fp16 accumulation only
    "RTX 4090": {"bf16": 165e12, "fp16": 165e12, "tf32": 82.6e12, "fp32": 82.6e12},
    "RTX 3090": {"bf16": 71e12, "fp16": 71e12, "tf32": 35.6e12, "fp32": 35.6e12},
}

PEAK_FLOPS = {name: dtypes["bf16"] for name, dtypes in DATASHEET.items()}
"""Dense bf16 FLOP/s."""

DEVICE_NAMES = {
    # As NVML and CUDA write them, with or without the maker's name. Whole names only: a laptop's variant, a "Ti", or a
    # slice of a GPU (MIG) is another device.
    "A100 SXM": r"A100-SXM4-(40|80)GB",
    "A100 PCIe": r"A100-PCIE-40GB|A100 80GB PCIe",
    "H100 SXM": r"H100 80GB HBM3",
    "H100 PCIe": r"H100 PCIe",
    "H200 SXM": r"H200",
    "B200": r"B200",
    "L40S": r"L40S",
    "RTX 4090": r"(GeForce )?RTX 4090",
    "RTX 3090": r"(GeForce )?RTX 3090",
}


def datasheet_peak(device_name: str, dtype: str) -> float | None:
    """Dense FLOP/s of a device as its driver names it, for a dtype such as ``bf16``; None when it is not known."""
    bare = device_name.removeprefix("NVIDIA ").strip()
    known = next((name for name, pattern in DEVICE_NAMES.items() if re.fullmatch(pattern, bare)), None)
    return DATASHEET[known].get(dtype) if known else None


def transformer_flops_per_token(
    *, parameters: float, layers: int, heads: int, head_dim: int, sequence: int, causal: bool = False
) -> float:
    """FLOPs of one training step (forward and backward) of a decoder transformer, per token.

    ``6N + 12·L·H·Q·T`` (PaLM, arXiv 2204.02311, appendix B). With ``causal`` the attention term is halved for the
    masked upper triangle (Megatron-LM's convention). Whether N counts the input embedding is the caller's convention:
    say which one was used beside the figure.
    """
    attention = 12 * layers * heads * head_dim * sequence
    return 6 * parameters + (attention / 2 if causal else attention)


def mfu(*, tokens_per_second: float, flops_per_token: float, peak_flops: float) -> float:
    """Model FLOPs utilization as a ratio: useful FLOP/s of one device by its peak."""
    return tokens_per_second * flops_per_token / peak_flops
