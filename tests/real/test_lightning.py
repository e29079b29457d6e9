"""The Lightning callback, in trainings that Lightning runs."""

import importlib.util
import time
from pathlib import Path

import pytest

from monitor_page import Scrape, fail, slept
from stepscope.phases import PHASES
from stepscope.timeline import Recorder

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="Lightning is not installed"),
    # Lightning's and PyTorch's own, and advice about loaders' workers
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
WORKER = Path(__file__).with_name("lightning_worker.py")


@pytest.fixture
def env(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STEPSCOPE_METRICS_PORT", "0")


@pytest.fixture
def fit(env, tmp_path):
    """Fit a tiny model whose parts take the given milliseconds; gives the trainer and the page at the training's end."""
    import lightning.pytorch as pl
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    from stepscope.integrations.lightning import StepscopeCallback

    def run(steps=12, ms=None, manual=False, callbacks=(), validate=False, options=None, **trainer_options):
        ms = {"data_wait": 0, "forward": 0, "validation": 0, "save": 0, **(ms or {})}

        class Numbers(Dataset):
            def __len__(self):
                return 4096

            def __getitem__(self, index):
                time.sleep(ms["data_wait"] / 1000)
                return torch.full((16,), index % 7 / 7)

        class Model(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(16, 16)
                self.automatic_optimization = not manual

            def training_step(self, batch, batch_idx):
                time.sleep(ms["forward"] / 1000)
                loss = self.layer(batch).square().mean()
                if manual:
                    optimizer = self.optimizers()
                    self.manual_backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                return {"loss": loss}

            def validation_step(self, batch, batch_idx):
                time.sleep(ms["validation"] / 1000)

            def on_save_checkpoint(self, checkpoint):
                time.sleep(ms["save"] / 1000)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.25)

        stepscope = StepscopeCallback(**({"tokens_per_step": 4, "flops_per_step": 1e6} if options is None else options))
        seen = {}

        class Outside(pl.Callback):
            """Its own clock, and a look at the page before the monitor is closed."""

            def on_train_epoch_start(self, trainer, pl_module):
                seen.setdefault("began", time.perf_counter())

            def on_train_end(self, trainer, pl_module):
                seen["wall"] = time.perf_counter() - seen["began"]

            def on_fit_end(self, trainer, pl_module):
                if stepscope.monitor is not None:
                    seen["page"] = Scrape(stepscope.monitor)

        trainer = pl.Trainer(
            callbacks=[stepscope, *callbacks, Outside()], accelerator="cpu", max_steps=steps, logger=False,
            default_root_dir=tmp_path, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
            **{"enable_checkpointing": False, **trainer_options},
        )  # fmt: skip
        loader = DataLoader(Numbers(), batch_size=1)
        trainer.fit(Model(), loader, DataLoader(torch.zeros(2, 16)) if validate else None)
        trainer.stepscope = stepscope
        return trainer, seen.get("page"), seen["wall"]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them wake up late on a busy machine
    yield run
    torch.set_num_threads(threads)


def test_each_phase_is_told_from_the_others_and_all_add_up(fit):
    """A slow dataset is data_wait, a slow training step forward, saving checkpoint, validation other; Σ = wall by an
    outside clock."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    saving = ModelCheckpoint(every_n_train_steps=6, save_top_k=-1)
    _, page, wall = fit(
        ms={"data_wait": 30, "forward": 20, "validation": 50, "save": 200}, validate=True, val_check_interval=6,
        callbacks=[saving], enable_checkpointing=True,
    )  # fmt: skip
    assert page.value("training_steps_total") == 12
    assert slept(page.phase("data_wait"), 12 * 0.030)
    assert slept(page.phase("forward"), 12 * 0.020)
    assert slept(page.phase("checkpoint"), 2 * 0.200)
    assert slept(page.phase("other"), 2 * 2 * 0.050)
    assert all(page.phase(phase) > 0 for phase in ("backward", "optimizer", "h2d"))
    assert sum(page.phase(phase) for phase in PHASES) == pytest.approx(wall, rel=0.01)


def test_the_run_is_described(fit):
    """Loss, learning rate and the trainer's global step are published; a gradient norm only if somebody has it."""
    trainer, page, _ = fit(steps=5)
    assert page.value("training_loss") > 0
    assert page.value("training_learning_rate") == 0.25
    assert page.steps == [1, 2, 3, 4, 5]
    assert trainer.global_step == 5
    assert page.value("training_gradient_norm") is None


def test_a_gradient_norm_that_somebody_has_is_published(fit):
    """It is set on the callback, and belongs to the step in which it was."""
    import lightning.pytorch as pl

    class Clipper(pl.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            trainer.callbacks[0].grad_norm = 3.0

    _, page, _ = fit(steps=3, callbacks=[Clipper()], gradient_clip_val=1.0)
    assert page.value("training_gradient_norm") == 3.0
    assert page.value("training_gradient_clipped_total") == 3


def test_accumulation_counts_optimizer_steps(fit):
    """Four batches make one step, and its loss is their mean."""
    _, page, wall = fit(steps=3, accumulate_grad_batches=4, ms={"forward": 10})
    assert page.value("training_steps_total") == 3
    assert slept(page.phase("forward"), 12 * 0.010)
    assert 0.01 < page.value("training_loss") < 1
    assert sum(page.phase(phase) for phase in PHASES) == pytest.approx(wall, rel=0.02)


def test_manual_optimization_is_taken_apart_as_well(fit):
    """Its backward and optimizer lie within training_step."""
    _, page, _ = fit(steps=5, manual=True, ms={"forward": 10})
    assert page.value("training_steps_total") == 5
    assert slept(page.phase("forward"), 5 * 0.010)
    assert page.phase("backward") > 0
    assert page.phase("optimizer") > 0


def test_without_the_profilers_word_hooks_tell_the_wait(fit, monkeypatch):
    """A version that no longer tells of its batches still has data_wait, from one batch's end to the next one's start."""
    from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

    monkeypatch.setattr(_TrainingEpochLoop, "_on_before_fetch", lambda self: None)
    monkeypatch.setattr(_TrainingEpochLoop, "_on_after_fetch", lambda self: None)
    _, page, _ = fit(steps=6, ms={"data_wait": 30, "validation": 60}, validate=True, val_check_interval=3)
    assert slept(page.phase("data_wait"), 5 * 0.030)
    assert slept(page.phase("other"), 2 * 0.060)


@pytest.mark.parametrize("broken", ["mark", "done"])
def test_a_broken_recorder_stops_no_training(fit, monkeypatch, broken):
    """Whatever raises within the monitor, all steps are trained."""

    monkeypatch.setattr(Recorder, broken, fail)
    trainer, page, _ = fit(steps=4)
    assert trainer.global_step == 4
    assert page.value("stepscope_errors_total") > 0


def test_a_broken_callback_stops_no_training_and_leaves_no_trace(fit, monkeypatch):
    """The monitor's own methods raise; the error is counted once, and the trainer has its methods back afterwards."""
    from stepscope import StepMonitor

    monkeypatch.setattr(StepMonitor, "enter", fail)
    monkeypatch.setattr(StepMonitor, "step_done", fail)
    trainer, page, _ = fit(steps=4)
    assert trainer.global_step == 4
    assert page.value("stepscope_errors_total", part="monitor") == 1
    assert not {"start", "stop"} & vars(trainer.profiler).keys()
    assert "save_checkpoint" not in vars(trainer)


def test_options_that_cannot_be_meant_stop_no_training(fit, caplog):
    """They are logged, and nothing is published."""
    trainer, page, _ = fit(steps=2, options={"no_such_option": 1})
    assert trainer.global_step == 2
    assert page is None
    assert "no_such_option" in caplog.text


def test_a_monitor_that_was_passed_stays_open(env, fit):
    """Who made it closes it, and may have it measure what follows."""
    from stepscope import StepMonitor

    with StepMonitor.from_env(flops_per_step=1.0) as monitor:
        fit(steps=3, options={"monitor": monitor})
        assert Scrape(monitor).value("training_steps_total") == 3


def test_a_monitor_and_options_for_one_are_too_much(env):
    """Options of a monitor that is already made would do nothing."""
    from stepscope import StepMonitor
    from stepscope.integrations.lightning import StepscopeCallback

    with StepMonitor.from_env(flops_per_step=1.0) as monitor, pytest.raises(ValueError, match="tokens_per_step"):
        StepscopeCallback(monitor=monitor, tokens_per_step=4)


def test_the_slow_rank_and_its_phase_are_named_under_ddp(train):
    """First 60 ms in rank 1's training step; then after rank 0's step, where Lightning's own broadcast makes the other
    one wait."""
    run = train(2, worker=WORKER, steps=50, slow=[(1, "forward", 0, 24, 60), (0, "other", 25, 49, 60)])
    run.wait_for_referee(49)
    total = run.value("training_critical_path_seconds_total")
    for rank, phase in ((1, "forward"), (0, "other")):
        late = run.value("training_late_seconds_total", rank=str(rank), phase=phase)
        assert late > max(0.3 * total, 23 * 0.055)
        assert late > 0.9 * run.value("training_late_seconds_total", rank=str(rank))
        assert run.phases(1 - rank)["allreduce"] > 23 * 0.055
