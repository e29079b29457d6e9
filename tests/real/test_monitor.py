"""The monitor in one process: what a loop calls, what is published, and what may fail."""

import copy
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import GPT2Config, GPT2LMHeadModel

from stepscope import Identity, StepMonitor
from stepscope.peers import fetch
from stepscope.phases import PHASES
from stepscope.publisher import Settings
from stepscope.timeline import HostClock

pytestmark = pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def make():
    """Monitors on free ports, closed at the end."""
    made = []

    def build(identity=None, *, port=0, sd_dir=None, **options):
        identity = identity or Identity(run="r", node="host")
        monitor = StepMonitor(identity, Settings(port=port, sd_dir=sd_dir), **options)
        made.append(monitor)
        return monitor

    yield build
    for monitor in made:
        monitor.close()


def address(monitor):
    deadline = time.monotonic() + 5
    while monitor._publisher.server is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return f"127.0.0.1:{monitor._publisher.server.port}"


def page(monitor):
    """(name, labels without those of the rank) → value."""
    families = text_string_to_metric_families(fetch(address(monitor), "/metrics").decode())
    return {
        (sample.name, *(v for k, v in sample.labels.items() if k not in ("run", "rank", "node"))): sample.value
        for family in families
        for sample in family.samples
    }


def nap(seconds):
    """Sleep, and say how long that really was: a busy machine oversleeps."""
    began = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - began


def phases(monitor):
    found = page(monitor)
    return {phase: found["training_phase_seconds_total", phase] for phase in PHASES}


def train(monitor, steps=5, batches=None, between=lambda step: None, **done):
    for step, _ in enumerate(monitor.batches(batches or range(steps))):
        with monitor.phase("forward"):
            time.sleep(0.002)
        with monitor.phase("backward"):
            time.sleep(0.004)
        with monitor.phase("optimizer"):
            time.sleep(0.001)
        monitor.step_done(**done)
        between(step)
    monitor.flush()


def test_phases_add_up_to_the_outside_clock(make):
    """Within 0.1 % over 200 steps, none negative, and next to nothing is left over in a plain loop."""
    monitor = make()
    began = time.perf_counter()
    train(monitor, steps=200)
    wall = time.perf_counter() - began
    found = phases(monitor)
    assert sum(found.values()) == pytest.approx(wall, rel=1e-3)
    assert min(found.values()) >= 0
    assert found["other"] < 0.02 * wall
    assert found["backward"] > 0.8


def test_a_pause_between_steps_is_other_and_a_checkpoint_is_a_checkpoint(make):
    """100 ms after one step, and 80 ms of saving after another."""
    monitor, slept = make(), {}

    def between(step):
        if step == 2:
            slept["other"] = nap(0.1)
        if step == 3:
            with monitor.phase("checkpoint"):
                slept["checkpoint"] = nap(0.08)

    train(monitor, between=between)
    found = phases(monitor)
    assert 0 <= found["other"] - slept["other"] < 0.005
    assert 0 <= found["checkpoint"] - slept["checkpoint"] < 0.005
    assert page(monitor)["training_checkpoints_total",] == 1


def test_waiting_for_a_batch_is_data_wait(make):
    """Making the iterator counts, too; so does a loader that raises, which the loop hears of."""

    slept = []

    def slow():
        slept.append(nap(0.05))
        yield 1
        slept.append(nap(0.03))
        yield 2
        raise OSError("the storage is gone")

    monitor = make()
    with pytest.raises(OSError, match="the storage is gone"):
        train(monitor, batches=slow())
    monitor.flush()
    assert 0 <= phases(monitor)["data_wait"] - sum(slept) < 0.01


def test_nested_phases_count_once(make):
    """The inner one has its own time, and the outer one goes on after it."""
    monitor = make()
    for _ in monitor.batches([1]):
        with monitor.phase("forward"):
            before = nap(0.01)
            with monitor.phase("h2d"):
                inner = nap(0.03)
            after = nap(0.01)
        monitor.step_done()
    monitor.flush()
    found = phases(monitor)
    assert 0 <= found["h2d"] - inner < 0.005
    assert 0 <= found["forward"] - before - after < 0.005


