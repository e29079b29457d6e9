"""NVIDIA's public dashboard for dcgm-exporter works unmodified on the simulator's GPU metrics.

What its panels and variables read is written down here from grafana.com/grafana/dashboards/12239, that is
``grafana/dcgm-exporter-dashboard.json`` in github.com/NVIDIA/dcgm-exporter at commit d5e5f51.
"""

import re
import signal

import pytest
import requests

from running_lab import Lab, poll_until

pytestmark = pytest.mark.prometheus

VARIABLES = ("instance", "gpu")
"""Each holds the label's values on DCGM_FI_DEV_GPU_TEMP, several or all of which can be chosen."""
OF_EACH_GPU = {
    "GPU Temperature": "DCGM_FI_DEV_GPU_TEMP",
    "GPU Power Usage": "DCGM_FI_DEV_POWER_USAGE",
    "GPU SM Clocks": "DCGM_FI_DEV_SM_CLOCK",
    "GPU Utilization": "DCGM_FI_DEV_GPU_UTIL",
    "GPU Framebuffer Mem Used": "DCGM_FI_DEV_FB_USED",
    "Tensor Core Utilization": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
}
LEGEND = "GPU {{gpu}}"
OF_ALL_GPUS = {
    "GPU Avg. Temp": ("avg", "DCGM_FI_DEV_GPU_TEMP"),
    "GPU Power Total": ("sum", "DCGM_FI_DEV_POWER_USAGE"),
}
NODES, GPUS_PER_NODE = 4, 8
GPUS = NODES * GPUS_PER_NODE


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The default job; it has GPUs with the profiling counters that one panel reads."""
    made = Lab(tmp_path_factory.mktemp("dcgm"), "--no-history")
    try:
        made.wait_ready()
        poll_until(lambda: len(made.query("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")) == GPUS, "all GPUs are scraped", 60)
        yield made
    finally:
        made.stop(signal.SIGTERM)


def values_of(lab, label):
    """What Grafana asks Prometheus for a variable that lists a label's values."""
    answer = requests.get(
        f"{lab.prometheus}/api/v1/label/{label}/values", params={"match[]": "DCGM_FI_DEV_GPU_TEMP"}, timeout=10
    )
    return answer.json()["data"]


def chosen(lab, metric):
    """The metric with all values of both variables chosen, as Grafana writes them."""
    matchers = (f'{label}=~"({"|".join(values_of(lab, label))})"' for label in VARIABLES)
    return f"{metric}{{{', '.join(matchers)}}}"


def named(labels):
    """The series' name in the legend; a label that is missing leaves a hole."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), LEGEND)


@pytest.mark.parametrize(
    ("label", "values"),
    [
        ("instance", [f"node-{node}" for node in range(NODES)]),
        ("gpu", [str(gpu) for gpu in range(GPUS_PER_NODE)]),
    ],
)
def test_a_variable_lists_every_value(lab, label, values):
    """All instances, and all GPU numbers of a node."""
    assert values_of(lab, label) == values


@pytest.mark.parametrize("metric", OF_EACH_GPU.values(), ids=OF_EACH_GPU)
def test_a_panel_of_each_gpu_shows_every_gpu_by_name(lab, metric):
    """One series per GPU; the legend tells apart those of a node."""
    shown = lab.query(chosen(lab, metric))
    assert len({(labels["instance"], labels["gpu"]) for labels, _ in shown}) == len(shown) == GPUS
    assert {named(labels) for labels, _ in shown} == {f"GPU {gpu}" for gpu in range(GPUS_PER_NODE)}
    assert all(value > 0 for _, value in shown)


@pytest.mark.parametrize(("aggregation", "metric"), OF_ALL_GPUS.values(), ids=OF_ALL_GPUS)
def test_a_gauge_shows_one_number_of_all_gpus(lab, aggregation, metric):
    """The mean temperature in °C, the summed power in W."""
    ((_, value),) = lab.query(f"{aggregation}({chosen(lab, metric)})")
    low, high = {"avg": (30, 90), "sum": (GPUS * 100, GPUS * 700)}[aggregation]
    assert low < value < high


def test_choosing_one_instance_and_gpu_leaves_one_series(lab):
    """The variables' labels are on the series."""
    assert len(lab.query('DCGM_FI_DEV_GPU_TEMP{instance=~"node-2", gpu=~"5"}')) == 1
