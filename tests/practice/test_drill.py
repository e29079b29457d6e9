"""Drill files: what is accepted, and what is said of the rest."""

import json

import jsonschema
import pytest
import yaml

from practice_drills import drill_of
from stepsim.practice.drill import Drill, DrillError, drills, find_drill, read_drill, rule_text

TOLD = drill_of().model_dump(mode="json", by_alias=True, exclude_none=True)


def written(**changes):
    return yaml.safe_dump({**TOLD, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": 8}, "unknown key 'rank'; here there are id, title, goal"),
        (
            {"incidents": [{"fault": "straggler", "length": "5m"}]},
            "unknown key 'incidents.1.length'; here there are fault, target",
        ),
        ({"incidents": [{"fault": "stragler"}]}, "unknown fault 'stragler'; there are straggler"),
        ({"incidents": [{"fault": "straggler", "severity": 99}]}, "must be a number from 1 to 20"),
        ({"incidents": [{"fault": "straggler", "target": "run"}]}, "straggler strikes one rank"),
        ({"incidents": [{"fault": "straggler", "lasts": "5 parsecs"}]}, "a duration is a number of seconds"),
        ({"incidents": [{"fault": "straggler", "overlaps": True}]}, "there is none before it"),
        ({"incidents": [{"fault": "straggler", "expect": "silence"}]}, "at least one must expect a page or a ticket"),
        ({"incidents": []}, "incidents: "),
        ({"job": {"accelerator": "H900"}}, "unknown accelerator 'H900'"),
        ({"distractors": ["fire"]}, "distractors.1: "),
        ({"eval": "20s"}, "eval: must be a multiple of scrape"),
        (
            {"reference": [{"alert": "A", "expr": "x", "until": "5m"}]},
            "unknown key 'reference.1.until'; here there are alert, expr, for",
        ),
        ({"id": "No Spaces"}, "id: "),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong_and_what_would_be_right(changes, said):
    """With its name and the key."""
    with pytest.raises(DrillError, match=r"mine\.yml") as refused:
        read_drill(written(**changes), "mine.yml")
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", ""])
def test_what_is_no_mapping_is_refused(text):
    """Broken YAML, a list, nothing."""
    with pytest.raises(DrillError, match=r"mine\.yml"):
        read_drill(text, "mine.yml")


def test_a_drill_of_ones_own_is_a_file(tmp_path):
    """One that does not exist is named."""
    (tmp_path / "mine.yml").write_text(written(), encoding="utf-8")
    assert find_drill(str(tmp_path / "mine.yml")).id == "small"
    with pytest.raises(DrillError, match=r"cannot read .*other.yml: No such file"):
        find_drill(str(tmp_path / "other.yml"))


def test_an_unknown_drill_is_told_which_there_are():
    """By id."""
    with pytest.raises(DrillError, match=r"no drill 'stragler'; there are .*straggler"):
        find_drill("stragler")


def test_the_schema_accepts_what_the_model_accepts():
    """A teacher's editor can check a file."""
    schema = Drill.model_json_schema()
    jsonschema.validate(json.loads(json.dumps(TOLD)), schema)
    for drill in drills().values():
        jsonschema.validate(drill.model_dump(mode="json", by_alias=True, exclude_none=True), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**TOLD, "rank": 8}, schema)


def test_rules_are_written_as_prometheus_reads_them():
    """With for, and without what is not said."""
    (group,) = yaml.safe_load(rule_text(drill_of().reference, "g"))["groups"]
    assert group["rules"] == [
        {"alert": "Slow", "expr": "rank:training_culprit:share > 0.08", "for": "15s", "labels": {"severity": "page"}}
    ]