def test_an_exception_in_a_phase_is_the_loops_own(make):
    """It goes through, and the phase is over."""
    monitor = make()
    with pytest.raises(ZeroDivisionError), monitor.phase("forward"):
        1 / 0  # noqa: B018
    assert page(monitor)["training_current_phase", "other"] == 1


def test_an_unknown_phase_is_refused_with_those_that_there_are(make):
    """A typing error, found at once."""
    with pytest.raises(ValueError, match="no phase 'foward'; there are data_wait, h2d"):
        make().phase("foward")


def test_a_single_process_has_a_critical_path(make):
    """Its own: no rank waits for another, and dashboards work."""
    monitor = make()
    train(monitor, steps=20)
    monitor._publisher.puller.sweep()
    found = page(monitor)
    assert found["training_referee_steps_total", "complete"] == 19
    assert found["training_critical_path_seconds_total", "backward"] > 0.07
    assert found["training_late_steps_total",] == 19
    assert sum(value for key, value in found.items() if key[0] == "training_late_seconds_total") == 0


def test_the_rank_says_who_and_what_it_is(make):
    """Labels, run info, loss, learning rate, memory: what is known."""
    model = nn.Linear(100, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
    monitor = make(Identity(run="r", node="host"), model=model, tokens_per_step=64, unit="samples", clip_norm=1.0)
    monitor.wrap(model, optimizer)
    for _ in monitor.batches(range(3)):
        with monitor.phase("forward"):
            loss = model(torch.ones(4, 100)).square().sum()
        with monitor.phase("backward"):
            loss.backward()
        with monitor.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        monitor.step_done(loss=loss, grad_norm=torch.tensor(7.5))
    monitor.flush()
    found = page(monitor)
    assert found["training_loss",] == pytest.approx(loss.item())
    assert found["training_gradient_norm",] == 7.5
    assert found["training_learning_rate",] == 0.25
    assert found["training_gradient_clipped_total",] == 3
    assert found["training_tokens_total",] == 192
    kinds = {key[1]: value for key, value in found.items() if key[0] == "training_memory_bytes"}
    assert kinds == {"parameters": 4 * 1010, "gradients": 4 * 1010, "optimizer": 8 * 1010}
    info = next(key for key in found if key[0] == "training_run_info")
    assert info[1:] == ("Linear", "1010", "fp32", "1", "64", "samples", "unknown")
    assert json.loads(fetch(address(monitor), "/steps"))["run"] == "r"


def test_what_is_not_known_is_absent(make, caplog):
    """No MFU without FLOPs and a peak, no GPU, no loss; one warning says how to get MFU."""
    caplog.set_level(logging.WARNING, "stepscope")
    monitor = make(model=nn.Linear(2, 2))
    train(monitor)
    names = {key[0] for key in page(monitor)}
    assert names.isdisjoint({"training_mfu_ratio", "training_peak_flops", "training_loss", "training_gradient_norm"})
    assert not any(name.startswith("DCGM") for name in names)
    assert caplog.text.count("MFU is absent") == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_publishes_its_own_gradient_norm_and_the_first_one_the_step(make, rank):
    """As said to ``step_done``: the norm of this rank's gradients, and the number from the beginning of training."""
    monitor = make(Identity(run="r", node="host", rank=rank, world_size=2))
    train(monitor, steps=2)
    assert ("training_local_gradient_norm",) not in page(monitor)
    train(monitor, steps=1, step=5000, local_gradient_norm=torch.tensor(0.75))
    found = page(monitor)
    assert found["training_local_gradient_norm",] == 0.75
    assert found.get(("training_global_step",)) == (5000 if rank == 0 else None)


def test_where_tokens_are_not_told_mfu_is_absent_not_zero(make, caplog):
    """Neither tokens nor FLOPs, and the log says so once; told with the steps, both are there."""
    caplog.set_level(logging.WARNING, "stepscope")
    monitor = make(model=GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=11)), peak=1e12)
    train(monitor, steps=20)
    names = {key[0] for key in page(monitor)}
    assert names.isdisjoint({"training_mfu_ratio", "training_model_flops_total", "training_tokens_total"})
    assert caplog.text.count("no tokens are reported") == 1
    train(monitor, steps=2, tokens=5)
    found = page(monitor)
    assert found["training_tokens_total",] == 10
    assert found["training_model_flops_total",] > 0


