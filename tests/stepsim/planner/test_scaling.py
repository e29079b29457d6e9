"""Curves over numbers of GPUs: what networks and small batches cost, and where the knee is."""

from types import SimpleNamespace

import pytest

from stepsim.planner.answer import answer
from stepsim.planner.machine import Machine
from stepsim.planner.request import PlanRequest, resolve
from stepsim.planner.scaling import PAYS, knee, sizes


def curves(**given):
    return answer(PlanRequest.of(given))["scaling"]


def by_gpus(curve, what="efficiency_ratio"):
    return {point["gpus"]: point[what] for point in curve["points"]}


@pytest.mark.parametrize("accelerator", ["A100 SXM", "H100 SXM", "H200 SXM"])
@pytest.mark.parametrize("model", ["Llama 2 7B", "Llama 2 13B"])
def test_a_large_model_keeps_85_to_95_percent_on_one_nvswitch_node(accelerator, model):
    """Eight GPUs share a batch of 8 × 8,192 tokens."""
    found = by_gpus(curves(model=model, accelerator=accelerator, strategy="ddp", gpus=8, max_gpus=8)["strong"])
    assert 0.85 <= found[8] <= 0.95


@pytest.mark.parametrize(
    ("gbps", "tokens", "least", "most"),
    [(400, 2048, 0.10, 0.30), (200, 4096, 0.10, 0.30), (100, 8192, 0.03, 0.15), (100, 4096, 0.25, 0.45)],
)
def test_across_nodes_it_keeps_less_depending_on_the_network(gbps, tokens, least, most):
    """An 8B model on 8 and on 256 GPUs, in points of efficiency; a tenth of the tokens' time decides as the network does."""
    found = by_gpus(curves(model="Llama 3 8B", sequence=2048, accelerator="H200 SXM", strategy="ddp", tokens_per_gpu=tokens,
                           nic_gbps=gbps, max_gpus=256)["weak"])  # fmt: skip
    assert found[8] >= 0.95
    assert least < found[8] - found[256] < most


def test_a_box_with_pcie_alone_keeps_far_less_than_one_with_an_nvswitch():
    """About 90 % against 55 %: the same eight H100 and the same batch."""
    found = {topology: by_gpus(curves(model="Llama 2 7B", topology=topology, strategy="ddp", gpus=8, tokens_per_gpu=8192,
                                      max_gpus=8)["strong"])[8] for topology in ("nvswitch", "pcie")}  # fmt: skip
    assert found["nvswitch"] == pytest.approx(0.90, abs=0.05)
    assert found["pcie"] == pytest.approx(0.55, abs=0.05)


def test_a_small_batch_gets_slower_with_more_gpus():
    """128 sequences of a 7B model, one NIC of 100 Gb/s per node: a step takes longer on 128 GPUs than on 16 and than on 8."""
    strong = curves(model="Llama 2 7B", sequence=2048, accelerator="H200 SXM", strategy="ddp", gpus=8, global_batch=128,
                    nics_per_node=1, nic_gbps=100, max_gpus=256)["strong"]  # fmt: skip
    steps = by_gpus(strong, "step_seconds")
    assert steps[128] > steps[64] > steps[32] > steps[8] > steps[16]
    assert max(steps) == 128
    assert strong["knee_gpus"] == 8


def test_beyond_the_knee_no_size_pays_and_up_to_it_one_does():
    """The documented criterion, by its own words, on curves that bend."""
    for gbps in (25, 100):
        for name, curve in curves(
            strategy="ddp", model="Llama 2 7B", nic_gbps=gbps, sequence=2048, tokens_per_gpu=4096
        ).items():
            rate = by_gpus(curve, "tokens_per_second")
            best = max(tokens / gpus for gpus, tokens in rate.items())
            knee = curve["knee_gpus"]
            pays = {small: any((rate[large] - rate[small]) / (large - small) >= PAYS * best for large in rate if large > small)
                    for small in rate}  # fmt: skip
            assert not pays[knee], (gbps, name)
            assert all(pays[gpus] for gpus in rate if gpus < knee), (gbps, name)


