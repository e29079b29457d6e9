"""Both sides of MFU on a PyTorch model, and what it holds in memory."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, T5Config

from stepscope.flops import counted_flops, decoder_flops, dtype_name, find_peak, measured_peak, parameter_count
from stepscope.memory import counted_bytes
from stepscope.mfu import DATASHEET, DEVICE_NAMES, datasheet_peak, transformer_flops_per_token

LLAMA = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    vocab_size=100)  # fmt: skip
GPT2 = GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=100, n_positions=32)


@pytest.mark.parametrize(("kind", "config", "layers"), [(LlamaForCausalLM, LLAMA, 2), (GPT2LMHeadModel, GPT2, 3)])
def test_a_decoder_is_known_by_its_config(kind, config, layers):
    """Hugging Face's newer and older names; also inside a wrapper such as DDP."""
    model = kind(config)
    parameters = sum(p.numel() for p in model.parameters())
    whole = transformer_flops_per_token(parameters=parameters, layers=layers, heads=4, head_dim=16, sequence=32)
    for known in (decoder_flops(model, 32), decoder_flops(_wrapped(model), 32)):
        assert known.of(10) == 10 * whole
        assert "attention not halved" in known.convention
    short = decoder_flops(model, None)
    assert short.of(10) == 60 * parameters
    assert "without attention" in short.convention


def _wrapped(model):
    wrapped = nn.Module()
    wrapped.module = model
    return wrapped


@pytest.mark.parametrize(
    "config", [T5Config(), MixtralConfig(num_hidden_layers=2), SimpleNamespace(hidden_size=8), None], ids=lambda c: type(c).__name__
)  # fmt: skip
def test_what_does_not_follow_the_formula_is_not_guessed(config):
    """An encoder, experts, a model that says too little, or nothing."""
    model = nn.Linear(2, 2)
    if config is not None:
        model.config = config
    assert decoder_flops(model, 16) is None


def test_a_frozen_parameter_costs_a_third_less():
    """Its own gradient is not computed: 4 FLOPs instead of 6, as for all but the adapters of LoRA."""
    model = LlamaForCausalLM(LLAMA)
    whole = sum(p.numel() for p in model.parameters())
    for parameter in model.model.parameters():
        parameter.requires_grad = False
    trained = sum(p.numel() for p in model.lm_head.parameters())
    known = decoder_flops(model, None)
    assert known.of(1) == pytest.approx(6 * trained + 4 * (whole - trained))
    assert "frozen" in known.convention


def test_parameters_that_others_hold_are_counted_or_nothing_is_said():
    """DeepSpeed tells how many numbers there are in all; FSDP1 shows its own shard alone."""
    model = LlamaForCausalLM(LLAMA)
    whole = parameter_count(model)
    for parameter in model.parameters():
        parameter.ds_numel, parameter.data = parameter.numel(), torch.empty(0)
    assert parameter_count(model) == whole
    assert decoder_flops(model, None).of(1) == 6 * whole
    flat = type("FullyShardedDataParallel", (nn.Module,), {})()
    flat.module = LlamaForCausalLM(LLAMA)
    flat.config = LLAMA
    assert parameter_count(flat) is None
    assert decoder_flops(flat, None) is None


def test_fp32_on_a_gpu_that_may_multiply_in_tf32_is_tf32(monkeypatch):
    """The peak is seven times as high. A CPU has none."""
    gpu = torch.device("cuda", 0)
    assert dtype_name(torch.float32, gpu) == "fp32"
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert dtype_name(torch.float32, gpu) == "tf32"
    assert dtype_name(torch.float32, torch.device("cpu")) == "fp32"
    assert dtype_name(torch.bfloat16, gpu) == "bf16"
    assert find_peak(None, "NVIDIA H100 80GB HBM3", gpu, torch.float32).flops == 494e12


def test_counted_flops_are_the_formulas(caplog):
    """On the meta device attention counts in full; the model itself is not touched."""
    model = LlamaForCausalLM(LLAMA)
    tokens = torch.zeros(2, 32, dtype=torch.long)
    counted = counted_flops(model, tokens)
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() > 1 and "embed" not in name)
    assert counted == pytest.approx(64 * (6 * matrices + 12 * 2 * 64 * 32), rel=0.03)
    assert next(model.parameters()).device.type == "cpu"
    assert all(p.grad is None for p in model.parameters())


def test_counted_flops_of_other_models():
    """A convolution: 2 × K²·C·D FLOPs per output value forward; the input needs no gradient, so as much again once."""
    conv = nn.Conv2d(3, 8, 3, padding=1)
    assert counted_flops(conv, torch.zeros(4, 3, 16, 16)) == 2 * 2 * 4 * 8 * 16 * 16 * 3 * 9


@pytest.mark.parametrize(
    ("driver", "dtype", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12), ("NVIDIA H100 80GB HBM3", "fp8", 1979e12), ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156e12), ("NVIDIA A100 80GB PCIe", "bf16", 312e12),
        ("NVIDIA GeForce RTX 4090", "bf16", 165e12),
        # not these
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None), ("NVIDIA GeForce RTX 3090 Ti", "bf16", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16", None), ("NVIDIA H100 80GB HBM3", "fp64", None), ("cpu", "fp32", None),
    ],
)  # fmt: skip
def test_peaks_are_the_datasheets_of_exactly_that_device(driver, dtype, flops):
    """Nothing falls back to another device's figure."""
    assert datasheet_peak(driver, dtype) == flops


def test_every_device_of_the_datasheet_has_a_drivers_name():
    """And the other way round."""
    assert DEVICE_NAMES.keys() == DATASHEET.keys()


def test_where_a_peak_comes_from_is_said():
    """Datasheet, configured, measured on request, or not at all."""
    found = find_peak(None, "NVIDIA H200", None, torch.bfloat16)
    assert (found.flops, found.dtype, found.source) == (989e12, "bf16", "datasheet")
    assert find_peak(5e12, "cpu", None, torch.float32).source == "configured"
    assert find_peak(None, "cpu", None, torch.float32) is None
    assert find_peak("measured", "cpu", torch.device("cpu"), torch.float32).source == "measured"


def test_a_measured_peak_is_what_a_matrix_product_reaches():
    """Repeatable within a factor of four on a shared machine, and in the range of real processors."""
    one, two = (measured_peak(torch.device("cpu"), torch.float32, seconds=0.3) for _ in range(2))
    assert 1e9 < one < 1e14
    assert 0.25 < one / two < 4


def test_memory_is_counted_by_kind():
    """What is not there yet is absent."""
    model = nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    assert counted_bytes(model, optimizer) == {"parameters": 400}
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    assert counted_bytes(model, optimizer) == {"parameters": 400, "gradients": 400, "optimizer": 800}