def test_the_formula_of_tokens_is_not_applied_to_samples(make):
    """It would be too low by the sequence length."""
    config = GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=11)
    monitor = make(model=GPT2LMHeadModel(config), peak=1e12, tokens_per_step=4, unit="samples")
    train(monitor, steps=2)
    assert ("training_model_flops_total",) not in page(monitor)


def test_an_impossible_mfu_is_said_once(make, caplog):
    """A peak of another dtype, for example."""
    caplog.set_level(logging.WARNING, "stepscope")
    monitor = make(flops_per_step=1e12, peak=1e6, tokens_per_step=1)
    train(monitor)
    page(monitor)
    page(monitor)
    assert caplog.text.count("MFU is above 1") == 1


def test_autocast_is_seen_in_the_first_forward(make):
    """The matrix products' dtype is not the parameters': what was told wins over what is seen."""
    for told, name in ((None, "bf16"), (torch.float16, "fp16")):
        model, monitor = nn.Linear(4, 1), make(dtype=told)
        monitor.wrap(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.ones(4))
        train(monitor, steps=1)
        info = next(key for key in page(monitor) if key[0] == "training_run_info")
        assert name in info


def test_fsdps_mixed_precision_is_the_dtype(make, monkeypatch):
    """Parameters are kept in fp32, and multiplied in bf16: another peak by far."""
    groups = [SimpleNamespace(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))]
    monkeypatch.setattr("stepscope.monitor.fsdp_groups", lambda model: groups)
    monitor = make(model=nn.Linear(4, 1))
    train(monitor, steps=1)
    assert "bf16" in next(key for key in page(monitor) if key[0] == "training_run_info")


@dataclass
class Gpu:
    """A device by the type that it says."""

    type: str = "cuda"
    index: int = 0


@pytest.fixture
def gpu(monkeypatch):
    """A machine on which models are on an H100 once they were moved (``moved``), seen through the host's clock."""
    state = SimpleNamespace(moved=False, clocks=[])

    class GpuClock(HostClock):
        def __init__(self):
            super().__init__()
            state.clocks.append(self)

    monkeypatch.setattr("stepscope.monitor._device_of", lambda model: Gpu() if state.moved else torch.device("cpu"))
    monkeypatch.setattr("stepscope.monitor._uuid", lambda device: "GPU-1")
    monkeypatch.setattr("stepscope.monitor.allocator_bytes", lambda torch, device: {})
    own = {
        "_clock": lambda self, device: GpuClock() if device is not None and device.type == "cuda" else HostClock(),
        "_device_collectors": lambda self, uuid: [],
    }
    own["_device_name"] = lambda self: "NVIDIA H100 80GB HBM3" if self._on_cuda else "cpu"
    for name, action in own.items():
        monkeypatch.setattr(StepMonitor, name, action)
    return state


def test_a_model_that_comes_to_the_gpu_later_is_measured_there(make, gpu):
    """As with a model made on the meta device, and with none: the clock, the peak and the identity are the GPU's."""
    for model in (nn.Linear(4, 1), None):
        gpu.moved, gpu.clocks = False, []
        monitor = make(model=model)
        gpu.moved = True
        monitor.wrap(nn.Linear(4, 1).bfloat16())
        train(monitor, steps=2)
        found = page(monitor)
        assert len(gpu.clocks) == 1
        assert monitor._recorder.clock is gpu.clocks[0]
        assert found["training_peak_flops", "bf16", "datasheet"] == 989e12
        assert any(key[0] == "training_rank_info" and "GPU-1" in key for key in found)
        assert found["stepscope_errors_total", "monitor"] == 0


