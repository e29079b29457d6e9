"""What a step of a PyTorch model costs, and what its device can do at most: the two sides of MFU."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

from stepscope.metrics import Peak
from stepscope.mfu import datasheet_peak, transformer_flops_per_token

DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32", "torch.float8_e4m3fn": "fp8"}
_CONFIG_NAMES = {
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "width": ("hidden_size", "n_embd"),
}
"""What models call these in their ``config``: Hugging Face's newer and older names."""


@dataclass(frozen=True, kw_only=True)
class ModelFlops:
    """FLOPs of one training step, forward and backward, per token or as a whole; and by which convention."""

    per_token: float = 0.0
    per_step: float = 0.0
    convention: str

    def of(self, tokens: float) -> float:
        return self.per_step + self.per_token * tokens


def parameter_count(model: Any) -> int | None:
    """Of the whole model, even where its parameters are sharded (FSDP2, DeepSpeed); None where nobody knows, under FSDP1."""
    return None if _flattened(model) else sum(map(_size, model.parameters()))


def _size(parameter: Any) -> int:
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())  # DeepSpeed leaves 0 numbers on this rank


def _flattened(model: Any) -> bool:
    """FSDP1 shows a rank its own shard alone."""
    return any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())


def decoder_flops(model: Any, sequence_length: int | None) -> ModelFlops | None:
    """By the formula for decoder transformers; None for a model that does not say that it is one.

    Models with experts or an encoder do not follow the formula. A frozen parameter costs 4 FLOPs per token instead of 6: its
    own gradient is not computed.
    """
    config = getattr(getattr(model, "module", model), "config", None)
    size = {key: _one_of(config, names) for key, names in _CONFIG_NAMES.items()}
    experts = _one_of(config, ("num_local_experts", "num_experts", "n_routed_experts"))
    if (
        not all(isinstance(value, int) for value in size.values())
        or experts
        or getattr(config, "is_encoder_decoder", False)
        or _flattened(model)
    ):
        return None
    whole, trained = (sum(map(_size, some)) for some in (model.parameters(), filter(_trained, model.parameters())))
    parameters = (2 * whole + trained) / 3
    which = "all parameters" if trained == whole else "all parameters, 4 for each that is frozen"
    if sequence_length is None:
        return ModelFlops(per_token=6.0 * parameters, convention=f"6N, {which}, without attention")
    given = _one_of(config, ("head_dim",))
    head_dim = given if isinstance(given, int) else size["width"] / size["heads"]
    return ModelFlops(
        per_token=transformer_flops_per_token(
            parameters=parameters,
            layers=size["layers"],
            heads=size["heads"],
            head_dim=head_dim,
            sequence=sequence_length,
        ),
        convention=f"6N + 12·L·H·Q·T (PaLM), {which}, attention not halved",
    )


def _trained(parameter: Any) -> bool:
    return bool(parameter.requires_grad)


def _one_of(config: Any, names: tuple[str, ...]) -> Any:
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def counted_flops(model: Any, *inputs: Any) -> float:
    """FLOPs of one forward and backward of ``model`` on inputs of this shape, counted on the meta device.

    Nothing is computed and no device memory is taken. Attention counts in full, as in the PaLM convention; what has no
    formula in ``torch.utils.flop_counter`` (custom kernels) counts as nothing. Activation checkpointing must be off, else what
    it computes again is counted again. For models beyond ``decoder_flops``.
    """
    from torch.utils.flop_counter import FlopCounterMode

    shadow = copy.deepcopy(getattr(model, "module", model)).to("meta")
    with FlopCounterMode(display=False) as counter:
        output = shadow(*(value.to("meta") if hasattr(value, "to") else value for value in inputs))
        _first_tensor(output).sum().backward()
    return float(counter.get_total_flops())


def _first_tensor(output: Any) -> Any:
    from torch.utils._pytree import tree_leaves

    return next(leaf for leaf in tree_leaves(output) if getattr(leaf, "requires_grad", False))


def measured_peak(device: Any, dtype: Any, seconds: float = 1.0) -> float:
    """FLOP/s of a square matrix product on this device: what a kernel reaches, for devices without a datasheet.

    The best of many tries, so that others on a shared machine hardly lower it; a product small enough for that.
    """
    import torch

    size = 8192 if is_cuda(device) else 768
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def wait() -> None:
        if a.is_cuda:
            torch.cuda.synchronize(device)

    best = float("inf")
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        wait()
        began = time.perf_counter()
        torch.mm(a, b)
        wait()
        best = min(best, time.perf_counter() - began)
    return 2.0 * size**3 / best


def is_cuda(device: Any) -> bool:
    """None and what is no device are a CPU."""
    return getattr(device, "type", "cpu") == "cuda"


def dtype_name(dtype: Any, device: Any = None) -> str:
    """``bf16`` for ``torch.bfloat16``, and so on; ``tf32`` for ``torch.float32`` on a GPU that may multiply in it."""
    name = "unknown" if dtype is None else DTYPES.get(str(dtype), str(dtype).removeprefix("torch."))
    return "tf32" if name == "fp32" and is_cuda(device) and _tf32() else name


def _tf32() -> bool:
    import torch

    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # set by the newer of two interfaces, which must not be mixed
        return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"


def find_peak(wanted: float | str | None, device_name: str, device: Any, dtype: Any) -> Peak | None:
    """The peak that MFU divides by. ``wanted`` is FLOP/s, ``measured``, or None for the datasheet's, if there is one.

    Raises ``ValueError`` for anything else.
    """
    name = dtype_name(dtype, device)
    if wanted == "measured":
        return Peak(flops=measured_peak(device, dtype), dtype=name, source="measured")
    if wanted is not None:
        if isinstance(wanted, str) or not wanted > 0:
            raise ValueError(f"peak={wanted!r}: give FLOP/s, such as 989e12, or 'measured', or leave it out")
        return Peak(flops=float(wanted), dtype=name, source="configured")
    flops = datasheet_peak(device_name, name)
    return None if flops is None else Peak(flops=flops, dtype=name, source="datasheet")
