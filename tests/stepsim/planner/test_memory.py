"""Memory of one GPU against published figures, and against what the simulator says of a DDP job."""

import pytest

from stepsim.accelerators import GIB
from stepsim.job import PRESETS, load_job
from stepsim.planner.answer import answer
from stepsim.planner.layout import Layout
from stepsim.planner.memory import memory
from stepsim.planner.models import PlannedTransformer, find_model
from stepsim.planner.request import PlanRequest

GB = 1e9


@pytest.mark.parametrize(("strategy", "gigabytes"), [("ddp", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)])
def test_zero_shards_model_states_as_published(strategy, gigabytes):
    """7.5 B parameters on 64 GPUs (Rajbhandari et al., arXiv 1910.02054, figure 1)."""
    model = PlannedTransformer(parameters=7.5e9)
    found = memory(model, Layout(gpus=64, strategy=strategy, tokens=2048), gradient_bytes=2)
    assert found.model_states / GB == pytest.approx(gigabytes, abs=0.06)


def test_a_70b_model_has_140_gigabytes_of_weights():
    """In 16 bits, on one GPU."""
    found = memory(find_model("Llama 3 70B"), Layout(gpus=1, tokens=8192), gradient_bytes=2)
    assert found.weights / GB == pytest.approx(140, rel=0.01)


@pytest.mark.parametrize("preset", PRESETS)
def test_ddp_needs_what_the_simulator_says(preset):
    """The job's own figure, fragmentation included."""
    job = load_job(preset)
    found = answer(PlanRequest.of({"max_gpus": 1}, job), job)["prediction"]["memory_bytes"]
    assert found["total"] == pytest.approx(job.memory_bytes()["reserved"])


def test_tensor_and_pipeline_parallelism_divide_parameters():
    """By t · p, in all of their states."""
    model = find_model("GPT-3 175B")
    one, many = (memory(model, Layout(gpus=n * n, tp=n, pp=n, tokens=2048), 4.0).model_states for n in (1, 8))
    assert one / many == pytest.approx(64)


LARGE = {"model": "Llama 3 70B", "strategy": "ddp", "gpus": "64"}


@pytest.mark.parametrize(
    "given",
    [
        LARGE,
        {"model": "Llama 3 8B", "strategy": "ddp", "gpus": "8"},
        {"model": "Llama 3 8B", "strategy": "ddp", "gpus": "8", "tokens_per_gpu": "32768"},
        {"model": "Llama 2 13B", "strategy": "zero1", "gpus": "32", "global_batch": "256"},
        {"model": "Llama 2 70B", "gpus": "16", "tp": "2", "recompute": "selective"},
        {"model": "GPT-3 175B", "gpus": "512", "accelerator": "A100 SXM", "tp": "8", "strategy": "ddp"},
        {"model": "Llama 2 7B", "accelerator": "RTX 4090", "gpus": "8", "tokens_per_gpu": "4096"},
    ],
)
def test_what_does_not_fit_is_told_with_ways_that_do(given):
    """Each of them fits when it is typed as it is printed."""
    found = answer(PlanRequest.of(given | {"max_gpus": "1"}))
    assert not found["prediction"]["fits"]
    for way in found["remedies"]:
        words = way.replace("--", "").split()
        changed = dict(zip(words[::2], words[1::2], strict=True))
        assert answer(PlanRequest.of(given | {"max_gpus": "1"} | changed))["prediction"]["fits"], way


def test_a_70b_model_has_ways_to_fit():
    """It needs over a terabyte under DDP; sharded, and with recomputation, it fits."""
    found = answer(PlanRequest.of(LARGE))
    assert found["prediction"]["memory_bytes"]["total"] > 1000 * GIB
    assert "--strategy zero3 --recompute full" in found["remedies"]


def test_what_fits_needs_no_remedy():
    """The default does."""
    found = answer(PlanRequest(max_gpus=1))
    assert found["prediction"]["fits"]
    assert found["remedies"] == []