def test_once_steps_are_measured_the_clock_stays(make, gpu, caplog):
    """Stamps of two clocks cannot be compared; the log says what to do."""
    monitor = make(model=nn.Linear(4, 1))
    train(monitor, steps=2)
    gpu.moved = True
    monitor.wrap(nn.Linear(4, 1))
    train(monitor, steps=2)
    assert "after .to(device)" in caplog.text
    assert gpu.clocks == []
    assert page(monitor)["training_steps_total",] == 4


def test_mfu_is_flops_by_time_and_peak(make):
    """Configured on both sides: anybody can divide."""
    monitor = make(flops_per_step=2e6, peak=1e9, tokens_per_step=1)
    train(monitor, steps=20)
    found = page(monitor)
    assert found["training_model_flops_total",] == 20 * 2e6
    assert found["training_peak_flops", "unknown", "configured"] == 1e9
    wall = sum(phases(monitor).values())
    assert found["training_mfu_ratio",] == pytest.approx(20 * 2e6 / wall / 1e9, rel=0.01)


def test_the_current_phase_is_shown_while_it_lasts(make):
    """In a hang the culprit is the rank that is not in the all-reduce."""
    monitor = make()
    with monitor.phase("backward"):
        before = time.time()
        time.sleep(0.05)
        found = page(monitor)
    assert found["training_current_phase", "backward"] == 1
    assert found["training_current_phase", "allreduce"] == 0
    assert found["training_current_phase_started_timestamp_seconds",] == pytest.approx(before, abs=0.04)


def test_a_loss_that_is_no_number_is_counted(make):
    """Training goes on, and so does the monitor."""
    monitor = make()
    train(monitor, loss=torch.tensor(float("nan")))
    found = page(monitor)
    assert found["training_nonfinite_steps_total",] == 5
    assert found["training_loss",] != found["training_loss",]


def test_a_loss_is_what_it_was_when_it_was_said(make):
    """Although the loop changes the tensor in place."""
    monitor, loss = make(), torch.tensor(2.0)
    for _ in monitor.batches([1]):
        monitor.step_done(loss=loss)
        loss += 1000
    monitor.flush()
    assert page(monitor)["training_loss",] == 2.0


def test_a_loss_that_is_no_single_number_is_counted_and_absent(make):
    """One per sample, or a text: all else is published."""
    monitor = make()
    train(monitor, loss=torch.ones(4), grad_norm="large")
    found = page(monitor)
    assert ("training_loss",) not in found
    assert found["training_steps_total",] == 5
    assert found["stepscope_errors_total", "loss"] == 10


def test_numbers_may_be_tensors(make):
    """Tokens counted from a mask, a learning rate that is kept as a tensor, a step counter on the device."""
    monitor = make()
    said = {"tokens": torch.tensor(7), "learning_rate": torch.tensor(0.125), "step": torch.tensor(41)}
    train(monitor, steps=1, **said)
    found = page(monitor)
    assert found["training_tokens_total",] == 7
    assert found["training_learning_rate",] == 0.125
    assert found["training_global_step",] == 41


@pytest.mark.parametrize("name", ["tokens", "learning_rate", "step"])
def test_a_number_that_is_none_costs_itself_alone(make, name):
    """The page is served, the steps are counted, and the failure as well."""
    monitor = make(tokens_per_step=3)
    train(monitor, steps=2, **{name: "many"})
    found = page(monitor)
    assert found["training_steps_total",] == 2
    assert found["training_tokens_total",] == 6
    assert found["stepscope_errors_total", "loss"] == 2


