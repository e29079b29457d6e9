"""``stepscope practice`` and ``stepscope grade``, as they are typed."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from practice_drills import RULE, drill_of
from stepsim.commands import app
from stepsim.practice.drill import drills
from stepsim.practice.live import client

GOOD = """groups:
  - name: mine
    rules:
      - alert: RankSlow
        expr: sum by (run, rank, node) (rank:training_culprit:share{phase=~"forward|backward"}) > 0.08
        for: 15s
        labels: {severity: page}
"""
DEAD = (
    GOOD
    + """      - alert: Never
        expr: DCGM_FI_DEV_GPU_TEMP > 200 and avg(DCGM_FI_DEV_GPU_UTIL) > 5
        labels: {severity: page}
"""
)


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "160"})
    assert not done.exception or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a small drill, two rule files, and room for results."""
    folder = tmp_path_factory.mktemp("practice")
    told = drill_of().model_dump(mode="json", by_alias=True, exclude_none=True)
    (folder / "small.yml").write_text(
        yaml.safe_dump({**told, "hints": ["Look at rank:training_culprit:share."]}), encoding="utf-8"
    )
    (folder / "good.yml").write_text(GOOD, encoding="utf-8")
    (folder / "dead.yml").write_text(DEAD, encoding="utf-8")
    return folder


def at(place, *words):
    return run(*words, "--data", place / "results")


def test_the_list_has_every_drill():
    """In order, as JSON, too."""
    done = run("practice", "list", "--json")
    assert [one["id"] for one in json.loads(done.stdout)] == list(drills())
    assert all(name in run("practice", "list").stdout for name in drills())


def test_a_drill_is_shown_without_what_it_hides(place):
    """Hints on request."""
    shown = run("practice", "show", place / "small.yml").stdout
    assert "Find it" in shown
    assert "straggler" not in shown
    assert "training_culprit" not in shown
    assert "training_culprit" in run("practice", "show", place / "small.yml", "--hints", 1).stdout


def test_the_schema_is_json():
    """Of a drill's file."""
    assert json.loads(run("practice", "schema").stdout)["title"] == "Drill"


@pytest.mark.prometheus
def test_a_learners_way_from_preview_to_debrief(place):
    """Previewed on the practice seed, submitted on the sealed one, kept, told, and compared."""
    preview = at(place, "practice", "preview", place / "small.yml", place / "good.yml")
    assert preview.exit_code == 0
    assert "straggler" in preview.stdout
    assert "told 1 of 1" in preview.stdout
    first = json.loads(at(place, "practice", "submit", place / "small.yml", place / "good.yml", "--json").stdout)
    assert first["score"] > 80
    assert first["submission"] == 1
    alone = at(place, "practice", "debrief", place / "small.yml", "--against", 1)
    assert alone.exit_code == 2
    assert alone.stderr == "stepscope: there is only submission 1: submit again, then compare\n"
    assert "straggler" not in json.dumps(first)
    second = at(place, "practice", "submit", place / "small.yml", place / "dead.yml")
    assert "DCGM_FI_DEV_GPU_TEMP" in second.stdout
    assert "the bound is never passed" in second.stdout or "gives nothing" in second.stdout
    debrief = at(place, "practice", "debrief", place / "small.yml", "--against", 1)
    assert debrief.output.startswith("Submission 2 against 1: ")
    assert "It was slow." in debrief.stdout
    assert RULE["expr"] in debrief.stdout
    assert (place / "results/small/2/against-1.html").is_file()
    assert (place / "results/small/1/report.html").is_file()


@pytest.mark.prometheus
def test_ones_own_rules_are_graded_over_any_drills(place):
    """With a report; exit status 1 below what is asked for."""
    words = ("grade", place / "good.yml", "--drills", place / "small.yml", "--report", place / "mine.html")
    done = at(place, *words, "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == 0
    assert [one["id"] for one in told["drills"]] == ["small"]
    assert told["score"] == told["drills"][0]["score"] > 80
    assert "RankSlow" in (place / "mine.html").read_text(encoding="utf-8")
    assert at(place, *words, "--at-least", 100).exit_code == 1


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("groups:\n  - name: a\n    rules:\n      - alert: A\n        expr: sum(up\n", "rules.yml:5"),
        ("groups: []\n", "alert"),
        ("", "rules.yml"),
        (GOOD.replace("name: mine\n", "name: mine\n    interval: 1m\n"), "interval"),
        (GOOD + "        annotations: {summary: '{{ nonsense 5 }}'}\n", "nonsense"),
        (GOOD.replace("expr:", "exp:"), "exp"),
        (GOOD.replace("15s", "15"), "did you mean 15s?"),
    ],
    ids=["syntax", "no rules", "empty", "interval", "template", "key", "duration"],
)
def test_a_broken_rule_file_is_refused_with_its_line_and_nothing_is_kept(place, tmp_path, text, said):
    """Exit status 2."""
    (tmp_path / "rules.yml").write_text(text, encoding="utf-8")
    for command in (("practice", "preview"), ("practice", "submit")):
        done = run(*command, place / "small.yml", tmp_path / "rules.yml", "--data", tmp_path / "results")
        assert done.exit_code == 2
        assert said in done.stderr
        assert done.stderr.startswith("stepscope: ")
    assert not (tmp_path / "results").exists()


