"""stepsim.practice.submissions: results are kept whole or not at all, and a damaged one harms no other."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from practice_grades import HIT, fires, graded, rule_file
from stepsim.practice import submissions as module
from stepsim.practice.submissions import SubmissionError, Submissions

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture
def rules(tmp_path):
    return rule_file(tmp_path)


@pytest.fixture
def kept(tmp_path):
    return Submissions(tmp_path / "data", now=lambda: NOON)


def test_a_submission_is_read_as_it_was_kept(kept, rules):
    """Rules to the letter, grade, report, score and time."""
    grade = graded(rules, HIT)
    made = kept.keep(grade, rules)
    assert kept.get("hand-made") == made
    assert (made.number, made.when, made.score) == (1, NOON, round(grade.score.score, 1))
    assert made.rules.read_text(encoding="utf-8") == rules.text
    assert "<!doctype html>" in made.report.read_text(encoding="utf-8")
    assert (
        json.loads((made.path / "grade.json").read_text(encoding="utf-8"))["seeds"][0]["incidents"][0]["fault"]
        == "straggler"
    )


def test_the_last_is_given_unless_a_number_is(kept, rules):
    """By number, not by name: 10 comes after 9."""
    for _ in range(11):
        kept.keep(graded(rules, HIT), rules)
    assert kept.get("hand-made").number == 11
    assert kept.get("hand-made", 2).number == 2
    assert [one.number for one in kept.all("hand-made")] == list(range(1, 12))


def test_a_number_that_is_missing_lists_those_there_are(kept, rules):
    """So that the next try succeeds."""
    for _ in range(2):
        kept.keep(graded(rules, HIT), rules)
    with pytest.raises(SubmissionError, match=r"^no submission 7 of hand-made; there are 1, 2$"):
        kept.get("hand-made", 7)


def test_without_any_there_is_none(kept):
    """A drill that nobody has tried."""
    assert kept.all("hand-made") == []
    with pytest.raises(SubmissionError, match=r"^no submission of hand-made; there is none yet$"):
        kept.get("hand-made")


def test_a_submission_is_compared_with_another_one(kept, rules):
    """With itself it is not: it says which others there are, or that one is needed."""
    first = kept.keep(graded(rules, HIT), rules)
    with pytest.raises(SubmissionError, match=r"^there is only submission 1: submit again, then compare$"):
        kept.other("hand-made", first, 1)
    with pytest.raises(SubmissionError, match=r"^no submission 2 of hand-made; there are 1$"):
        kept.other("hand-made", first, 2)
    second = kept.keep(graded(rules, HIT), rules)
    assert kept.other("hand-made", second, 1) == first
    with pytest.raises(SubmissionError, match=r"^submission 2 is no comparison for itself; there are 1$"):
        kept.other("hand-made", second, 2)


def test_at_once_each_gets_a_number_of_its_own(kept, rules):
    """And nothing unfinished is left."""
    grade = graded(rules, HIT)
    with ThreadPoolExecutor(8) as pool:
        numbers = sorted(one.number for one in pool.map(lambda _: kept.keep(grade, rules), range(16)))
    assert numbers == list(range(1, 17))
    assert [entry.name for entry in kept.get("hand-made").path.parent.iterdir() if entry.name.startswith(".")] == []


def test_a_number_is_not_given_again(kept, rules):
    """As long as a later one is there: whoever wrote down a number finds what it meant."""
    for gone in [kept.keep(graded(rules, HIT), rules) for _ in range(3)][:2]:
        shutil.rmtree(gone.path)
    assert kept.keep(graded(rules, HIT), rules).number == 4


def test_what_fails_leaves_nothing(kept, rules, monkeypatch):
    """Neither a number nor a folder."""
    kept.keep(graded(rules, HIT), rules)

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(module, "write_report", full)
    with pytest.raises(OSError, match=r"no space"):
        kept.keep(graded(rules, HIT), rules)
    assert [entry.name for entry in kept.get("hand-made").path.parent.iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: (path / "grade.json").write_text("{"), "grade.json does not hold a grade"),
        (lambda path: (path / "grade.json").write_text('{"score": 3}'), "KeyError: 'when'"),
        (lambda path: (path / "grade.json").write_text("[]"), "grade.json does not hold a grade"),
        (lambda path: (path / "grade.json").write_bytes(b"\xff"), "grade.json does not hold a grade"),
        (lambda path: (path / "rules.yml").unlink(), "rules.yml is missing"),
    ],
)
def test_a_damaged_one_is_reported_and_harms_no_other(kept, rules, damage, why):
    """Those before it are read, its number is not given again, and who asks for it learns why."""
    first, second = (kept.keep(graded(rules, HIT), rules) for _ in range(2))
    damage(second.path)
    assert kept.all("hand-made") == [first]
    (damaged,) = kept.damaged("hand-made")
    assert damaged.number == 2
    assert why in damaged.why
    assert kept.get("hand-made") == first
    with pytest.raises(SubmissionError, match=r"submission 2 of hand-made is damaged: .*; of whole ones there are 1"):
        kept.get("hand-made", 2)
    assert kept.keep(graded(rules, HIT), rules).number == 3


def test_what_does_not_belong_there_is_passed_over(kept, rules):
    """Files and folders whose names are no numbers."""
    made = kept.keep(graded(rules, HIT), rules)
    (made.path.parent / "notes").mkdir()
    (made.path.parent / ".unfinished-1").mkdir()
    assert kept.all("hand-made") == [made]
    assert kept.damaged("hand-made") == []


@pytest.mark.parametrize("name", ["..", "a/b", "", "Slow"])
def test_what_is_no_id_leads_nowhere(kept, name):
    """A folder outside is not looked into."""
    with pytest.raises(SubmissionError, match=r"is no drill's id"):
        kept.get(name)


def test_the_report_compares_with_an_earlier_grade(kept, rules):
    """If one is given."""
    made = kept.keep(graded(rules, HIT), rules, before=graded(rules, HIT, fires(20_000, 20_600)))
    assert "▲ +" in made.report.read_text(encoding="utf-8")
