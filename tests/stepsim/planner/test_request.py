"""What can be asked, and what is said of a bad question."""

import pytest

from stepsim.accelerators import ACCELERATORS
from stepsim.job import load_job
from stepsim.planner.answer import predict_from
from stepsim.planner.efficiency import matmul_efficiency
from stepsim.planner.models import MODELS, find_model
from stepsim.planner.request import PlanError, PlanRequest, resolve


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "lama 3 8b"}, "unknown model 'lama 3 8b'; near it are Llama 3 8B"),
        ({"model": "?"}, "unknown model '\\?'; there are MPT-1B"),
        ({"gpus": "0"}, "gpus: .*greater than or equal to 1, got '0'"),
        ({"gpus": "many"}, "gpus: .*got 'many'"),
        ({"gpsu": "8"}, "unknown field 'gpsu'; there are model, parameters"),
        ({"gpus": "12"}, "gpus: 12 do not fill nodes of 8"),
        (
            {"gpus": "8", "tp": "16"},
            "gpus: 8 are not a multiple of tp × pp = 16; tp: 16 must divide the 8 GPUs of a node",
        ),
        (
            {"model": "GPT-2 medium", "heads": "6", "parameters": "1e9", "tp": "4"},
            "tp: 4 does not divide the 6 attention heads",
        ),
        ({"pp": "3", "gpus": "24"}, "pp: 3 × interleave 1 does not divide the 32 layers of Llama 3 8B"),
        ({"interleave": "2"}, "interleave: 2 needs a pipeline"),
        ({"pp": "4", "interleave": "2", "gpus": "4", "global_batch": "6"}, "interleave: .*multiples of pp = 4, not 6"),
        ({"sequence_parallel": "true"}, "sequence_parallel: .*needs tp > 1"),
        ({"global_batch": "65"}, "global_batch: 65 sequences are not a multiple of the 64 replicas"),
        ({"global_batch": "64", "tokens_per_gpu": "8192"}, "give one"),
        ({"tokens_per_gpu": "100"}, "tokens_per_gpu: a replica has 100, less than one sequence of 8192"),
        ({"microbatch": "3"}, "microbatch: 3 sequences of 8192 tokens do not divide the 8192 tokens"),
        ({"accelerator": "L40S", "topology": "nvswitch"}, "topology: L40S has no NVLink"),
        ({"accelerator": "H1000"}, "accelerator: unknown 'H1000'; there are A100 SXM"),
        ({"heads": "64"}, "parameters: needed beside heads"),
        ({"nic_gbps": "inf"}, "nic_gbps: .*finite"),
        ({"nic_gbps": "1e300"}, "nic_gbps: .*less than or equal to 100000"),
        ({"nics_per_node": "1" + 400 * "0"}, "nics_per_node: "),
        ({"parameters": "4e8"}, r"parameters: 4e\+08 are fewer than the embeddings. 1.05"),
        ({"strategy": "zero4"}, "strategy: .*'zero2' or 'zero3', got 'zero4'"),
    ],
)
def test_a_bad_question_is_answered_with_its_field(given, said):
    """As a query string has it."""
    with pytest.raises(PlanError, match=said):
        predict_from(given)


@pytest.mark.parametrize("name", ["gpt3-175b", "GPT-3 175B", "gpt3_175B"])
def test_a_model_is_found_whatever_its_case_and_hyphens(name):
    """By letters and digits."""
    assert find_model(name).layers == 96


@pytest.mark.parametrize(("name", "billions"), [
    ("Megatron 22B", 22), ("GPT-3 175B", 175), ("Megatron 530B", 530), ("Megatron 1T", 1008), ("Llama 3 8B", 8.03),
    ("Llama 3 70B", 70.6), ("Llama 3 405B", 405.9), ("Llama 2 7B", 6.74),
])  # fmt: skip
def test_models_have_the_parameters_of_their_names(name, billions):
    """And a source."""
    assert MODELS[name].shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert MODELS[name].source


def test_the_input_embedding_of_an_untied_model_takes_no_flops():
    """As torchtitan counts: 7.50 B parameters of Llama 3 8B."""
    model = find_model("Llama 3 8B")
    assert (model.flops_per_token - 12 * 32 * 4096 * 8192) / 6 == pytest.approx(7.50e9, rel=0.001)


def test_fewer_layers_have_fewer_parameters():
    """Twelve of Llama 3 70B's: 12.37 B with both embeddings."""
    planned = resolve(PlanRequest.of({"model": "Llama 3 70B", "layers": 12}))
    assert planned.model.parameters == pytest.approx(12.37e9, rel=0.001)


def test_fsdp_is_zero3():
    """An alias."""
    assert resolve(PlanRequest(strategy="fsdp")).layout.strategy == "zero3"


def test_a_job_is_planned_as_it_is_described(cluster):
    """Its model, machines, tokens and network; what is given besides replaces them."""
    planned = resolve(PlanRequest.of({}, cluster), cluster)
    assert (planned.layout.gpus, planned.layout.strategy, planned.layout.tokens) == (32, "ddp", 16_384)
    assert planned.machine.nic_bytes_per_second == cluster.network.nic_bytes_per_second
    assert planned.model.model_dump(exclude={"untied"}) == cluster.model.model_dump()
    assert planned.job.kernels == cluster.kernels
    assert resolve(PlanRequest.of({"gpus": 8, "model": "Llama 2 7B"}, cluster), cluster).model.name == "Llama 2 7B"


def test_nics_of_a_node_are_shared_by_its_gpus():
    """One of 400 Gb/s for eight GPUs: 6.25 GB/s each."""
    assert resolve(PlanRequest(nics_per_node=1)).machine.nic_bytes_per_second == 50e9 / 8


def test_matmuls_reach_a_share_of_the_best_that_was_measured():
    """Where none was measured, what the kernels say."""
    kernels = load_job().kernels
    assert matmul_efficiency(ACCELERATORS["RTX 4090"], kernels) == kernels.matmul_efficiency
    assert matmul_efficiency(ACCELERATORS["H100 SXM"], kernels) == pytest.approx(0.80, abs=0.02)
    assert matmul_efficiency(ACCELERATORS["A100 SXM"], kernels) == pytest.approx(0.97, abs=0.02)


def test_a_request_says_what_was_understood():
    """Whatever the spelling: the page's fields show it."""
    request = PlanRequest.of({"model": "gpt3-175b", "strategy": "fsdp"})
    assert (request.model, request.strategy) == ("GPT-3 175B", "zero3")
