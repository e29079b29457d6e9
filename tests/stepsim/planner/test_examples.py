"""Plans to begin with: what each says is so."""

import pytest

from stepsim.planner.answer import answer
from stepsim.planner.examples import EXAMPLES
from stepsim.planner.request import PlanRequest

NODE, PCIE, SMALL, LARGE = (answer(PlanRequest.of(example.given)) for example in EXAMPLES)


def efficiency(plan, gpus):
    return next(point["efficiency_ratio"] for point in plan["scaling"]["strong"]["points"] if point["gpus"] == gpus)


@pytest.mark.parametrize(("plan", "number"), [(NODE, 0), (PCIE, 1)])
def test_a_node_keeps_what_is_said(plan, number):
    """Of one GPU's speed, on eight."""
    assert f"{efficiency(plan, 8):.0%}".replace("%", " %") in EXAMPLES[number].notice
    assert plan["prediction"]["fits"]


def test_pcie_has_more_communication_than_backward():
    """As many milliseconds as are said."""
    now = PCIE["prediction"]
    assert f"{1000 * now['communication']['data']['seconds']:.0f} ms" in EXAMPLES[1].notice
    assert now["communication"]["data"]["seconds"] > 2 / 3 * now["seconds"]["compute"]


def test_more_gpus_make_a_small_batch_slower():
    """128 take longer than eight, where the knee is."""
    strong = SMALL["scaling"]["strong"]
    steps = {point["gpus"]: point["step_seconds"] for point in strong["points"]}
    assert steps[128] > steps[8]
    assert strong["knee_gpus"] == 8


def test_a_70b_model_does_not_fit_under_ddp():
    """Its weights alone are 141 GB."""
    now = LARGE["prediction"]
    assert not now["fits"]
    assert f"{now['memory_bytes']['weights'] / 1e9:.0f} GB" in EXAMPLES[3].notice
    assert f"{now['memory_bytes']['weights'] / 2**30:.0f} GiB" in EXAMPLES[3].notice
    assert any("zero3" in way for way in LARGE["remedies"])
