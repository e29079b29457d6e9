"""A diagnosis in plain words."""

import math
import re
from dataclasses import replace

import pytest

from reports import EXPLOSION, HEALTHY, TWO, UNKNOWN
from stepscope.diagnosis import wording
from stepscope.diagnosis.report import Step, Suspicion


def test_a_report_in_words():
    """To the letter: costliest first, evidence with its band and query, what it is not, the runbook, what is missing."""
    assert wording.in_words(TWO) == (
        "cluster, 2023-11-14 22:15:20 UTC: 2 things are wrong, the costliest first.\n"
        "\n"
        "1. straggler: rank 5, costs 9.84 GPUs, confidence 97 %\n"
        "   Rank 5 computes 43 % longer than the median rank, and all others wait for it.\n"
        "   - rank 5's share of the run's time: 27.3 % (healthy: below 8 %)\n"
        '     rank:training_culprit:share{ run="cluster"}\n'
        "   - its backward: 12.3 ms (healthy: within 5 % of the median)\n"
        "     b\n"
        "   - not thermal_throttle: GPUs throttled for heat: 0 (healthy: 0)\n"
        "   Runbook: TrainingRankStraggling (docs/runbooks/TrainingRankStraggling.md)\n"
        "\n"
        "2. gradient_explosion: the whole run, costs 1 GPU, confidence 100 %\n"
        "   The gradient norm is no number any more.\n"
        "   - gradient norm: NaN (healthy: below 1.2)\n"
        "     g\n"
        "   Runbook: TrainingGradientExploding (docs/runbooks/TrainingGradientExploding.md)\n"
        "\n"
        "Could not be looked at: no PCIe counters; no XIDs.\n"
    )


def test_what_has_just_ended_is_said_to_have():
    """It is told a little longer than its grounds hold, as its alert is."""
    (ended,) = (replace(one, confidence=0.0) for one in TWO.verdicts[:1])
    said = wording.in_words(replace(TWO, verdicts=(ended,)))
    assert "1. straggler: rank 5, costs 9.84 GPUs, has just ended\n" in said
    assert said.startswith("cluster, 2023-11-14 22:15:20 UTC: 1 thing has just ended.\n")


def test_what_is_suspected_is_neither_wrong_nor_healthy():
    """Who, what, and how much longer it takes."""
    suspicion = Suspicion(fault="hang", target={"rank": 5}, held_seconds=10.0, needed_seconds=15.0)
    step = Step(question="Does it move?", wrong=(), suspected=("hang",), evidence=())
    said = wording.in_words(replace(HEALTHY, suspicions=(suspicion,), steps=(step,)))
    assert said == (
        "cluster, 2023-11-14 22:15:20 UTC: not certain yet, something may be wrong: ask again within a minute.\n"
        "\n"
        "Not certain yet:\n"
        "- hang: rank 5, for 10 s of the 15 s that it takes\n"
        "\n"
        "What was looked at, in order:\n"
        "1. Does it move? not certain yet: hang\n"
    )
    both = wording.in_words(replace(TWO, suspicions=(suspicion,)))
    assert "2 things are wrong" in both
    assert "\nNot certain yet:\n- hang: rank 5" in both


def test_a_healthy_run_takes_one_line():
    """There is nothing to add."""
    assert wording.in_words(HEALTHY) == "cluster, 2023-11-14 22:15:20 UTC: healthy, nothing was found that is wrong.\n"


def test_not_enough_data_is_never_called_healthy():
    """And what is missing is said."""
    said = wording.in_words(UNKNOWN)
    assert "not enough data" in said
    assert "no steps in the last minute" in said
    assert "healthy" not in said


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.273, "ratio", "27.3 %"), (0.0004, "ratio", "0.04 %"), (1.43, "ratio", "143 %"), (-0.05, "ratio", "-5 %"),
        (0, "seconds", "0 s"), (0.0000123, "seconds", "12.3 µs"), (0.0123, "seconds", "12.3 ms"), (1.5, "seconds", "1.5 s"),
        (-0.5, "seconds", "-500 ms"), (600, "seconds", "10 min"), (9000, "seconds", "2.5 h"),
        (652.4, "watts", "652 W"), (87.5, "celsius", "87.5 °C"), (1.98e9, "hertz", "1.98 GHz"), (3.45e8, "hertz", "345 MHz"),
        (2.5e10, "bytes_per_second", "25 GB/s"), (1.2e6, "bytes_per_second", "1.2 MB/s"), (0, "bytes_per_second", "0 B/s"),
        (1234, "count", "1,234"), (12345.6, "number", "12,346"), (0.3141, "number", "0.314"),
        (math.nan, "seconds", "NaN"), (math.inf, "ratio", "+Inf"), (-math.inf, "count", "-Inf"),
    ],
)  # fmt: skip
def test_a_number_is_written_with_its_unit(value, unit, text):
    """In three digits, in the unit in which people think of it."""
    assert wording.human(value, unit) == text


@pytest.mark.parametrize(
    ("target", "text"), [({"rank": 5}, "rank 5"), ({"node": "node-2"}, "node-2"), ({"run": True}, "the whole run")]
)
def test_a_target_is_written_in_words(target, text):
    """As everywhere."""
    assert wording.target_text(target) == text


def test_nothing_that_is_scraped_steers_the_terminal():
    """A node's name is whatever its owner sets; our own colours stay."""
    evil = replace(EXPLOSION, target={"node": "n\x1b]0;gotcha\x07\x1b[2J"})
    said = wording.in_words(replace(TWO, run="r\x1b[8A", verdicts=(evil,)), wording.coloured)
    left = re.sub(r"\x1b\[\d{1,2}m", "", said).replace("\n", "")
    assert left.isprintable()
