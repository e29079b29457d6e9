"""``Trainer(callbacks=[StepscopeCallback(tokens_per_step=…)])``: Stepscope in the Hugging Face ``Trainer``.

``data_wait`` is the training loader's iteration: it collates, and it moves the batch to the device, one batch ahead.
Backward begins at the first gradient and ends with the last, as told by autograd. The optimizer lasts until
``on_step_end``, so it includes the scheduler and ``zero_grad``; clipping comes before its first hook, and is ``other``.

Loss and gradient norm are the ones that the ``Trainer`` logs: the norm is that of the step, the loss the mean since the
last time, and both are there every ``logging_steps`` only. With ``save_strategy="best"`` nobody knows before evaluation
whether it saves, and its saving is ``other``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from stepscope.integrations import Guest, entrance, guarded
from stepscope.monitor import StepMonitor

TrainerCallback: Any = importlib.import_module("transformers").TrainerCallback


class StepscopeCallback(Guest, TrainerCallback):  # type: ignore[misc]  # transformers may not be there to be checked
    """Takes each optimizer step apart. Options are those of ``StepMonitor``; or pass a ``monitor`` that you made."""

    def __init__(self, *, monitor: StepMonitor | None = None, **monitor_options: Any) -> None:
        super().__init__(monitor=monitor, **monitor_options)
        self._owed: int | None = None
        self._learning_rate: float | None = None
        self._after_batch = "other"
        self._timed = self._by_hooks = False

    # Begin and end --------------------------------------------------------------------------------------------------

    @entrance
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, optimizer = kwargs["model"], kwargs.get("optimizer")
        monitor = self.arrive(
            rank=args.process_index, world_size=args.world_size, local_rank=args.local_process_index,
            model=model, optimizer=optimizer, dtype=_autocast(args), clip_norm=args.max_grad_norm or None,
        )  # fmt: skip
        self._owed = None
        # Then all ranks add up their numbers of tokens before each step: what they wait for each other there, they do
        # not wait in the all-reduce. No gradients go, so it is not a lap's end.
        gathers = args.world_size > 1 and getattr(args, "average_tokens_across_devices", False)
        self._after_batch = "allreduce" if gathers else "other"
        self._time_batches(kwargs.get("train_dataloader"))
        self._wrap_outermost(monitor, model, optimizer)

    @entrance
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.attempt(self._settle)
        self.depart()

    def _time_batches(self, loader: Any) -> None:
        """Python looks ``__iter__`` up in the class, so the loader gets a derived one; accelerate does likewise."""
        kind = type(loader)

        def iterate(this: Any) -> Iterator[Any]:
            self._timed = True
            return _batches(kind.__iter__(this), self)

        names = {"__iter__": iterate, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        _set_class(loader, type(kind.__name__, (kind,), names))
        self.on_leaving.append(lambda: _set_class(loader, kind))

    def _wrap_outermost(self, monitor: StepMonitor, model: Any, optimizer: Any) -> None:
        """Callbacks are not shown what ``Trainer`` wraps the model in. It is the module whose forward comes first."""
        from torch import is_grad_enabled
        from torch.nn.modules.module import register_module_forward_pre_hook

        def entered(module: Any) -> None:
            if module.training and is_grad_enabled() and any(one is model for one in module.modules()):
                hook.remove()
                monitor.wrap(module, optimizer)

        hook = register_module_forward_pre_hook(lambda module, inputs: self.attempt(entered, module))
        self.on_leaving.append(hook.remove)

    # Hooks ----------------------------------------------------------------------------------------------------------

    @guarded
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._timed = False

    @guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # the first epoch of a resumed training goes through another loader, which nobody sees
        self._by_hooks = not self._timed
        self._settle()
        self.enter("forward")

    @guarded
    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.enter("forward")  # batches were all fetched before the first one

    @guarded
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer = kwargs.get("optimizer")
        if optimizer is not None:
            self._learning_rate = float(optimizer.param_groups[0]["lr"])  # before its scheduler moves it on
        self.enter("optimizer")

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._owed = state.global_step
        if not control.should_log:  # else loss and gradient norm are about to come
            self._settle()
        self._enter_next(control)

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        logs = logs or {}
        self._settle(logs.get("loss"), logs.get("grad_norm"))
        if "train_runtime" in logs and self.monitor is not None:
            self.monitor.flush()  # the loop is over; what follows loads the best model
        else:
            self._enter_next(control)

    @guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._enter_next(control)

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._enter_next(control)

    @guarded
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._enter_next(control)

    # Inside ---------------------------------------------------------------------------------------------------------

    def _enter_next(self, control: Any) -> None:
        """Between two steps ``Trainer`` logs, evaluates and saves, in this order, and takes each flag back once done."""
        if control.should_log or control.should_evaluate:
            self.enter("other")
        elif control.should_save:
            self.enter("checkpoint")
        else:
            self.enter("data_wait" if self._by_hooks else "other")

    def _settle(self, loss: Any = None, grad_norm: Any = None) -> None:
        """The step is done, once: with what was logged of it, or without."""
        if self._owed is not None and self.monitor is not None:
            step, self._owed = self._owed, None
            self.monitor.step_done(loss=loss, grad_norm=grad_norm, learning_rate=self._learning_rate, step=step)

    def before_batch(self) -> None:
        self._settle()
        self.enter("data_wait")

    def after_batch(self) -> None:
        self.enter(self._after_batch)


_set_class: Any = vars(object)["__class__"].__set__
"""accelerate's loaders have a property of that name."""


def _batches(batches: Iterator[Any], callback: StepscopeCallback) -> Iterator[Any]:
    while True:
        callback.attempt(callback.before_batch)
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            callback.attempt(callback.after_batch)
        yield batch


def _autocast(args: Any) -> Any:
    """The dtype of the matrix products, where it is not that of the parameters."""
    import torch

    return torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