@pytest.mark.prometheus
def test_more_rules_than_the_budget_allows_are_refused(place, tmp_path):
    """200 of them, quickly."""
    rules = [{"alert": f"A{number}", "expr": "up == 0", "labels": {"severity": "page"}} for number in range(200)]
    (tmp_path / "many.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}), encoding="utf-8")
    done = run("practice", "submit", place / "small.yml", tmp_path / "many.yml", "--data", tmp_path / "results")
    assert done.exit_code == 2
    assert "200 alert rules; small allows 4. Nothing was submitted" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("practice", "show", "stragler"), "no drill 'stragler'; there are"),
        (("practice", "lint", "nowhere.yml"), "stepscope: cannot read nowhere.yml: No such file or directory\n"),
        (("practice", "debrief", "straggler"), "straggler"),
        (("grade", "nowhere.yml"), "nowhere.yml"),
    ],
)
def test_what_is_not_there_is_said(tmp_path, words, said):
    """Exit status 2."""
    data = () if "show" in words or "lint" in words else ("--data", tmp_path)
    done = run(*words, *data)
    assert done.exit_code == 2
    assert said in done.stderr


def test_lint_tells_what_to_write_instead(tmp_path):
    """Exit status 1 for an error, 0 without."""
    (tmp_path / "bad.yml").write_text(
        GOOD.replace("training_culprit:share", "training_culprits:share"), encoding="utf-8"
    )
    (tmp_path / "good.yml").write_text(GOOD, encoding="utf-8")
    bad = run("practice", "lint", tmp_path / "bad.yml")
    assert bad.exit_code == 1
    assert "rank:training_culprit:share" in bad.stdout
    good = run("practice", "lint", tmp_path / "good.yml")
    assert good.exit_code == 0
    assert good.stdout.endswith("good.yml: 1 alert\n")
    assert json.loads(run("practice", "lint", tmp_path / "bad.yml", "--json").stdout)[0]["check"] == "unknown-metric"


@pytest.mark.parametrize(("text", "words"), [(GOOD, "loaded 1 alert into URL; it carries the label"),
                                            (DEAD, "loaded 2 alerts into URL; they carry the label")])  # fmt: skip
def test_live_rules_are_counted(tmp_path, monkeypatch, text, words):
    """One alert is no two."""
    monkeypatch.setattr(client, "install", lambda rules, target, url: None)
    (tmp_path / "rules.yml").write_text(text, encoding="utf-8")
    done = run("practice", "live", tmp_path / "rules.yml", "--prometheus", "URL")
    assert done.stdout.startswith(words)


def test_without_promtool_it_is_said_where_it_comes_from(place, monkeypatch):
    """Exit status 2."""
    monkeypatch.setenv("PATH", "/nowhere")
    done = run("practice", "submit", place / "small.yml", place / "good.yml", "--data", place / "none")
    assert done.exit_code == 2
    assert "apt-get install prometheus" in done.stderr


@pytest.mark.prometheus
def test_a_folder_in_which_nothing_can_be_kept_is_said_before_anything_is_computed(place, tmp_path):
    """A file stands in its place."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    for command in (("preview", place / "small.yml", place / "good.yml"), ("submit", place / "small.yml", place / "good.yml"),
                    ("explore", place / "small.yml")):  # fmt: skip
        done = run("practice", *command, "--data", tmp_path / "file")
        assert done.exit_code == 2
        assert done.stderr.startswith(f"stepscope: nothing can be kept in {tmp_path / 'file'}: ")


@pytest.mark.prometheus
def test_a_rule_that_is_never_long_enough_true_is_told_so(place):
    """With how long it was, and how long it must be."""
    (place / "short.yml").write_text(GOOD.replace("for: 15s", "for: 2h"), encoding="utf-8")
    told = at(place, "practice", "submit", place / "small.yml", place / "short.yml").stdout
    assert "it matched, for " in " ".join(told.split())
    assert "`for` asks for 7200 s" in " ".join(told.split())
