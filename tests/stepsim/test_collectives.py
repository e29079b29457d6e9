"""Collectives against measured figures. Sources: stas00/ml-engineering (network benchmarks), ASTRA-sim's validation."""

import pytest

from stepsim.collectives import MIB, allreduce_busbw, hierarchical_allreduce, nvls_allreduce, ring_allreduce

LLAMA_8B_GRADIENTS = 8.03e9 * 2


@pytest.mark.parametrize(("mib", "gigabytes_per_second"), [(256, 419), (1024, 459), (4096, 479)])
def test_nvls_fit_gives_the_measured_bus_bandwidth(mib, gigabytes_per_second):
    """8×H200 with NVLink SHARP."""
    size = mib * MIB
    assert allreduce_busbw(size, nvls_allreduce(size), 8) / 1e9 == pytest.approx(gigabytes_per_second, rel=0.01)


@pytest.mark.parametrize(("mib", "milliseconds"), [(256, 1.271), (1024, 4.926), (4096, 19.55)])
def test_ring_is_within_a_tenth_of_astra_sim(mib, milliseconds):
    """Congestion-aware backend, 8 GPUs on H100-class NVLink."""
    seconds = ring_allreduce(mib * MIB, 8, bandwidth=400e9, hop=936e-9)
    assert 1e3 * seconds == pytest.approx(milliseconds, rel=0.1)


@pytest.mark.parametrize(
    ("what", "milliseconds"),
    [
        ({"nodes": 1, "busbw": 480e9, "nic": 50e9}, 59),
        ({"nodes": 4, "busbw": 367e9, "nic": 50e9}, 82),
        ({"nodes": 4, "busbw": 367e9, "nic": 50e9 / 8}, 660),
        ({"nodes": 1, "busbw": 28e9, "nic": 50e9}, 1004),
    ],
    ids=["8×H200", "4×8 with 400G per GPU", "4×8 with one 400G NIC per node", "8 GPUs over PCIe"],
)
def test_gradients_of_an_8b_model_take_the_derived_time(what, milliseconds):
    """bf16 gradients, within a tenth."""
    seconds = hierarchical_allreduce(LLAMA_8B_GRADIENTS, gpus_per_node=8, hop=1.9e-6, **what)
    assert 1e3 * seconds == pytest.approx(milliseconds, rel=0.1)


def test_bus_bandwidth_across_nodes_is_within_a_tenth_of_the_measurement():
    """4×8 H200 over EFA: 365 GB/s measured."""
    size = 4096 * MIB
    seconds = hierarchical_allreduce(size, nodes=4, gpus_per_node=8, busbw=480e9, nic=50e9, hop=1.9e-6)
    assert allreduce_busbw(size, seconds, 32) / 1e9 == pytest.approx(365, rel=0.1)


def test_many_nodes_take_the_tree_for_its_latency():
    """A ring over 128 nodes would need 127 hops there and back."""
    small = hierarchical_allreduce(1024, nodes=128, gpus_per_node=8, busbw=367e9, nic=50e9, hop=1.9e-6)
    assert small < 2 * 127 * 4e-6
