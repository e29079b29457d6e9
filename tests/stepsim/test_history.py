"""When a generated past is sampled."""

from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from stepsim.history import LATE_SCRAPE_SECONDS, LEAD_SECONDS, LOADING, SCRAPE_SECONDS, scrapes, write_history
from stepsim.job import load_job
from stepsim.state import load_state

END = 1_700_000_007.0


def test_a_past_ends_as_dense_as_the_live_job_goes_on():
    """And begins four times as sparse; its last sample is where the live job begins."""
    moments = scrapes(END - 7200, END)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert moments[-1] == END
    assert gaps[-24:] == [LATE_SCRAPE_SECONDS] * 24
    assert gaps[0] == SCRAPE_SECONDS
    assert gaps == sorted(gaps, reverse=True)
    assert END - 7200 + SCRAPE_SECONDS <= moments[0] < END - 7200 + 2 * SCRAPE_SECONDS


@pytest.mark.parametrize("window", [60, 30])
def test_no_rate_over_it_reads_too_low(window):
    """Prometheus extrapolates to a window's edge where the gap there is at most 1.1 times the mean spacing, and else by half of
    it only (extrapolatedRate). At any moment: rules are evaluated at moments of their own."""
    moments = scrapes(END - 7200, END)
    for quarter in range(4 * 900):
        at = END - quarter / 4
        inside = [moment for moment in moments if at - window <= moment <= at]
        mean = (inside[-1] - inside[0]) / (len(inside) - 1)
        assert inside[0] - (at - window) <= 1.1 * mean
        assert at - inside[-1] <= 1.1 * mean


@pytest.mark.parametrize(("seconds", "lead"), [(1.0, LEAD_SECONDS), (30.0, 30 + LOADING * 30)])
def test_a_past_reaches_as_far_as_loading_it_will_take(tmp_path, monkeypatch, seconds, lead):
    """On a busy machine it is longer, lest the live job begin with a hole; where it goes on is kept."""
    now, watch = END, iter((0.0, *[seconds] * 9))
    monkeypatch.setattr("stepsim.history.time.monotonic", lambda: next(watch))
    times = iter((now, *[now + seconds] * 9))
    monkeypatch.setattr("stepsim.history.time.time", lambda: next(times))
    state = tmp_path / "state.json"
    rules = Path(__file__).parents[2] / "prometheus/rules/recording.yml"
    write_history(
        load_job("laptop"), tmp_path, seed=1, hours=0.05, rules=rules, state_file=state, console=Console(quiet=True)
    )
    end = int((tmp_path / "end").read_text())
    assert now + lead - LATE_SCRAPE_SECONDS < end <= now + lead + 1
    assert load_state(state).until == end
    text = (tmp_path / "history.om").read_text()
    assert text.endswith("# EOF\n")
    assert f" {end}.000\n" in text


def test_a_short_past_is_dense_from_its_beginning():
    """Of a very large job it is minutes."""
    moments = scrapes(END - 60, END)
    assert len(moments) == 10