def points(rates):
    """A curve of so many tokens per second by GPUs; one GPU is the best."""
    return [SimpleNamespace(gpus=gpus, efficiency=rate / gpus / rates[1],
                            prediction=SimpleNamespace(tokens_per_second=rate, layout=SimpleNamespace(gpus=gpus)))
            for gpus, rate in rates.items()]  # fmt: skip


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({1: 100, 2: 200, 4: 390}, 4),
        ({1: 100, 8: 760, 16: 900, 32: 2000}, 32),
        ({1: 100, 8: 760, 16: 900, 32: 1700}, 8),
        ({1: 100, 2: 149.9}, 1),
        ({1: 100, 2: 150}, 2),
    ],
    ids=[
        "straight",
        "a dip at the edge of a node that is made up for",
        "one that is not",
        "just too little",
        "just enough",
    ],
)
def test_the_knee_is_the_first_size_from_which_no_larger_one_pays(rates, expected):
    """Half of one GPU's tokens per second for each that is added, on average."""
    assert knee(points(rates)).gpus == expected


def test_strong_scaling_ends_where_a_replica_has_no_sequence():
    """64 sequences go to 64 replicas at most."""
    assert max(by_gpus(curves(gpus=8, global_batch=64, max_gpus=1024)["strong"])) == 64


def test_efficiency_is_at_most_one_and_one_somewhere():
    """Also where a sharded optimizer makes one GPU the slowest."""
    for curve in curves(strategy="zero3").values():
        found = by_gpus(curve).values()
        assert max(found) == 1.0
        assert min(found) > 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gpus": 64, "max_gpus": 64}, [1, 2, 4, 8, 16, 32, 64]),
        ({"gpus": 24, "max_gpus": 32}, [1, 2, 4, 8, 16, 24, 32]),
        ({"gpus": 12, "gpus_per_node": 6, "max_gpus": 24}, [1, 2, 4, 6, 12, 24]),
        ({"model": "Megatron 530B", "gpus": 280, "tp": 8, "pp": 35, "max_gpus": 1200}, [280, 560, 1120]),
        ({"gpus": 2048, "max_gpus": 4}, [1, 2, 4, 2048]),
    ],
)
def test_a_curve_has_whole_replicas_and_full_nodes(given, expected):
    """And the size that was asked for."""
    planned = resolve(PlanRequest.of(given))
    assert sizes(planned.layout, planned.machine, given["max_gpus"]) == expected


def test_neighbours_share_a_node_where_they_fit():
    """Eight GPUs in strides of four are two to a node."""
    request = PlanRequest()
    machine = Machine(gpu=resolve(request).machine.gpu, gpus_per_node=8, nic_bytes_per_second=50e9)
    group = machine.group(8, stride=4)
    assert (group.nodes, group.gpus_per_node) == (4, 2)


@pytest.mark.parametrize(
    ("ranks", "groups", "nodes", "each"),
    [(12, 2, 2, 6), (5, 8, 2, 3), (5, 1, 1, 5), (4, 2, 1, 4), (16, 4, 2, 8), (6, 1, 1, 6)],
)
def test_a_group_is_spread_over_the_nodes_that_it_touches(ranks, groups, nodes, each):
    """One after the other, on nodes of eight: the one that is spread most, with all of its members and no more."""
    machine = Machine(gpu=resolve(PlanRequest()).machine.gpu, gpus_per_node=8, nic_bytes_per_second=50e9)
    group = machine.group(ranks, stride=1, groups=groups)
    assert (group.ranks, group.nodes, group.gpus_per_node) == (ranks, nodes, each)
    assert group.allreduce_bytes(1.0) == pytest.approx(2 * (ranks - 1) / ranks)
