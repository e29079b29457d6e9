"""Clock and power of a GPU."""

import pytest

from stepsim.accelerators import ACCELERATORS
from stepsim.job import load_job
from stepsim.power import OPTIMIZER, Activity, compute, waiting

H100 = ACCELERATORS["H100 SXM"]


def test_a_training_h100_runs_at_its_power_cap(cluster):
    """Between the clock of a pure matmul and the highest one, and just at 700 W."""
    done = compute(cluster)
    assert 1700 < done.mhz < 1790
    assert done.activity.watts(H100, done.mhz) == pytest.approx(700, abs=0.1)
    assert done.activity.tensor == pytest.approx(0.526, abs=0.01)


def test_the_documented_activities_give_the_documented_clock_and_power():
    """docs/physics.md: training 1,772 MHz at 700 W, memory-bound 596 W, waiting 97 W."""
    training = Activity(tensor=0.526, dram=0.5, sm=0.95, occupancy=0.1)
    assert training.watts(H100, 1772) == pytest.approx(700, rel=0.01)
    memory_bound = Activity(tensor=0.15, dram=0.85, sm=1.0, occupancy=0.1)
    assert memory_bound.watts(H100, 1980) == pytest.approx(596, rel=0.01)
    assert waiting(H100).watts(H100, 1980) == pytest.approx(90, abs=10)
    assert OPTIMIZER.tensor == 0


def test_a_waiting_kernel_occupies_a_few_sms():
    """16 of 132: SM activity reads 0.12 while utilization reads 100 %."""
    assert waiting(H100).sm == pytest.approx(0.12, abs=0.005)


def test_a_gpu_below_its_cap_runs_at_its_highest_clock():
    """An A100 with next to no tensor work."""
    job = load_job("node", accelerator="A100 SXM", kernels={"hidden_passes": 20_000})
    assert compute(job).mhz == 1410
