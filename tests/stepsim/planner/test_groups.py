"""All-gathers, reduce-scatters and transfers, against measured bandwidths and against the all-reduce."""

import pytest

from stepsim.collectives import MIB, Group, hierarchical_allreduce, nvls_allreduce, ring_allreduce

LINKS = {"busbw": 367e9, "nic": 50e9, "hop": 1.9e-6}


def group(nodes, gpus_per_node, **changes):
    return Group(ranks=nodes * gpus_per_node, nodes=nodes, gpus_per_node=gpus_per_node, **{**LINKS, **changes})


def test_a_large_gather_reaches_the_measured_bus_bandwidth():
    """361 GB/s on 8×H200, by nccl-tests' definition for all-gather: algorithm bandwidth · (n−1)/n."""
    size = 4096 * MIB
    assert size * 7 / 8 / group(1, 8).gather(size) == pytest.approx(361e9, rel=0.03)


@pytest.mark.parametrize("nodes", [1, 4, 128])
def test_a_reduce_scatter_and_a_gather_take_as_long_as_an_allreduce(nodes):
    """But for what each call begins with."""
    size, one = 1024 * MIB, group(nodes, 8)
    assert 2 * one.gather(size) == pytest.approx(one.allreduce(size), rel=0.01)


def test_a_group_takes_the_algorithm_that_its_links_allow():
    """NVSwitch reduces for a full node alone."""
    size = 64 * MIB
    assert group(1, 8, nvls=True).allreduce(size) == nvls_allreduce(size)
    assert group(1, 4, nvls=True).allreduce(size) == ring_allreduce(size, 4, bandwidth=367e9, hop=1.9e-6)
    assert group(2, 8, nvls=True).allreduce(size) == hierarchical_allreduce(size, nodes=2, gpus_per_node=8, **LINKS)


def test_one_gpu_communicates_with_nobody():
    """In no time, and no byte."""
    alone = group(1, 1)
    assert [alone.allreduce(1e9), alone.gather(1e9), alone.send(1e9), alone.allreduce_bytes(1e9)] == [0, 0, 0, 0]


def test_a_transfer_to_another_node_goes_over_one_nic():
    """At its share of the line rate; to a neighbour in the node over NVLink."""
    assert group(2, 4).send(1e9) == pytest.approx(1e9 / (0.73 * 50e9), rel=0.01)
    assert group(1, 8).send(1e9) == pytest.approx(1e9 / 367e9, rel=0.01)
