"""MFU against published figures."""

import pytest

from stepscope.mfu import PEAK_FLOPS, mfu, transformer_flops_per_token

LLAMA3_8B = {"parameters": 7.504924672e9, "layers": 32, "heads": 32, "head_dim": 128, "sequence": 8192}
"""Without the input embedding, as torchtitan counts."""
MPT_70B = {"parameters": 64.862e9, "layers": 80, "heads": 64, "head_dim": 128, "sequence": 2048}


@pytest.mark.parametrize(
    ("model", "tokens_per_second", "device", "percent"),
    [
        (LLAMA3_8B, 5762, "H100 SXM", 33.74),
        (LLAMA3_8B, 6667, "H100 SXM", 39.04),
        (MPT_70B, 1007, "H100 SXM", 41.27),
    ],
)
def test_published_throughputs_give_the_published_mfu(model, tokens_per_second, device, percent):
    """torchtitan prints 33 to 39 %, llm-foundry 41.25 %."""
    flops = transformer_flops_per_token(**model)
    ratio = mfu(tokens_per_second=tokens_per_second, flops_per_token=flops, peak_flops=PEAK_FLOPS[device])
    assert 100 * ratio == pytest.approx(percent, abs=0.1)


def test_counting_the_embedding_too_shifts_the_figure():
    """With all 8.03 B parameters the same throughput reads 35.6 %: the convention must be published."""
    flops = transformer_flops_per_token(**{**LLAMA3_8B, "parameters": 8.03e9})
    ratio = mfu(tokens_per_second=5762, flops_per_token=flops, peak_flops=PEAK_FLOPS["H100 SXM"])
    assert 100 * ratio == pytest.approx(35.6, abs=0.1)


def test_the_causal_convention_halves_attention_alone():
    """Megatron's convention."""
    whole, causal = (transformer_flops_per_token(**LLAMA3_8B, causal=causal) for causal in (False, True))
    attention = 12 * 32 * 32 * 128 * 8192
    assert whole - causal == attention / 2
