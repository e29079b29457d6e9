"""The straggler calculator: its equations, its published numbers, its command."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from stepsim.commands import app
from stepsim.straggler import Straggler, StragglerError, solve
from stepsim.straggler.curve import efficiency_by_size
from stepsim.straggler.experiments import EXPERIMENTS
from stepsim.straggler.page import page_of
from stepsim.straggler.picture import picture


def test_one_gpu_at_70_percent_costs_a_quarter():
    """Ideal 410 ms by 30 + 300/0.7 + 80 ms: 287/377, 367 of 1,536 GPU-hours a day, 11,001 in 30 days."""
    answer = solve(Straggler())
    assert answer.efficiency == pytest.approx(287 / 377)
    assert answer.efficiency_expected == pytest.approx(287 / 377)
    assert answer.gpu_hours_per_day == 1536
    assert round(answer.lost_gpu_hours_per_day) == 367
    assert round(answer.lost_gpu_hours_per_30_days) == 11_001


def test_the_same_among_more_costs_in_proportion():
    """1,024 GPUs: 5,867 a day, 176,008 in 30 days."""
    answer = solve(Straggler(gpus=1024))
    assert answer.efficiency == pytest.approx(287 / 377)
    assert round(answer.lost_gpu_hours_per_day) == 5867
    assert round(answer.lost_gpu_hours_per_30_days) == 176_008


@pytest.mark.parametrize(("gpus", "efficiency"), [(8, 0.9505), (1024, 0.8938)])
def test_variation_alone_is_expected_to_cost_more_in_larger_jobs(gpus, efficiency):
    """No slow GPU, 5 %."""
    assert round(solve(Straggler(gpus=gpus, slow_gpus=0, variability=5)).efficiency_expected, 4) == efficiency


def test_a_slower_all_reduce_raises_efficiency_while_useful_compute_falls():
    """200 ms: 80.5 %, and compute's share falls from 55.7 to 45.6 %."""
    before, after = solve(Straggler()), solve(Straggler(allreduce_ms=200))
    assert round(after.efficiency, 3) == 0.805
    assert (round(before.useful_compute_share, 3), round(after.useful_compute_share, 3)) == (0.557, 0.456)


def test_a_straggler_raises_what_is_displayed_while_useful_compute_falls():
    """Waiting counts as utilization."""
    healthy, slow = solve(Straggler(slow_gpus=0)), solve(Straggler())
    assert slow.displayed_utilization > healthy.displayed_utilization > 0.9
    assert slow.useful_compute_share < healthy.useful_compute_share


@pytest.mark.parametrize("case", [{}, {"slow_gpus": 3}, {"slow_gpus": 40}, {"slow_gpus": 64, "slow_speed": 50}])
def test_the_expectation_is_the_mean_of_many_draws(case):
    """With slow ones, some and all; to four standard errors."""
    question = Straggler(variability=8, **case)
    draws = [solve(question.model_copy(update={"seed": seed})).step_seconds for seed in range(600)]
    error = np.std(draws) / np.sqrt(len(draws))
    assert abs(np.mean(draws) - solve(question).step_seconds_expected) < 4 * error


@pytest.mark.parametrize("variability", [0.001, 0.01, 0.1])
def test_little_variation_costs_little_and_never_brings_anything(variability):
    """The largest of 64 normals is 2.344 σ above the mean."""
    answer = solve(Straggler(slow_gpus=0, variability=variability))
    assert answer.step_seconds_expected == pytest.approx(0.41 + 0.3 * variability / 100 * 2.3437, rel=1e-6)


def test_a_draw_is_reproducible_and_a_gpu_keeps_its_own():
    """When the job grows."""
    small, again, large, other = (
        solve(Straggler(gpus=gpus, slow_gpus=0, variability=5, seed=seed)).compute_seconds
        for gpus, seed in ((64, 3), (64, 3), (128, 3), (64, 4))
    )
    assert (small == again).all()
    assert (small == large[:64]).all()
    assert (small != other).all()


@pytest.mark.parametrize("slow", [0, 1, 7, 64])
def test_as_many_are_slow_as_were_asked_for(slow):
    """Spread over the job."""
    assert solve(Straggler(slow_gpus=slow)).slow.sum() == slow


@pytest.mark.parametrize("gpus", [1, 8, 64, 129, 16_384])
def test_bars_hold_every_gpu_once_and_end_together(gpus):
    """At most 128 of them; the slow GPU's is among them."""
    answer = solve(Straggler(gpus=gpus, variability=3))
    assert len(answer.bars) == min(gpus, 128)
    assert [gpu for bar in answer.bars for gpu in range(bar.first, bar.last + 1)] == list(range(gpus))
    ends = [bar.load_seconds + bar.compute_seconds + bar.waiting_seconds + bar.allreduce_seconds for bar in answer.bars]
    assert ends == pytest.approx([answer.step_seconds] * len(ends))
    assert any(bar.slow for bar in answer.bars)
    assert min(bar.waiting_seconds for bar in answer.bars) == 0


