"""The fault matrix is measured, up to date, and says what the lab is for."""

import math

import pytest

from fault_matrix.columns import COLUMNS, THEMES
from fault_matrix.look_alikes import LOOK_ALIKES
from fault_matrix.measuring import SETUPS
from fault_matrix.rows import row as row_of
from fault_matrix.rows import setup_of
from fault_matrix.tables import alerts, impossible
from faults import FILE, PICTURE, page, picture
from stepsim.faults import FAULTS

COMPUTING = ("straggler", "thermal_throttle", "power_cap", "sequence_imbalance", "jitter", "memory_bound")
FED = ("data_starvation", "storage_node_slow", "cpu_starvation", "pcie_downgrade")


@pytest.fixture(scope="module")
def measured():
    """By fault: its row, and the healthy one that it is held against."""
    return {name: (row_of(setup, name), row_of(setup, None)) for setup in SETUPS for name in setup.faults}


def test_page_and_picture_are_what_the_generator_writes():
    """``make generate`` changes nothing."""
    assert FILE.read_text(encoding="utf-8") == page()
    assert PICTURE.read_text(encoding="utf-8") == picture()


def test_every_fault_has_an_alert_with_a_runbook_and_a_row_in_each_table(measured):
    """Neither catalogue nor matrix leaves one out."""
    assert measured.keys() == FAULTS.keys() == alerts().keys()
    written = page()
    assert {name: written.count(f"\n| `{name}` | ") for name in FAULTS} == dict.fromkeys(FAULTS, 1 + len(THEMES))
    assert [alert for alert in alerts().values() if not (FILE.parent / f"runbooks/{alert}.md").exists()] == []


def test_every_fault_moves_something(measured):
    """By the rule on the page."""
    for name, (row, healthy) in measured.items():
        assert any(column.moved(row[key], healthy[key]) for key, column in COLUMNS.items()), name


def test_every_column_moves_for_at_least_one_fault(measured):
    """One that never does would only take up room."""
    still = [
        key
        for key, column in COLUMNS.items()
        if not any(column.moved(row[key], healthy[key]) for row, healthy in measured.values())
    ]
    assert still == []


MIRAGE = (*COMPUTING, *FED, "network_degradation", "nccl_fallback", "gc_pause")
"""Faults that a GPU's utilization does not show."""


@pytest.mark.parametrize("fault", MIRAGE)
def test_utilization_stands_still_while_the_run_loses_time(measured, fault):
    """The mirage, in numbers: less than 2 points against an eighth of MFU and more."""
    row, healthy = measured[fault]
    assert abs(row["util"] - healthy["util"]) < 2
    assert row["mfu"] < 0.88 * healthy["mfu"]


def test_starved_loaders_cost_most_of_the_run_and_nothing_of_utilization(measured):
    """A third of MFU is left, and 97 % of utilization."""
    row, _ = measured["data_starvation"]
    assert row["mfu"] < 15
    assert row["util"] > 97


def test_utilization_shows_one_data_fault_only(measured):
    """An outage of all storage."""
    fallen = {name for name, (row, healthy) in measured.items() if row["util"] < healthy["util"] - 10}
    assert fallen == {"storage_outage"}


@pytest.mark.parametrize("fault", ["gradient_explosion", "loss_plateau", "silent_corruption"])
def test_what_goes_wrong_in_learning_leaves_the_hardware_as_it_was(measured, fault):
    """Not a digit of any series of time, GPU, host or network differs, and something of learning does."""
    row, healthy = measured[fault]
    *others, learning = (theme.columns for theme in THEMES)
    assert [column.key for columns in others for column in columns if row[column.key] != healthy[column.key]] == []
    assert any(column.moved(row[column.key], healthy[column.key]) for column in learning)


def test_an_exploding_gradient_ends_in_steps_that_are_not_finite(measured):
    """A minute after its start the loss and the gradient are no numbers any more."""
    row, healthy = measured["gradient_explosion"]
    assert math.isnan(row["loss"])
    assert math.isnan(row["norm"])
    assert row["nonfinite"] > healthy["nonfinite"] == 0


def test_a_gpu_that_is_too_hot_is_told_from_one_that_may_not_draw_power(measured):
    """Both clocks are low; one GPU is hot with its limit untouched, the other is cool with its limit lowered."""
    (hot, healthy), (capped, _) = measured["thermal_throttle"], measured["power_cap"]
    assert max(hot["clock"], capped["clock"]) < 0.8 * healthy["clock"]
    assert (hot["celsius"] > healthy["celsius"] + 15, hot["limit"]) == (True, 100)
    assert (capped["celsius"] <= healthy["celsius"], capped["limit"]) == (True, 55)
    assert (int(hot["reasons"]) & 0x20, int(capped["reasons"]) & 0x20) == (0x20, 0)


@pytest.mark.parametrize("fault", COMPUTING[:3])
def test_the_culprit_waits_least(measured, fault):
    """It is last in every step and spends next to nothing in the all-reduce, in which all others wait for it."""
    row, _ = measured[fault]
    assert row["late_rank"] == 100
    assert row["accused"] < 0.05 * row["others"]


@pytest.mark.parametrize(
    ("fault", "phase"),
    [
        ("data_starvation", "data_wait"), ("storage_node_slow", "data_wait"), ("cpu_starvation", "data_wait"),
        ("pcie_downgrade", "h2d"), ("gc_pause", "other"), ("checkpoint_stall", "checkpoint"),
    ],
)  # fmt: skip
def test_the_mean_rank_hides_what_the_critical_path_shows(measured, fault, phase):
    """The phase takes a fifth and more of the critical path, and of the mean rank's time a tenth of that, or so."""
    row, healthy = measured[fault]
    on_path, on_average = (row[f"{which}_{phase}"] - healthy[f"{which}_{phase}"] for which in ("path", "own"))
    assert on_path > 20
    assert 0 < on_average < on_path / 8


def test_the_numbers_tell_every_pair_of_look_alikes_apart(measured):
    """Each of them differs between the two, by the rule on the page."""
    alike = [
        (pair.one, pair.other, key)
        for pair in LOOK_ALIKES
        for key in pair.columns
        if not COLUMNS[key].moved(measured[pair.one][0][key], measured[pair.other][0][key])
    ]
    assert alike == []


def test_a_second_measurement_gives_the_same_numbers():
    """Nothing depends on when or where it is run."""
    for fault in ("straggler", "data_starvation", "gradient_explosion"):
        setup = setup_of(fault)
        assert repr(row_of.__wrapped__(setup, fault)) == repr(row_of(setup, fault))


def test_the_page_tells_which_jobs_cannot_have_a_fault():
    """And why, in the words of the fault list."""
    lines = impossible().splitlines()
    assert [line.split("`")[1] for line in lines] == ["network_degradation", "nccl_fallback"]
    assert "`laptop`" in lines[0]
    assert "nothing crosses a network" in lines[0]
