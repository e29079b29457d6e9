"""The Hugging Face callback, in trainings that ``Trainer`` runs."""

import importlib.util
import time

import pytest

from monitor_page import Scrape, fail, slept
from stepscope.phases import PHASES
from stepscope.timeline import Recorder

pytestmark = [
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("transformers", "accelerate")),
        reason="transformers and accelerate are not installed",
    ),
    # their own and PyTorch's, and advice about pinned memory
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture
def train(monkeypatch, tmp_path):
    """Train a tiny GPT-2 whose parts take the given milliseconds; gives the trainer and the page at the training's end."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STEPSCOPE_METRICS_PORT", "0")
    import torch
    from torch.utils.data import Dataset
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    from stepscope.integrations.transformers import StepscopeCallback

    class Slow(torch.autograd.Function):
        """Its backward takes time."""

        @staticmethod
        def forward(context, x, seconds):
            context.seconds = seconds
            return x.view_as(x)

        @staticmethod
        def backward(context, gradient):
            time.sleep(context.seconds)
            return gradient, None

    class Tokens(Dataset):
        def __init__(self, seconds, length=4096):
            self.seconds, self.length = seconds, length

        def __len__(self):
            return self.length

        def __getitem__(self, index):
            time.sleep(self.seconds)
            ids = torch.arange(index, index + 16) % 64
            return {"input_ids": ids, "labels": ids}

    def run(steps=12, ms=None, options=None, resume=None, **arguments):
        ms = {"data_wait": 0, "forward": 0, "backward": 0, "evaluation": 0, "save": 0, **(ms or {})}
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))

        def drag(module, args, output):
            if not module.training:
                return output
            time.sleep(ms["forward"] / 1000)
            return Slow.apply(output, ms["backward"] / 1000)

        model.transformer.wte.register_forward_hook(drag)
        stepscope = StepscopeCallback(**({"tokens_per_step": 16} if options is None else options))
        seen = {}

        class Outside(TrainerCallback):
            """Its own clock, and a look at the page before the monitor is closed."""

            def on_epoch_begin(self, args, state, control, **kwargs):
                seen.setdefault("began", time.perf_counter())

            def on_log(self, args, state, control, logs=None, **kwargs):
                if "train_runtime" in logs:
                    seen["wall"] = time.perf_counter() - seen["began"]
                    if stepscope.monitor is not None:
                        seen["page"] = Scrape(stepscope.monitor)

        class Slowed(Trainer):
            saved = 0.0
            """Seconds that saving took, by its own clock: a disk that others use may take its time."""

            def _save_checkpoint(self, *args, **kwargs):
                began = time.perf_counter()
                time.sleep(ms["save"] / 1000)
                super()._save_checkpoint(*args, **kwargs)
                self.saved += time.perf_counter() - began

        arguments = TrainingArguments(
            tmp_path, max_steps=steps, per_device_eval_batch_size=1, report_to=[],
            disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
            **{"save_strategy": "no", "logging_steps": 1, "per_device_train_batch_size": 1, **arguments},
        )  # fmt: skip
        trainer = Slowed(
            model, arguments, train_dataset=Tokens(ms["data_wait"] / 1000),
            eval_dataset=Tokens(ms["evaluation"] / 1000, length=2), callbacks=[stepscope, Outside()],
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resume)
        return trainer, seen.get("page"), seen["wall"]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them wake up late on a busy machine
    yield run
    torch.set_num_threads(threads)


def test_each_phase_is_told_from_the_others_and_all_add_up(train):
    """A slow dataset is data_wait, slow layers forward and backward, saving checkpoint, evaluation other; Σ = wall by an
    outside clock."""
    trainer, page, wall = train(
        ms={"data_wait": 30, "forward": 20, "backward": 25, "evaluation": 50, "save": 200}, save_strategy="steps",
        save_steps=6, eval_strategy="steps", eval_steps=6,
    )  # fmt: skip
    assert page.value("training_steps_total") == 12
    assert slept(page.phase("data_wait"), 12 * 0.030)
    assert slept(page.phase("forward"), 12 * 0.020)
    assert slept(page.phase("backward"), 12 * 0.025)
    assert trainer.saved >= 2 * 0.200
    assert slept(page.phase("checkpoint"), trainer.saved)
    assert slept(page.phase("other"), 2 * 2 * 0.050)
    assert page.phase("optimizer") > 0
    assert page.phase("allreduce") == 0
    assert sum(page.phase(phase) for phase in PHASES) == pytest.approx(wall, rel=0.01)


def test_the_run_is_described(train):
    """What ``Trainer`` logs of a step is published with it, and so is its global step; FLOPs come from the model."""
    trainer, page, _ = train(steps=5, learning_rate=0.25, lr_scheduler_type="constant")
    logged = [entry for entry in trainer.state.log_history if "grad_norm" in entry][-1]
    assert page.value("training_loss") == pytest.approx(logged["loss"])
    assert page.value("training_gradient_norm") == pytest.approx(logged["grad_norm"])
    assert page.value("training_learning_rate") == 0.25
    assert page.value("training_gradient_clipped_total") == sum(
        entry.get("grad_norm", 0) > trainer.args.max_grad_norm for entry in trainer.state.log_history
    )
    assert page.value("training_model_flops_total") > 0
    assert page.steps == [1, 2, 3, 4, 5]


def test_what_is_logged_seldom_is_published_when_it_is(train):
    """All steps count; the loss is that of the last one that was logged."""
    trainer, page, _ = train(steps=5, logging_steps=3)
    assert page.value("training_steps_total") == 5
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert page.value("training_loss") == pytest.approx(logged[-1])


def test_accumulation_counts_optimizer_steps(train):
    """Four batches make one step: they are fetched at once, and each has its forward and backward."""
    _, page, wall = train(
        steps=3, gradient_accumulation_steps=4, ms={"data_wait": 10, "forward": 10, "backward": 10}
    )  # fmt: skip
    assert page.value("training_steps_total") == 3
    for phase in ("data_wait", "forward", "backward"):
        assert slept(page.phase(phase), 12 * 0.010)
    assert sum(page.phase(phase) for phase in PHASES) == pytest.approx(wall, rel=0.02)


def test_saving_at_an_epochs_end_is_checkpoint(train):
    """The flag is set after the last step then."""
    trainer, page, _ = train(
        steps=-1, num_train_epochs=2, per_device_train_batch_size=512, save_strategy="epoch", ms={"save": 100}
    )
    assert trainer.saved >= 2 * 0.100
    assert slept(page.phase("checkpoint"), trainer.saved)


def test_a_resumed_epoch_has_its_wait_although_its_loader_is_another(train, tmp_path):
    """Skipping what was trained already goes through a loader that callbacks are not shown."""
    train(steps=4, save_strategy="steps", save_steps=4)
    _, page, _ = train(steps=10, ms={"data_wait": 30}, resume=str(tmp_path / "checkpoint-4"))
    assert page.steps == [5, 6, 7, 8, 9, 10]
    assert slept(page.phase("data_wait"), 5 * 0.030)


@pytest.mark.parametrize("broken", ["mark", "done"])
def test_a_broken_recorder_stops_no_training(train, monkeypatch, broken):
    """Whatever raises within the monitor, all steps are trained."""

    monkeypatch.setattr(Recorder, broken, fail)
    trainer, page, _ = train(steps=4)
    assert trainer.state.global_step == 4
    assert page.value("stepscope_errors_total") > 0


def test_a_broken_callback_stops_no_training_and_leaves_no_trace(train, monkeypatch):
    """The monitor's own methods raise; the error is counted once, and the loader is what it was afterwards."""
    from stepscope import StepMonitor

    monkeypatch.setattr(StepMonitor, "enter", fail)
    monkeypatch.setattr(StepMonitor, "step_done", fail)
    trainer, page, _ = train(steps=4)
    assert trainer.state.global_step == 4
    assert page.value("stepscope_errors_total", part="monitor") == 1
    loader = type(trainer.callback_handler.train_dataloader)
    assert "stepscope" not in loader.__iter__.__module__
    assert not trainer.model._forward_hooks


def test_options_that_cannot_be_meant_stop_no_training(train, caplog):
    """They are logged, and nothing is published."""
    trainer, page, _ = train(steps=2, options={"no_such_option": 1})
    assert trainer.state.global_step == 2
    assert page is None
    assert "no_such_option" in caplog.text


def test_a_monitor_that_was_passed_stays_open(train):
    """Who made it closes it, and may have it measure what follows."""
    from stepscope import StepMonitor

    with StepMonitor.from_env(flops_per_step=1.0) as monitor:
        train(steps=3, options={"monitor": monitor})
        assert Scrape(monitor).value("training_steps_total") == 3
