"""What training holds in memory on this rank: counted from the tensors, and as the CUDA allocator sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def tensor_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of this rank's own parts: of a sharded tensor (DTensor) its local shard."""
    local = (tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors)
    return sum(part.numel() * part.element_size() for part in local)


def counted_bytes(model: Any, optimizer: Any = None) -> dict[str, float]:
    """``parameters``, ``gradients`` and ``optimizer`` (state tensors beyond a scalar), each only where there is any."""
    parameters = list(model.parameters())
    states = [value for state in (optimizer.state.values() if optimizer else ()) for value in state.values()]
    found = {
        "parameters": tensor_bytes(parameters),
        "gradients": tensor_bytes(p.grad for p in parameters if p.grad is not None),
        "optimizer": tensor_bytes(value for value in states if hasattr(value, "numel") and value.numel() > 1),
    }
    return {kind: float(size) for kind, size in found.items() if size}


def allocator_bytes(torch: Any, device: Any) -> dict[str, float]:
    """``allocated``, ``reserved`` and ``peak`` (largest allocated so far) of a CUDA device."""
    return {
        "allocated": float(torch.cuda.memory_allocated(device)),
        "reserved": float(torch.cuda.memory_reserved(device)),
        "peak": float(torch.cuda.max_memory_allocated(device)),
    }