def test_the_optimizers_memory_is_found_behind_many_micro_batches(make):
    """Its state is there after the first step; backward is left long before."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    monitor = make(model=model)
    monitor.wrap(model, optimizer)
    for _ in monitor.batches(range(2)):
        for _ in range(12):
            with monitor.phase("backward"):
                model(torch.ones(4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step_done()
    monitor.flush()
    held = {key[1]: value for key, value in page(monitor).items() if key[0] == "training_memory_bytes"}
    assert held == {"parameters": 40, "gradients": 40, "optimizer": 80}


def test_a_watched_model_can_be_saved_and_copied(make, tmp_path):
    """The hook stays behind; the copy trains without a monitor."""
    model = nn.Linear(4, 1)
    monitor = make(model=model)
    monitor.wrap(model)
    torch.save(model, tmp_path / "model.pt")
    for other in (torch.load(tmp_path / "model.pt", weights_only=False), copy.deepcopy(model)):
        other(torch.ones(2, 4)).sum().backward()
        assert other.weight.grad is not None
    assert page(monitor)["training_phase_seconds_total", "backward"] == 0


def test_hooks_do_not_pile_up_on_a_parameter_that_the_model_returns(make):
    """Such as a temperature."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = nn.Linear(4, 1), nn.Parameter(torch.ones(()))

        def forward(self, x):
            return {"loss": (self.layer(x) * self.scale).sum(), "scale": self.scale}

    model = Model()
    monitor = make(model=model)
    monitor.wrap(model)
    for _ in monitor.batches(range(20)):
        model(torch.ones(2, 4))["loss"].backward()
        monitor.step_done()
    monitor.flush()
    assert not model.scale._backward_hooks
    assert page(monitor)["training_phase_seconds_total", "backward"] > 0


@dataclass
class Inner:
    parts: list


@dataclass(slots=True)
class Output:
    inner: Inner
    note: str = ""


def test_outputs_of_any_shape_are_found(make):
    """A dataclass with slots, that holds one that holds a list."""

    class Model(nn.Linear):
        def forward(self, x):
            return Output(Inner([super().forward(x).sum()]))

    model = Model(4, 1)
    monitor = make(model=model)
    monitor.wrap(model)
    for _ in monitor.batches(range(5)):
        model(torch.ones(2, 4)).inner.parts[0].backward()
        monitor.step_done()
    monitor.flush()
    found = page(monitor)
    assert found["training_phase_seconds_total", "backward"] > 0
    assert found["stepscope_errors_total", "collectives"] == 0


def test_a_model_without_parameters_is_watched_as_well(make):
    """No device, no dtype, nothing to count."""
    monitor = make(model=nn.ReLU())
    train(monitor)
    assert page(monitor)["training_steps_total",] == 5


def test_a_closed_monitor_keeps_nothing(make):
    """The loop may go on with it."""
    monitor = make()
    monitor.close()
    train(monitor, steps=100)
    assert len(monitor._recorder.stream) == 0


# What may fail --------------------------------------------------------------------------------------------------------


class Broken(HostClock):
    """Fails after so many stamps."""

    def __init__(self, good):
        super().__init__()
        self.good = good

    def stamp(self):
        self.good -= 1
        if self.good < 0:
            raise RuntimeError("the driver is gone")
        return time.perf_counter()


def test_a_monitor_that_breaks_lets_training_go_on(make, caplog):
    """Logged once, counted; all steps of the loop are run; what was measured before stays published."""
    monitor = make(clock=Broken(50))
    seen = []
    train(monitor, steps=40, between=seen.append)
    assert seen == list(range(40))
    assert caplog.text.count("the driver is gone (training goes on)") == 1
    found = page(monitor)
    assert found["stepscope_errors_total", "monitor"] == 1
    assert 1 <= found["training_steps_total",] < 10