def test_efficiency_falls_with_size_where_all_vary():
    """From 8 to 16,384, in doublings."""
    sizes = efficiency_by_size(Straggler(slow_gpus=0, variability=5))
    assert [gpus for gpus, _ in sizes] == [8 * 2**n for n in range(12)]
    efficiencies = [efficiency for _, efficiency in sizes]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert efficiency_by_size(Straggler(gpus=64, slow_gpus=20))[0][0] == 32


def test_money_is_told_only_with_a_price():
    """It is hours times price."""
    assert not [name for name in solve(Straggler()).to_dict() if "money" in name]
    answer = solve(Straggler(price=2.5))
    assert answer.to_dict()["lost_money_per_30_days"] == pytest.approx(2.5 * answer.lost_gpu_hours_per_30_days)


EIGHT = solve(Straggler(gpus=8, slow_gpus=0, variability=5))


@pytest.mark.parametrize("number", range(4))
def test_what_an_experiment_says_is_what_it_shows(number):
    """Each number in its text is one of its answer's, or of the job it is compared with."""
    experiment = EXPERIMENTS[number]
    shown = page_of(solve(experiment.question))["answer"]
    wanted = {
        0: [(f"{1 - shown['efficiency']:.0%}", "24 %"), (f"{shown['lost_gpu_hours_per_day']:.0f}", "367 GPU-hours")],
        1: [(f"{shown['lost_gpu_hours_per_day']:,.0f}", "5,867 GPU-hours")],
        2: [(f"{shown['efficiency_expected']:.1%}", "89.4 %"), (f"{EIGHT.efficiency_expected:.1%}", "95.0 %")],
        3: [(f"{shown['efficiency']:.1%}", "80.5 %"), (f"{shown['useful_compute_share']:.1%}", "45.6 %")],
    }[number]
    for value, text in wanted:
        assert value.replace("%", " %") in text
        assert text in experiment.notice


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gpus": "4", "slow_gpus": "5"}, "slow_gpus is 5, and there are 4 GPUs"),
        ({"gpus": "0"}, "gpus: input should be greater than or equal to 1, and got '0'"),
        ({"gpus": "many"}, "gpus: input should be a valid integer"),
        ({"compute_ms": "0"}, "compute_ms: input should be greater than 0"),
        ({"load_ms": "nan"}, "load_ms: input should be a finite number"),
        ({"slow_speed": "120"}, "slow_speed: input should be less than or equal to 100"),
        ({"speed": "70"}, "there is no 'speed'; there are gpus, load_ms"),
    ],
)
def test_nonsense_is_refused_by_name(values, said):
    """With what was given, or what there is."""
    with pytest.raises(StragglerError, match="^" + said.replace("(", r"\(")):
        Straggler.of(values)


def run(*arguments):
    return CliRunner().invoke(app, ["straggler", *arguments])


def test_the_command_prints_json_and_a_table():
    """The numbers of the design, by its names."""
    told = json.loads(run("--json", "--gpus", "1024").stdout)
    assert {
        "efficiency", "efficiency_expected", "useful_compute_share", "step_seconds", "ideal_step_seconds",
        "lost_gpu_hours_per_day", "lost_gpu_hours_per_30_days", "gpu_hours_per_day",
    } <= told.keys()  # fmt: skip
    assert told["lost_gpu_hours_per_30_days"] == pytest.approx(176_008, abs=1)
    table = run("--price", "2", "--currency", "EUR").stdout
    assert "76.13%" in table
    assert "lost EUR in 30 days" in table
    assert "slow" in table
    assert "lost [/] in 30 days" in run("--price", "2", "--currency", "[/]").stdout


@pytest.mark.parametrize("arguments", [("--slow-gpus", "99"), ("--gpus", "0"), ("--plot", "step.png")])
def test_the_command_refuses_nonsense_with_status_2(arguments):
    """And says why."""
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("stepscope: ")


def test_the_picture_is_one(tmp_path):
    """A bar per GPU and part, the curve, and where it is."""
    file = tmp_path / "new" / "step.svg"
    assert run("--plot", str(file), "--gpus", "16").exit_code == 0
    drawn = ElementTree.fromstring(file.read_text())
    name = "{http://www.w3.org/2000/svg}"
    bars = [rect for rect in drawn.iter(f"{name}rect") if float(rect.get("y")) >= 70]
    assert len(bars) == 16 * 4
    assert len([rect for rect in bars if rect.get("class") == "slow"]) == 1
    assert drawn.find(f"{name}polyline") is not None


def test_a_picture_of_a_large_job_stays_small():
    """16,384 GPUs in 128 bars."""
    assert len(picture(solve(Straggler(gpus=16_384, variability=5)))) < 120_000
