"""``Trainer(callbacks=[StepscopeCallback(tokens_per_step=…)])``: Stepscope in PyTorch Lightning.

Where a phase begins comes from callback hooks where there is one, and else from the trainer's profiler: every Lightning
trainer has one, by default one that does nothing, and its ``start`` and ``stop`` are told of each wait for a batch, each
transfer and each training step. Those two methods are public, for users write profilers; the data fetcher's own hooks
are not, and are set anew in every epoch. If a version no longer tells of its batches, hooks have to do: the wait then
includes what other callbacks do between two batches.

Lightning throws the gradient norm away that clipping computes, and none is computed for our sake. Whoever has it sets
``callback.grad_norm``, for example in ``configure_gradient_clipping``; it is that step's.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Any

from stepscope.collectives import strategy_of
from stepscope.integrations import Guest, entrance, guarded
from stepscope.monitor import StepMonitor


def _lightning() -> Any:
    """Both distributions may be installed: the one that the job has imported, else the one that is there."""
    names = ("lightning.pytorch", "pytorch_lightning")
    there = [name for name in names if name in sys.modules] or [name for name in names if find_spec(name.split(".")[0])]
    return importlib.import_module(there[0] if there else names[0])


Callback: Any = _lightning().Callback


class StepscopeCallback(Guest, Callback):  # type: ignore[misc]  # Lightning's, of either distribution
    """Takes each optimizer step apart. Options are those of ``StepMonitor``; or pass a ``monitor`` that you made."""

    def __init__(self, *, monitor: StepMonitor | None = None, **monitor_options: Any) -> None:
        super().__init__(monitor=monitor, **monitor_options)
        self.grad_norm: Any = None
        self._manual = False
        self._steps = 0
        self._loss: Any = None
        self._batches = 0
        self._learning_rate: float | None = None
        self._tells_fetches = self._by_hooks = False

    # Begin and end --------------------------------------------------------------------------------------------------

    @entrance
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        # by now the strategy has moved the model to its device and wrapped it
        optimizer = next(iter(trainer.optimizers), None)
        clips = trainer.gradient_clip_val and str(trainer.gradient_clip_algorithm or "norm").endswith("norm")
        monitor = self.arrive(
            rank=trainer.global_rank, world_size=trainer.world_size, local_rank=trainer.local_rank,
            local_world_size=trainer.num_devices,
            model=pl_module, optimizer=optimizer, dtype=_autocast(trainer.precision),
            clip_norm=float(trainer.gradient_clip_val) if clips else None,
        )  # fmt: skip
        self._manual = not pl_module.automatic_optimization
        self._steps = trainer.global_step
        self._loss, self._batches = None, 0
        self._tells_fetches = self._by_hooks = False
        if strategy_of(trainer.strategy.model, trainer.world_size) != "none":
            monitor.wrap(trainer.strategy.model, optimizer)
        self._listen(trainer, monitor)
        self._surround(trainer, monitor)

    @entrance
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.depart()

    @entrance
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.depart()  # then nobody calls teardown

    def _surround(self, trainer: Any, monitor: StepMonitor) -> None:
        """Time what has no hooks."""
        loop = trainer.fit_loop.epoch_loop
        saving, waiting = monitor.phase("checkpoint"), monitor.phase("data_wait")
        for owner, name in ((trainer, "save_checkpoint"), (trainer.strategy, "remove_checkpoint")):
            self.around(owner, name, saving.__enter__, lambda: saving.__exit__(None, None, None))
        # makes the loader's iterator, which starts its workers
        self.around(loop, "on_run_start", waiting.__enter__, lambda: waiting.__exit__(None, None, None))
        # Before each batch, rank 0 tells the others whether it was terminated, and they wait for it: what they wait here
        # they do not wait in the all-reduce. No gradients go, so it is not a lap's end.
        self.around(
            loop, "_broadcast_sigterm_tensor", lambda: monitor.enter("allreduce"), lambda: monitor.enter("other")
        )

    # What the profiler is told --------------------------------------------------------------------------------------

    def _listen(self, trainer: Any, monitor: StepMonitor) -> None:
        profiler = trainer.profiler
        start, stop = profiler.start, profiler.stop
        scopes = {"train_dataloader_next": monitor.phase("data_wait"), "batch_to_device": monitor.phase("h2d")}

        def began(action: str) -> None:
            if scope := scopes.get(action):
                if trainer.training:  # validation moves batches as well
                    self._tells_fetches |= action == "train_dataloader_next"
                    scope.__enter__()
            elif action == "training_step":
                monitor.enter("forward")
            elif action == "on_train_end":
                monitor.flush()  # the checkpoint callbacks, which come last, are through

        def ended(action: str) -> None:
            if scope := scopes.get(action):
                if trainer.training:
                    scope.__exit__(None, None, None)
            elif action == "optimizer_step":
                monitor.enter("forward" if self._manual else "other")

        def told_start(action_name: str) -> None:
            action = action_name.rpartition(".")[2]
            if action in _STARTS and (action != "on_train_end" or action_name.startswith("[Strategy]")):
                self.attempt(began, action)
            start(action_name)

        def told_stop(action_name: str) -> None:
            stop(action_name)
            action = action_name.rpartition(".")[2]
            if action in _STOPS:
                self.attempt(ended, action)

        self.replace(profiler, "start", told_start)
        self.replace(profiler, "stop", told_stop)

    # Hooks ----------------------------------------------------------------------------------------------------------

    @guarded
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._by_hooks = not self._tells_fetches
        if self._by_hooks:
            self.enter("forward")

    @guarded
    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.enter("optimizer")

    @guarded
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self.enter("backward")

    @guarded
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self.monitor is not None:
            self.monitor.leave_backward()
        if self._manual:  # still within training_step
            self.enter("forward")

    @guarded
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self._learning_rate = float(optimizer.param_groups[0]["lr"])  # before its scheduler moves it on
        self.enter("optimizer")

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.enter("other")
        self._add_loss(outputs)
        step = trainer.global_step
        if step > self._steps:
            self._step_done(step, 1 if self._manual else trainer.accumulate_grad_batches)
        if self._by_hooks:
            self.enter("data_wait")

    @guarded
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._by_hooks:
            self.enter("other")

    @guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._by_hooks:
            self.enter("data_wait")

    # Inside ---------------------------------------------------------------------------------------------------------

    def _add_loss(self, outputs: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._loss = loss if self._loss is None else self._loss + loss
            self._batches += 1

    def _step_done(self, step: int, window: int) -> None:
        """Each batch's loss is its part already of a full ``window``; the last one of an epoch may not be full."""
        loss = self._loss
        if loss is not None and self._batches != window:
            loss = loss * (window / self._batches)
        if self.monitor is not None:
            self.monitor.step_done(loss=loss, grad_norm=self.grad_norm, learning_rate=self._learning_rate, step=step)
        self._steps, self._loss, self._batches, self.grad_norm = step, None, 0, None


_STARTS = {"train_dataloader_next", "batch_to_device", "training_step", "on_train_end"}
_STOPS = {"train_dataloader_next", "batch_to_device", "optimizer_step"}


def _autocast(precision: str) -> Any:
    """The dtype of the matrix products, where it is not that of the parameters."""
    import torch

    return {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(str(precision))
