"""Model FLOPs utilization: FLOPs of decoder transformers, and peaks of accelerators.

To add an accelerator's peak: add a row to ``PEAK_FLOPS`` with its dense bf16 figure and where it was read.
"""

from __future__ import annotations

PEAK_FLOPS = {
    # Dense bf16 tensor FLOP/s with fp32 accumulation. Source: the makers' datasheets, as collected in
    # stas00/ml-engineering (accelerators) and torchtitan's peak table.
    "A100 SXM": 312e12,
    "A100 PCIe": 312e12,
    "H100 SXM": 989e12,
    "H100 PCIe": 756e12,
    "H200 SXM": 989e12,
    "B200": 2250e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,  # 330 holds for fp16 accumulation only
    "RTX 3090": 71e12,
}


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
