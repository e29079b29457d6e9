"""What the probes read."""

from dataclasses import replace

import numpy as np
import pytest

from stepscope.phases import ALLREDUCE, BACKWARD, DATA_WAIT, FORWARD, H2D, OPTIMIZER
from stepsim.accelerators import INLET_CELSIUS
from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.job import load_job
from stepsim.model import plan
from stepsim.pages import Pages
from stepsim.params import Params
from stepsim.telemetry import GpuTelemetry, HostTelemetry
from stepsim.timeline import EVALUATION, HOST, SEGMENTS, Timeline


def seconds(ranks, **segments):
    """A window's seconds by segment, the same on all ranks."""
    table = np.zeros((len(SEGMENTS), ranks))
    for name, value in segments.items():
        table[SEGMENTS.index(name)] = value
    return table


@pytest.fixture
def gpus(cluster):
    return GpuTelemetry(cluster)


@pytest.mark.parametrize(
    ("segment", "utilization"),
    [
        (DATA_WAIT, 0), (H2D, 0), (FORWARD, 1), (BACKWARD, 1), (ALLREDUCE, 1), (OPTIMIZER, 1), (EVALUATION, 1), (HOST, 0),
    ],
)  # fmt: skip
def test_utilization_is_nvmls(gpus, cluster, segment, utilization):
    """The share of the window in which a kernel was resident: a waiting NCCL kernel is, a copy engine's copy is not."""
    gpus.observe(seconds(32, **{SEGMENTS[segment]: 1.0}), plan(Params.healthy(cluster)), 1.0)
    np.testing.assert_allclose(gpus.utilization, utilization)


def test_waiting_in_a_collective_reads_busy_and_stays_cool(gpus, cluster):
    """100 % utilization, SM activity 0.12, no tensor work, about 90 W, and the temperature falls."""
    gpus.celsius = np.full(32, 69.0)
    for _ in range(120):
        gpus.observe(seconds(32, allreduce=1.0), plan(Params.healthy(cluster)), 1.0)
    assert gpus.utilization[0] == 1.0
    assert gpus.activity("sm")[0] == pytest.approx(0.12, abs=0.01)
    assert gpus.activity("tensor")[0] == 0.0
    assert 80 < gpus.watts[0] < 105
    assert gpus.celsius[0] < 33


def test_an_idle_gpu_draws_idle_power_and_cools_to_29_degrees(gpus, cluster):
    """62 to 66 W."""
    for _ in range(200):
        gpus.observe(seconds(32, data_wait=1.0), plan(Params.healthy(cluster)), 1.0)
    assert gpus.watts[0] == 64
    assert gpus.celsius[0] == pytest.approx(29, abs=0.5)
    assert gpus.celsius[0] > INLET_CELSIUS


def test_tensor_activity_is_hfu_at_the_actual_clock(gpus, cluster):
    """PIPE_TENSOR_ACTIVE = HFU · f_spec / f."""
    done = plan(Params.healthy(cluster))
    gpus.observe(seconds(32, forward=1 / 3, backward=2 / 3), done, 1.0)
    hfu = cluster.flops_per_step / done.compute.seconds / cluster.gpu.peak_flops
    assert gpus.activity("tensor")[0] == pytest.approx(hfu[0] * 1830 / done.compute.mhz[0])


def test_a_slowed_gpu_does_the_same_work_in_more_time(gpus, cluster):
    """Its tensor activity and power fall, its SMs stay occupied, its clock stays."""
    healthy = Params.healthy(cluster)
    scale = healthy.compute_scale.copy()
    scale[5] = 1.43
    gpus.observe(seconds(32, forward=1.0), plan(replace(healthy, compute_scale=scale)), 1.0)
    assert gpus.activity("tensor")[5] == pytest.approx(gpus.activity("tensor")[6] / 1.43)
    assert gpus.activity("sm")[5] == gpus.activity("sm")[6]
    assert gpus.watts[5] < gpus.watts[6]
    np.testing.assert_array_equal(gpus.mhz, plan(healthy).compute.mhz)


def test_a_window_takes_its_share_of_each_segment():
    """Edges outside the window are cut off."""
    edges = np.cumsum(np.vstack([np.full(2, 10.0), np.full((len(SEGMENTS), 2), 0.4)]), axis=0)
    timeline = Timeline(step=0, edges=edges, last_end=float(edges[-1].max()), token_share=1.0)
    within = timeline.within(10.6, 11.6)
    np.testing.assert_allclose(within.sum(axis=0), 1.0)
    np.testing.assert_allclose(within[:5, 0], [0, 0.2, 0.4, 0.4, 0.0], atol=1e-9)
    np.testing.assert_allclose(timeline.within(0, 5), 0)


def test_cpu_modes_add_up_and_blocked_workers_show_as_iowait(cluster):
    """No more than the idle CPUs can wait."""
    hosts = HostTelemetry(cluster)
    params = Params.healthy(cluster)
    hosts.observe(params, np.full(32, 1.8), np.full(32, 3.0), 1.0)
    total = sum(hosts.cpu_seconds[mode] for mode in hosts.cpu_seconds)
    np.testing.assert_allclose(total, cluster.cpus_per_node)
    np.testing.assert_allclose(hosts.cpu_seconds["iowait"], 8 * 1.8)
    hosts.observe(params, np.full(32, 99.0), np.full(32, 3.0), 1.0)
    assert hosts.cpu_seconds["idle"].min() >= 0


def test_reading_time_is_accounted_once_and_in_full(engine):
    """Over many windows the seconds that workers spent in reads are those of the reads they did."""
    engine.advance(engine.now + 300)
    read = float(engine.telemetry.hosts.read_seconds.sum())
    expected = engine.totals.steps * engine.job.ranks * engine.job.loader.read_seconds * 1.032  # mean of the lognormal
    assert read == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("accelerator", "absent"),
    [
        ("H100 SXM", []),
        ("A100 PCIe", ["DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"]),
        ("RTX 4090", ["DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_NVLINK_TX_BYTES"]),
    ],
)
def test_counters_that_a_device_lacks_are_absent(accelerator, absent):
    """Missing is not zero: DCGM has no profiling metrics for consumer GPUs, and NVLink none for cards without it."""
    job = load_job("laptop" if accelerator == "RTX 4090" else "node", accelerator=accelerator)
    engine = Engine(job, FaultBoard(job), seed=0, now=0.0)
    engine.advance(3.0)
    text = Pages(engine, lambda: 3.0).text("dcgm", "node-0")
    assert [name for name in absent if name in text] == []
    assert "DCGM_FI_DEV_GPU_UTIL" in text
    assert ("DCGM_FI_PROF_SM_ACTIVE" in text) == (accelerator != "RTX 4090")


def test_dcgm_series_carry_dcgm_exporters_own_labels(straggling):
    """So that other people's dashboards work."""
    text = Pages(straggling, lambda: straggling.now).text("dcgm", "node-1")
    line = next(line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_GPU_UTIL{"))
    labels = [part.split("=")[0] for part in line[line.index("{") + 1 : line.index("}")].split(",")]
    assert labels == ["gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname"]
    assert 'hostname="node-1"' in line
    assert line.rpartition(" ")[2].isdigit()


def test_a_power_capped_h100_sets_the_cap_bit(straggling):
    """A healthy H100 under load does: 0x4 alone says nothing."""
    text = Pages(straggling, lambda: straggling.now).text("dcgm", "node-0")
    bits = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("DCGM_FI_DEV_CLOCK_THROTTLE")]
    assert bits == ["4"] * 8
