"""Thresholds come from the alerts; bit masks and error numbers are spelt out."""

import pytest

import meaning
from dashboard_files import BY_NAME


@pytest.mark.parametrize(
    ("alert", "before", "expr", "value"),
    [
        ("A", "", "rank:share > 0.08", 0.08),
        ("A", "", "sum(a{b='1'}) >= 3", 3),
        ("A", "second", "first > 1 and second < 0.5", 0.5),
    ],
)
def test_a_bound_is_the_number_that_the_alert_compares_with(tmp_path, monkeypatch, alert, before, expr, value):
    """The first one, or the first after a text."""
    (tmp_path / "alerts.yml").write_text(f'groups: [{{rules: [{{alert: {alert}, expr: "{expr}"}}]}}]')
    monkeypatch.setattr(meaning, "ALERTS", tmp_path / "alerts.yml")
    assert meaning.bound.__wrapped__(alert, before) == value


def test_the_bounds_of_the_alerts_are_those_that_panels_are_coloured_by():
    """Pinned: an alert that is written anew must not move them unseen."""
    assert (meaning.CULPRIT_SHARE, meaning.NONFINITE_STEPS, meaning.OUT_OF_BAND_STEPS) == (0.08, 3, 3)


@pytest.mark.parametrize("title", ["Steps with NaN or infinite values", "Steps out of band"])
def test_steps_in_trouble_are_red_where_the_alert_fires_and_not_before(title):
    """It lets pass what loss scaling for fp16 does now and then; both count the last minute, as it does."""
    panel = BY_NAME[f"learning: {title}"]
    colours = {step["color"]: step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]}
    assert (colours[meaning.WARN], colours[meaning.BAD]) == (1, 3)
    assert "[1m]" in panel["targets"][0]["expr"]


def test_a_bound_that_is_not_there_is_an_error():
    """An alert that does not exist, or one without such a comparison: no panel gets a made-up threshold."""
    with pytest.raises(KeyError):
        meaning.bound("NoSuchAlert")
    with pytest.raises(ValueError, match="compares with no number"):
        meaning.bound("GpuUtilizationLow", "no such text")


def reading(mappings, value):
    return mappings[0]["options"][str(value)]["text"]


def test_every_combination_of_throttle_reasons_is_spelt_out():
    """Bits as in nvml.h; a GPU may be held back by several at once."""
    assert reading(meaning.THROTTLE_REASONS, 0) == "none"
    assert reading(meaning.THROTTLE_REASONS, 0x04 | 0x20) == "power cap + thermal, driver"
    assert (
        reading(meaning.THROTTLE_REASONS, 0x08 | 0x40 | 0x80) == "hardware slowdown + thermal, hardware + power brake"
    )
    assert len(meaning.THROTTLE_REASONS[0]["options"]) == 2 + 2**5 - 1
    assert meaning.THROTTLE_REASONS[1]["options"]["result"]["text"] == "other reasons"  # that do not slow a GPU down


def test_a_lost_gpu_is_named():
    """XID 79 is what everybody fears."""
    assert reading(meaning.XIDS, 79) == "79: fallen off the bus"
