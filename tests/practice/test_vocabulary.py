"""stepsim.practice.vocabulary: names and labels are those of the pages that the lab serves."""

import re
from pathlib import Path

import pytest
import yaml

from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.job import load_job
from stepsim.pages import Pages, target_labels
from stepsim.practice.vocabulary import vocabulary

RECORDING = Path(__file__).parents[2] / "prometheus/rules/recording.yml"


@pytest.fixture(scope="module")
def known():
    return vocabulary(yaml.safe_load(RECORDING.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def pages():
    job = load_job("cluster")
    engine = Engine(job, FaultBoard(job), seed=1, now=0.0)
    engine.advance(60.0)
    return Pages(engine, lambda: engine.now, labelled_targets=True, blind=True)


def matching(shapes, labels):
    """The shapes that a series with these labels has."""
    return [s for s in shapes if s.keys() == labels.keys() and all(v in (None, labels[k]) for k, v in s.items())]


def test_every_series_of_the_lab_is_known_with_exactly_its_labels(pages, known):
    """Each scraped series' name is in the vocabulary, and its labels are those of one of the name's shapes."""
    scraped = set()
    for name in pages.names():
        for line in pages.text(*name).splitlines():
            if line and not line.startswith("#"):
                metric, _, rest = line.partition("{")
                labels = dict(re.findall(r'(\w+)="([^"]*)"', rest.rpartition("}")[0]))
                assert matching(known[metric].shapes, labels), line
                scraped.add(metric)
    assert len(scraped) > 70


def test_up_has_the_labels_of_every_target(pages, known):
    """`up` is there for each page with what service discovery says of it, and with nothing else."""
    for name in pages.names():
        assert len(matching(known["up"].shapes, target_labels(*name))) == 1


def test_neither_truth_nor_diagnosis_is_known(known):
    """A rule that reads the truth would be no rule."""
    assert [name for name in known if name.startswith(("lab_", "diagnosis"))] == []


@pytest.mark.parametrize(
    ("name", "kind", "labels"),
    [
        ("training_loss", "gauge", {"job", "instance", "run"}),
        ("training_step_duration_seconds_bucket", "histogram", {"job", "instance", "run", "node", "le"}),
        ("training_step_duration_seconds_sum", "histogram", {"job", "instance", "run", "node"}),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter",
         {"job", "instance", "node", "gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname"}),
        ("node_cpu_seconds_total", "counter", {"job", "instance", "node", "cpu", "mode"}),
        ("node:training_cpu_user:share_rate1m", "recorded", {"run", "node"}),
        ("rank:gpu_temperature_celsius:avg1m", "recorded", {"run", "rank", "node"}),
        ("run:training_late_concentration:max_rank", "recorded", {"run"}),
        ("run:training_pauses:share_rate1m", "recorded", {"run", "phase"}),
    ],
)  # fmt: skip
def test_kind_and_labels_of_a_family(known, name, kind, labels):
    """Scraped ones as their table says, recorded ones as their expression gives them."""
    assert (known[name].kind, known[name].labels) == (kind, labels)


def test_all_labels_of_the_recording_rules_are_inferred(known):
    """No recorded family's labels are left unknown, and its name's level is among them."""
    for family in (f for f in known.values() if f.kind == "recorded"):
        level = family.name.partition(":")[0]
        assert family.shapes is not None
        assert ("UUID" if level == "gpu" else level) in family.labels, family.name


def test_what_may_be_nan(known):
    """The loss and the gradients; not what a recording rule makes of them with care."""
    assert {f.name for f in known.values() if f.may_be_nan} == {
        "training_loss", "training_gradient_norm", "training_local_gradient_norm"
    }  # fmt: skip


def test_recorded_families_look_back_as_far_as_what_they_are_made_of(known):
    """A window is inherited through the levels of recording rules."""
    assert known["run:training_lost_gpus:total"].window_seconds == 6 * 3600
    assert known["run:training_ranks:count"].window_seconds == 0
