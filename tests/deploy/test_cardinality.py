"""The README of deploy/ agrees with the code."""

import importlib.util
import re
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def cardinality():
    spec = importlib.util.spec_from_file_location("cardinality_script", DEPLOY / "cardinality.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_series_is_what_the_generator_writes(cardinality):
    """``make generate`` changes nothing."""
    assert (DEPLOY / "README.md").read_text(encoding="utf-8") == cardinality.readme()


def test_links_to_files_lead_somewhere():
    """From deploy/README.md."""
    links = re.findall(r"\]\(([^)#\s]+)\)", (DEPLOY / "README.md").read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (DEPLOY / link).exists()] == []
    assert links


def test_nothing_raw_of_a_rank_is_sent(cardinality):
    """What long-term storage holds per rank is recorded; the run's own series all go."""
    kept = cardinality.pages(sent=True)[0]
    everything = cardinality.pages()[0]
    assert sum(counts["rank"] for counts in kept.values()) == 0
    for source in ("training", "referee"):
        assert kept[source]["run"] == everything[source]["run"] > 0