def test_a_port_in_use_is_said_and_tried_again(make, caplog, monkeypatch):
    """Training goes on; once the port is free, the rank is served there."""
    monkeypatch.setattr("stepscope.publisher.RETRY_SECONDS", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monitor = make(port=port)
        train(monitor)
        time.sleep(1.0)
        assert f"cannot listen on 127.0.0.1:{port}" in caplog.text
        assert "STEPSCOPE_METRICS_PORT" in caplog.text
        assert caplog.text.count("cannot listen") == 1
    assert address(monitor).endswith(str(port))
    found = page(monitor)
    assert found["training_steps_total",] == 5
    assert found["stepscope_errors_total", "server"] >= 2


def test_as_long_as_its_port_is_another_jobs_a_job_judges_nobody(make):
    """What answers there is not its own rank."""
    first = make(Identity(run="a", node="host"))
    taken = int(address(first).rpartition(":")[2])
    second = make(Identity(run="b", node="host"), port=taken)
    assert list(second._publisher.puller._peers()) == []
    assert second._publisher.puller.view(lambda alignment: alignment.run) == "b"


def test_ranks_that_meet_within_the_forward_are_warned_of(make, caplog):
    """Who waits in SyncBatchNorm seems to compute."""
    make().wrap(nn.SyncBatchNorm(4))
    assert "SyncBatchNorm" in caplog.text


def test_a_full_disk_for_discovery_is_counted(make, tmp_path, caplog):
    """Here the folder is a file. The metrics are served all the same."""
    (tmp_path / "sd").write_text("no folder")
    monitor = make(sd_dir=tmp_path / "sd")
    train(monitor)
    found = page(monitor)
    assert found["stepscope_errors_total", "discovery"] >= 1
    assert found["training_steps_total",] == 5
    assert "discovery" in caplog.text


def test_an_entry_is_there_while_the_process_is(make, tmp_path):
    """Written once the port is known, removed when the monitor is closed."""
    monitor = make(sd_dir=tmp_path)
    where = address(monitor)
    deadline = time.monotonic() + 5
    while not (files := list(tmp_path.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert json.loads(files[0].read_text())[0]["targets"] == [where]
    monitor.close()
    assert list(tmp_path.iterdir()) == []


def test_a_scraper_that_goes_away_disturbs_nobody(make):
    """Half a request, and gone."""
    monitor = make()
    host, _, port = address(monitor).partition(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as rude:
            rude.sendall(b"GET /metrics HTTP/1.1\r\n")
    train(monitor)
    assert page(monitor)["training_steps_total",] == 5


def test_many_scrapers_at_once_see_each_step_once(make):
    """Resolving while scraping, from several threads."""
    monitor = make()
    stop, seen = threading.Event(), []

    def scrape():
        while not stop.is_set():
            seen.append(page(monitor)["training_steps_total",])

    threads = [threading.Thread(target=scrape) for _ in range(4)]
    for thread in threads:
        thread.start()
    train(monitor, steps=60)
    stop.set()
    for thread in threads:
        thread.join()
    assert page(monitor)["training_steps_total",] == 60
    assert len(seen) > 4


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"STEPSCOPE_METRICS_PORT": "http"}, "STEPSCOPE_METRICS_PORT='http'"),
        ({"STEPSCOPE_METRICS_PORT": "65535"}, "STEPSCOPE_METRICS_PORT"),
        ({"STEPSCOPE_REFEREE": "yes"}, "STEPSCOPE_REFEREE='yes': it is thread"),
        ({"STEPSCOPE_METRICS_ADDRESS": "no such host"}, "STEPSCOPE_METRICS_ADDRESS='no such host'"),
    ],
)
def test_settings_that_cannot_be_are_said(environment, said):
    """Before training starts."""
    with pytest.raises(ValueError, match=said):
        Settings.from_env(Identity(run="r", world_size=4, local_rank=1), environment)


