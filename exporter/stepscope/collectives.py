"""Tells a rank's own backward from its waiting in gradient collectives, under DDP and FSDP2.

Autograd runs the callbacks that were queued during a backward when all gradients of this rank are ready, in the order
in which they were queued. DDP and FSDP2 queue theirs to wait for their collectives there. Ours is queued before theirs,
by the first gradient, so it marks the moment when the last local gradient is ready; and it queues another one, which
comes after theirs and marks the collectives' exit. This costs two Python calls per backward, leaves users'
communication hooks alone, and holds for ``no_sync``, ``static_graph`` and ``find_unused_parameters``
(docs/decisions/0003).

FSDP2 gathers parameters before each block, and scatters gradients after it: the waits inside are marked as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from stepscope.phases import ALLREDUCE, BACKWARD
from stepscope.timeline import ALL_GATHER, EXIT, POP, PUSH, REDUCE_SCATTER, Recorder


def strategy_of(model: Any, world_size: int) -> str:
    """``ddp``, ``fsdp``, ``hsdp`` (sharded within, replicated across), or ``none``; ``partial`` where the collectives join
    some of the ranks only, as beside tensor or pipeline parallelism."""
    if hasattr(model, "require_backward_grad_sync") and hasattr(model, "no_sync"):
        return "ddp" if model.process_group.size() == world_size else "partial"
    groups = list(fsdp_groups(model))
    if not groups:
        return "none"
    if any(getattr(group, "_is_hsdp", False) for group in groups):
        return "hsdp"
    whole = all(group.mesh_info.shard_mesh_size == world_size for group in groups)
    return "fsdp" if whole else "partial"


class Collectives:
    """Marks one model's backward. ``left`` is called after each backward, and ``autocast`` in the first forward, with the
    dtype of matrix products there, or None without it.

    ``otherwise`` is the mark at the end of a backward without a collective. A failure here is told to ``failed``, and
    costs the split, not the training.
    """

    def __init__(
        self,
        model: Any,
        strategy: str,
        recorder: Recorder,
        otherwise: int,
        left: Callable[[], None],
        autocast: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        from torch.autograd import Variable

        self._queue = Variable._execution_engine.queue_callback
        self._recorder, self._otherwise, self._left, self._failed = recorder, otherwise, left, failed
        self._groups = list(fsdp_groups(model))
        self._model = model if strategy in ("ddp", "partial") else None
        self._reduces = True
        self._waits_for = REDUCE_SCATTER if self._groups else ALLREDUCE
        self._in_backward = False
        self._hook = model.register_forward_hook(Guarded(self._forward_ended, self._fail))
        self._autocast: Callable[[Any], None] | None = autocast
        self._device_type = next((parameter.device.type for parameter in model.parameters()), "cpu")
        self._first = Guarded(self._first_gradient, self._fail)
        self._timed = [timed for group in self._groups for timed in _time_waits(group, recorder)]

    def detach(self) -> None:
        """Leave the model as it was."""
        self._hook.remove()
        for group, name, own in self._timed:
            if own is None:
                delattr(group, name)
            else:
                setattr(group, name, own)
        self._timed = []

    def _fail(self, error: Exception) -> None:
        self.detach()
        self._failed(error)

    def _forward_ended(self, module: Any, inputs: Any, output: Any) -> None:
        if self._autocast:
            tell, self._autocast = self._autocast, None
            tell(_autocast_dtype(self._device_type))
        self._in_backward = False  # a backward that raised left it set
        self._reduces = self._synchronizes()  # DDP decides in forward
        for tensor in _tensors(output):
            if tensor.grad_fn is not None:
                _hook_first(tensor, self._first)

    def _first_gradient(self, gradient: Any) -> None:
        if not self._in_backward:
            self._in_backward = True
            self._recorder.mark(BACKWARD)
            self._queue(Guarded(self._ready, self._fail))

    def _ready(self) -> None:
        """All gradients of this rank are there; the collectives' own callbacks run after this one."""
        if self._groups:
            self._reduces = self._synchronizes()  # FSDP2 decides in backward
        if self._reduces:
            self._recorder.mark(self._waits_for)
        self._queue(Guarded(self._done, self._fail))

    def _done(self) -> None:
        self._in_backward = False
        self._recorder.mark(EXIT if self._reduces else self._otherwise)
        self._left()

    def _synchronizes(self) -> bool:
        """False while gradients are accumulated without a collective (``no_sync``), and where there is none."""
        if self._groups:
            return any(group.reduce_grads for group in self._groups)
        return self._model is not None and bool(self._model.require_backward_grad_sync)


def _autocast_dtype(device_type: str) -> Any:
    import torch

    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


class Guarded:
    """Calls ``action``; PyTorch would raise in the training loop whatever its hooks raise. It stays behind where the
    model is pickled or copied."""

    def __init__(self, action: Callable[..., None], failed: Callable[[Exception], None]) -> None:
        self._action, self._failed = action, failed

    def __call__(self, *args: Any) -> None:
        try:
            self._action(*args)
        except Exception as error:
            self._failed(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Idle, ()


class _Idle:
    """What a copy of a watched model has in a hook's place."""

    def __call__(self, *args: Any) -> None: ...


def _hook_first(tensor: Any, hook: Callable[[Any], None]) -> None:
    """FSDP2 has a hook on the same tensor by now, and queues its callback there: ours must come before it."""
    handle = tensor.register_hook(hook)
    tensor._backward_hooks.move_to_end(handle.id, last=False)


def _tensors(output: Any) -> Iterable[Any]:
    """The tensors of a forward's output: in whatever PyTorch knows as a tree, and in dataclasses, at any depth."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            for part in fields(leaf):
                yield from _tensors(getattr(leaf, part.name))


def fsdp_groups(model: Any) -> Iterable[Any]:
    """FSDP2's parameter groups: those of every module that ``fully_shard`` was applied to."""
    for module in model.modules() if hasattr(model, "modules") else ():
        if hasattr(module, "_get_fsdp_state"):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
            yield from (group for group in groups if group is not None)


_WAITS = {"wait_for_unshard": ALL_GATHER, "_wait_for_post_backward": REDUCE_SCATTER}
"""Where a parameter group makes the compute stream wait, by the name of its method."""
_BLOCKING = {"unshard": ALL_GATHER, "_reduce_scatter_comm": REDUCE_SCATTER}
"""Where it runs the collective itself. On a CPU these block; on CUDA they only launch, on streams of their own."""


def _time_waits(group: Any, recorder: Recorder) -> Iterable[tuple[Any, str, Any]]:
    """Time the group's waits; yields what the group had of its own there, to be put back."""
    blocking = _BLOCKING if group.device.type == "cpu" else {}
    for name, code in {**_WAITS, **blocking}.items():
        action = getattr(group, name, None)
        if action is not None:
            own = vars(group).get(name)
            setattr(group, name, _Timed(action, recorder, code))
            yield group, name, own


class _Timed:
    """Calls ``action`` with its time marked as a collective's."""

    def __init__(self, action: Any, recorder: Recorder, code: int) -> None:
        self._action, self._recorder, self._code = action, recorder, code

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._recorder.mark(PUSH + self._code)
        try:
            return self._action(*args, **kwargs)
        finally:
            self._recorder.mark(POP)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._action, name)
