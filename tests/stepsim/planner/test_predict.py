"""One prediction: the simulator's own steps for DDP, and what other layouts add."""

from dataclasses import replace

import numpy as np
import pytest

from stepsim.draws import Draws
from stepsim.job import load_job
from stepsim.model import State, plan, simulate_step
from stepsim.params import Params
from stepsim.planner.communication import DataParallel, Groups, tensor_traffic
from stepsim.planner.predict import predict
from stepsim.planner.request import PlanRequest, resolve
from stepsim.planner.work import planned_job


def planned(job=None, **given):
    return resolve(PlanRequest.of(given, job), job)


def prediction(job=None, **given):
    one = planned(job, **given)
    return predict(one.job, one.model, one.layout, one.machine)


def simulated(job, count=300, skip=50):
    """Mean step of the simulated job, without what happens beside steps."""
    job = job.model_copy(
        update={"schedule": job.schedule.model_copy(update={"checkpoint_every_steps": 0, "evaluation_every_steps": 0})}
    )
    full = plan(Params.healthy(job))
    draws = Draws(7, job.ranks)
    state = State.start(full, draws, now=0.0)
    for number in range(skip + count):
        ended = simulate_step(full, state, draws)
        if number == skip - 1:
            began = ended
    return (ended.last_end - began.last_end) / count


CASES = {
    "laptop": ("laptop", {}),
    "node": ("node", {}),
    "cluster": ("cluster", {}),
    "pod": ("pod", {}),
    "images": ("vision", {}),
    "slow network": ("cluster", {"network": {"nic_bytes_per_second": 1.5e9}}),
    "A100": ("cluster", {"accelerator": "A100 SXM"}),
    "one GPU": ("laptop", {"gpus_per_node": 1}),
}


@pytest.mark.parametrize(("preset", "changes"), CASES.values(), ids=CASES)
def test_ddp_is_predicted_as_it_is_simulated(preset, changes):
    """Within 1 % of the mean of 300 steps with other draws."""
    job = load_job(preset, **changes)
    assert prediction(job).step_seconds == pytest.approx(simulated(job), rel=0.01)


def test_a_loader_that_is_too_slow_decides_the_step():
    """Its steps vary slowly: within 2 % of the mean of 2,000, half as long again as with a quick loader."""
    job = load_job("node", loader={"read_seconds": 1.5})
    assert prediction(job).step_seconds == pytest.approx(simulated(job, count=2000), rel=0.02)
    assert prediction(job).step_seconds > 1.4 * prediction(load_job("node")).step_seconds


def test_the_work_of_plain_ddp_is_the_jobs_own(cluster):
    """Forward, backward, clock, buckets: the very arrays that the simulator plans."""
    one = planned(cluster)
    mine = plan(Params.healthy(planned_job(one.job, one.model, one.layout, one.machine)))
    theirs = plan(Params.healthy(cluster))
    for name in ("forward_seconds", "backward_seconds", "h2d_seconds", "decode_seconds", "bucket_ready", "bucket_tail"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    np.testing.assert_array_equal(mine.compute.mhz, theirs.compute.mhz)


def test_the_parts_of_a_step_add_up_and_none_is_negative():
    """Whatever the layout."""
    deep = {"tp": 4, "pp": 4, "interleave": 2, "recompute": "full", "sequence_parallel": True}
    for given in (
        {},
        {"gpus": 1},
        {"strategy": "ddp"},
        {"strategy": "zero1"},
        {"strategy": "zero2", "microbatch": 1, "tokens_per_gpu": 16_384},
        {"tp": 8},
        {**deep, "tokens_per_gpu": 16_384},
    ):
        found = prediction(**given)
        assert sum(vars(found.parts).values()) == found.step_seconds
        assert {name: part for name, part in vars(found.parts).items() if part < -1e-9} == {}, given


def test_a_lone_gpu_waits_for_nobody():
    """Whatever the draws of its step times are."""
    assert prediction(gpus=1).parts.waiting == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("interleave", "bubble"), [(1, 7 / 64), (3, 7 / 192)])
def test_the_pipeline_bubble_is_p_minus_1_by_m_times_v(interleave, bubble):
    """Of the time of the work."""
    found = prediction(model="GPT-3 175B", gpus=64, tp=8, pp=8, strategy="ddp", global_batch=64, interleave=interleave)
    assert found.layout.bubble_ratio == pytest.approx(bubble)
    worked = found.parts.compute + found.parts.tensor_parallel + found.parts.pipeline_transfer
    assert found.parts.pipeline_bubble == pytest.approx(bubble * worked)


