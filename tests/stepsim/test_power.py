"""Clock and power of a GPU."""

import numpy as np
import pytest

from stepsim.accelerators import ACCELERATORS
from stepsim.job import load_job
from stepsim.power import OPTIMIZER, Activity, compute, thermal_limit, waiting

H100 = ACCELERATORS["H100 SXM"]


def test_a_training_h100_runs_at_its_power_cap(cluster):
    """Between the clock of a pure matmul and the highest one, and just at 700 W."""
    done = compute(cluster, np.full(32, 700.0))
    assert np.all((done.mhz > 1700) & (done.mhz < 1790))
    assert done.activity.watts(H100, done.mhz) == pytest.approx(700, abs=0.1)
    assert done.activity.tensor == pytest.approx(0.526, abs=0.01)


def test_a_lower_limit_gives_a_lower_clock_to_that_gpu_alone(cluster):
    """And just the limit's power; only the part of a step that computes gets longer with it."""
    limits = np.full(32, 700.0)
    limits[5] = 385.0
    done = compute(cluster, limits)
    assert done.activity.watts(H100, done.mhz)[5] == pytest.approx(385, abs=0.1)
    assert done.mhz[5] < 0.75 * done.mhz[6]
    assert 1.15 < done.seconds[5] / done.seconds[6] < done.mhz[6] / done.mhz[5]


def test_far_from_its_limit_a_gpus_temperature_allows_it_everything(cluster):
    """Healthy at 70 °C: more than it can draw."""
    assert thermal_limit(cluster, np.ones(1), np.array([70.0]))[0] > 700


def test_at_its_limit_a_gpu_may_draw_what_holds_the_temperature(cluster):
    """(87 − 25) °C by its thermal resistance; above it less."""
    at, above = thermal_limit(cluster, np.full(2, 2.4), np.array([87.0, 88.0]))
    assert at == pytest.approx(62 / (2.4 * 0.065), abs=0.5)
    assert above < at


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
    assert compute(job, np.array([400.0])).mhz == 1410