def test_a_misspelt_variable_is_told_and_another_ones_is_not(caplog):
    """Kubernetes, too, sets variables with the prefix, for each service that begins with it."""
    others = dict.fromkeys(["STEPSCOPE_URL", "STEPSCOPE_PORT", "STEPSCOPE_SERVICE_PORT", "STEPSCOPE_REFEREE_PORT",
                            "STEPSCOPE_REFEREE_SERVICE_HOST", "STEPSCOPE_PORT_9401_TCP_PORT", "STEPSCOPE_PRACTICE",
                            "STEPSCOPE_PUBLIC_PORT", "STEPSCOPE_LINKS", "STEPSCOPE_PROMETHEUS"], "1")  # fmt: skip
    Settings.from_env(Identity(run="r"), {**others, "STEPSCOPE_RUN": "r", "STEPSCOPE_SD_DIR": "/tmp"})
    assert not caplog.messages
    Settings.from_env(Identity(run="r"), {"STEPSCOPE_METRIC_PORT": "1", "STEPSCOPE_SDDIR": "/tmp"})
    assert caplog.messages == [
        "STEPSCOPE_METRIC_PORT is read by nobody: is STEPSCOPE_METRICS_PORT meant?",
        "STEPSCOPE_SDDIR is read by nobody: is STEPSCOPE_SD_DIR meant?",
    ]


def test_settings_come_from_the_environment(tmp_path):
    """Port + local rank; a job on one machine stays on its loopback, a larger one is reachable."""
    one = Identity(run="r", rank=2, world_size=4, local_rank=2, local_world_size=4)
    assert Settings.from_env(one, {}) == Settings(port=9403, address="127.0.0.1", sd_dir=None, referee=True)
    many = replace(one, world_size=8)
    assert Settings.from_env(many, {"STEPSCOPE_SD_DIR": str(tmp_path), "STEPSCOPE_REFEREE": "none"}) == Settings(
        port=9403, address="0.0.0.0", sd_dir=tmp_path, referee=False
    )


@pytest.mark.parametrize("wrong", [{"peak": "fast"}, {"peak": -1.0}])
def test_a_peak_that_cannot_be_is_refused(wrong):
    """With what would be right."""
    with pytest.raises(ValueError, match="give FLOP/s, such as 989e12, or 'measured'"):
        StepMonitor(Identity(run="r"), Settings(port=0), flops_per_step=1.0, **wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tokens_per_step": -1}, "tokens_per_step=-1: give a number that is not negative"),
        ({"tokens_per_step": "16k"}, "tokens_per_step='16k'"),
        ({"gradient_band": (5, 1)}, "give the lowest norm, then the highest"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_by_name(wrong, said):
    """Before training begins."""
    with pytest.raises(ValueError, match=re.escape(said)):
        StepMonitor(Identity(run="r"), Settings(port=0), **wrong)


def test_steps_that_begin_anew_are_said_once_and_counted_on(make, caplog):
    """As with a loop's index that restarts in each epoch."""
    monitor = make()
    for _ in range(2):
        for step in range(3):
            train(monitor, steps=1, step=step)
    assert page(monitor)["training_global_step",] == 5
    assert caplog.text.count("steps must grow") == 1


def test_a_process_that_ends_takes_its_entry_away(tmp_path):
    """At the interpreter's exit, without close(); the last step is published until then."""
    script = (
        "from stepscope import StepMonitor\n"
        "m = StepMonitor.from_env()\n"
        "import time, os\n"
        "for _ in m.batches(range(3)): m.step_done()\n"
        "time.sleep(1); assert os.listdir(os.environ['STEPSCOPE_SD_DIR'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={"STEPSCOPE_SD_DIR": str(tmp_path), "STEPSCOPE_METRICS_PORT": "0"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_steps_asked_for_with_nonsense_are_refused(make):
    """400, with an example."""
    where = address(make())
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"http://{where}/steps?since=x", timeout=5)
    assert error.value.code == 400
    assert b"since=120" in error.value.read()
    error.value.close()