@pytest.mark.parametrize("gpus", [2, 8, 64, 1024])
def test_ring_allreduce_sends_twice_the_gradients_but_one_share(gpus):
    """2·S·(n−1)/n bytes per GPU, S the gradients in bf16."""
    found = prediction(model="Llama 2 7B", gpus=gpus, strategy="ddp")
    assert found.data.bytes_sent == pytest.approx(2 * 2 * 6_738_415_616 * (gpus - 1) / gpus)


def test_zero3_moves_one_and_a_half_times_the_bytes_of_ddp():
    """ZeRO-1 moves as many as DDP does (Rajbhandari et al., §7)."""
    sent = {strategy: prediction(strategy=strategy).data.bytes_sent for strategy in ("ddp", "zero1", "zero2", "zero3")}
    assert sent["zero3"] / sent["ddp"] == pytest.approx(1.5)
    assert sent["zero1"] == sent["zero2"] == pytest.approx(sent["ddp"])


def test_each_further_microbatch_of_zero3_gathers_and_scatters_again():
    """DDP reduces once per step."""
    many = {"microbatch": 1, "tokens_per_gpu": 32_768}
    ratio = {name: prediction(strategy=name, **many).data.bytes_sent / prediction(strategy=name).data.bytes_sent
             for name in ("ddp", "zero3")}  # fmt: skip
    assert ratio == {"ddp": pytest.approx(1.0), "zero3": pytest.approx(4.0)}


def test_sequence_parallelism_sends_as_much_as_tensor_parallelism_alone_but_for_repeated_gathers():
    """A reduce-scatter and an all-gather make an all-reduce; the backward gathers two inputs again."""
    one = planned(model="GPT-3 175B", tp=8, gpus=8, strategy="ddp", tokens_per_gpu=256)
    group = Groups.of(one.layout, one.machine).tensor
    plain = tensor_traffic(one.model, one.layout, group)
    shared = tensor_traffic(one.model, replace(one.layout, sequence_parallel=True), group)
    assert shared.bytes_sent / plain.bytes_sent == pytest.approx(10 / 8)
    hidden = 2 * 12_288 * 2048
    assert plain.bytes_sent == pytest.approx(96.5 * 4 * 2 * hidden * 7 / 8)


def test_zero3_exposes_only_what_computation_does_not_cover():
    """Gathers shorter than a layer's computation cost the first one and the last scatter; longer ones the difference."""
    one = planned(model="Llama 3 8B", gpus=64)
    data = DataParallel.of(one.model, one.layout, Groups.of(one.layout, one.machine).data, 2.0)
    gather = data.group.gather(data.weight_size / 32)
    assert data.sharded_seconds(32 * 9 * gather, 64 * 9 * gather) == pytest.approx(2 * gather)
    assert data.sharded_seconds(0.0, 0.0) == pytest.approx(gather + 31 * 3 * gather + gather)
    half = data.sharded_seconds(32 * gather / 2, 32 * gather)
    assert half == pytest.approx(2 * gather + 31 * (gather / 2 + gather))


def test_gradients_hide_under_the_last_microbatch_only():
    """With more microbatches the step grows and what is exposed does not shrink."""
    slow = {"strategy": "ddp", "accelerator": "H200 SXM", "nic_gbps": 100, "sequence": 2048, "microbatch": 1}
    one, four = (prediction(tokens_per_gpu=2048 * count, **slow).parts.data_parallel for count in (1, 4))
    assert four == pytest.approx(one, rel=0.05)
    assert one > 0.1
    assert prediction(tokens_per_gpu=2048, **slow, overlap=False).parts.data_parallel > 1.3 * one


def test_zero2_reduces_after_every_microbatch():
    """What a microbatch's backward does not cover is exposed for each of them; ZeRO-1 waits for the last one."""
    slow = {"nic_gbps": 25, "sequence": 2048, "microbatch": 1, "tokens_per_gpu": 8192}
    one, two = (prediction(strategy=strategy, **slow).parts.data_parallel for strategy in ("zero1", "zero2"))
    assert two > 2 * one


def test_a_replica_on_one_node_communicates_over_nics_only():
    """With tensor parallelism over all GPUs of a node, its data-parallel group has one GPU on each."""
    one = planned(model="GPT-3 175B", gpus=64, tp=8, strategy="ddp")
    groups = Groups.of(one.layout, one.machine)
    assert (groups.tensor.nodes, groups.tensor.gpus_per_node) == (1, 8)
    assert (groups.data.nodes, groups.data.gpus_per_node) == (8, 1)
    halves = Groups.of(replace(one.layout, tp=4, pp=2), one.machine)
    assert (halves.data.nodes, halves.data.gpus_per_node) == (4, 2)
    assert halves.pipeline.nodes == 2
