"""The fault matrix is measured, up to date, and says what the lab is for."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

from stepsim.faults import FAULTS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("faults_script", DOCS / "faults.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def measured(script):
    """By fault: its row, and the healthy one that it is held against."""
    return {
        name: (script.row(setup, name), script.row(setup, None)) for setup in script.SETUPS for name in setup.faults
    }


def test_page_and_picture_are_what_the_generator_writes(script):
    """``make generate`` changes nothing."""
    assert (DOCS / "faults.md").read_text(encoding="utf-8") == script.page()
    assert script.PICTURE.read_text(encoding="utf-8") == script.picture()


def test_every_fault_has_an_alert_with_a_runbook_and_a_row_in_each_table(script, measured):
    """Neither catalogue nor matrix leaves one out."""
    assert measured.keys() == FAULTS.keys() == script.alerts().keys()
    page = (DOCS / "faults.md").read_text(encoding="utf-8")
    assert {name: page.count(f"\n| `{name}` | ") for name in FAULTS} == dict.fromkeys(FAULTS, 1 + len(script.THEMES))
    assert [alert for alert in script.alerts().values() if not (DOCS / f"runbooks/{alert}.md").exists()] == []


def test_every_fault_moves_something(script, measured):
    """By the rule on the page."""
    for name, (row, healthy) in measured.items():
        assert any(column.moved(row[key], healthy[key]) for key, column in script.COLUMNS.items()), name


def test_every_column_moves_for_at_least_one_fault(script, measured):
    """One that never does would only take up room."""
    still = [
        key
        for key, column in script.COLUMNS.items()
        if not any(column.moved(row[key], healthy[key]) for row, healthy in measured.values())
    ]
    assert still == []


@pytest.mark.parametrize("fault", ["straggler", "data_starvation"])
def test_utilization_stands_still_while_the_run_loses_a_quarter_and_more(measured, fault):
    """The mirage, in numbers: less than 3 points against a quarter of MFU."""
    row, healthy = measured[fault]
    assert abs(row["util"] - healthy["util"]) < 3
    assert row["mfu"] < 0.75 * healthy["mfu"]


def test_an_exploding_gradient_leaves_the_hardware_as_it_was(script, measured):
    """MFU and every series of the GPUs are healthy while nothing is learned any more."""
    row, healthy = measured["gradient_explosion"]
    hardware = [column.key for column in script.THEMES[0].columns]
    assert {key: row[key] for key in hardware} == {key: healthy[key] for key in hardware}
    assert math.isnan(row["norm"])
    assert row["nonfinite"] > 0
