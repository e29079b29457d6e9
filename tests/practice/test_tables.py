"""stepsim.practice.tables and as_json: a grade in the terminal and for machines, and nothing that is still to be hidden."""

import json
from io import StringIO

import pytest
from rich.console import Console

from practice_grades import BEGINS, HIT, LASTS, SECONDS, SEED, fires, graded, rule_file, struck
from stepsim.practice.as_json import as_dict, summary
from stepsim.practice.tables import overview, scorecard, timeline

WIDTH = 120


@pytest.fixture
def rules(tmp_path):
    return rule_file(tmp_path)


def shown(renderable, width=WIDTH):
    """Lines, without what is blank at their ends."""
    file = StringIO()
    Console(file=file, width=width, color_system=None).print(renderable)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def row(lines, name):
    return next(line for line in lines if line.startswith(name))


# The scorecard --------------------------------------------------------------------------------------------------------


def test_a_part_says_what_it_means(rules):
    """In one line, with the bound on false alarms that so few hours allow."""
    lines = shown(scorecard(graded(rules, HIT, fires(20_000, 20_600))))
    assert "told 1 of 1" in row(lines, "told")
    assert "1 false alarm in 7.5 healthy hours: at most 15.1 a day (95 %)" in row(lines, "no false alarm")
    assert "after 90 s on average, 300 s allowed" in row(lines, "soon")
    assert "first and alone in 1 of 1" in row(lines, "culprit named")
    assert "60 s after the fault on average; 300 s allowed" in row(lines, "gone in time")


def test_a_bar_is_as_long_as_its_share(rules):
    """Seven tenths of twenty cells are fourteen."""
    assert row(shown(scorecard(graded(rules, HIT))), "soon").count("█") == 14


def test_noise_is_told_in_the_points_that_it_costs(rules):
    """One further alarm per told incident is a point of ten."""
    line = row(shown(scorecard(graded(rules, HIT, fires(BEGINS + 120, BEGINS + 600, "Again")))), "no noise")
    assert "−1.0  1 alarm beyond the first" in line
    assert line.count("█") == 18


def test_where_the_whole_run_is_struck_there_is_no_culprit(rules):
    """And no row that would be empty."""
    lines = shown(scorecard(graded(rules, HIT, incidents=[struck(target={"run": True})])))
    assert not [line for line in lines if line.startswith("culprit")]


def test_dead_rules_are_told_with_their_reason(rules):
    """Or by name, where nobody has looked for one."""
    lines = shown(scorecard(graded(rules, dead=[("Dead", "it gives nothing")])))
    assert "never fired  Dead: it gives nothing" in lines
    assert "never fired  Slow" in lines


def test_markup_and_control_characters_in_names_do_nothing(tmp_path):
    """A rule's name is text."""
    rules = rule_file(tmp_path, "[red]x[/red]\x1b[2J")
    told = "\n".join(shown(scorecard(graded(rules))) + shown(timeline(graded(rules).heard)))
    assert "[red]x[/red]\ufffd[2J" in told
    assert "\x1b" not in told


# All drills -----------------------------------------------------------------------------------------------------------


def test_the_overview_ends_with_the_mean(rules):
    """In the order that was given."""
    grades = [graded(rules, HIT, id="second"), graded(rules, id="first")]
    lines = shown(overview(grades))
    assert [line.split()[1] for line in lines if "/1" in line] == ["second", "first"]
    assert f"{grades[0].score.score / 2:.1f}" in row(lines, "│ mean")


@pytest.mark.parametrize(
    ("raised", "word"),
    [
        ([fires(BEGINS, BEGINS + LASTS)], "good"),
        ([], "silent"),
        ([fires(20_000, 20_600)], "misses"),
        ([fires(BEGINS, BEGINS + LASTS), *(fires(at, at + 60) for at in range(12_000, 20_000, 1000))], "false alarms"),
        ([fires(BEGINS + 400, BEGINS + LASTS)], "late"),
        ([fires(BEGINS, BEGINS + LASTS, ranks=("3",))], "culprit"),
        ([fires(BEGINS + 60, BEGINS + LASTS + 600)], "lingers"),
    ],
)
def test_the_remark_names_what_costs_most(rules, raised, word):
    """Or praises."""
    assert row(shown(overview([graded(rules, *raised)])), "│ hand-made").split("│")[-2].strip() == word


# The timeline ---------------------------------------------------------------------------------------------------------


def test_firing_stands_under_the_truth(rules):
    """Each cell that is drawn lies at the time that it is drawn for."""
    lines = shown(timeline(graded(rules, HIT, fires(20_000, 23_000)).heard))
    truth, slow, axis = row(lines, f"seed {SEED}"), row(lines, "Slow"), next(line for line in lines if "└0 h" in line)
    zero = axis.index("└0 h")
    width = (axis.index("└4 h") - zero) * SECONDS / (4 * 3600)
    for line, mark, begins in ((truth, "█", BEGINS), (slow, "█", BEGINS + 90), (slow, "×", 20_000)):
        assert line.index(mark) - zero == pytest.approx(begins / SECONDS * width, abs=1.1)
    assert slow.endswith("after 90 s, 1 false")


def test_the_shortest_alarm_has_a_cell(rules):
    """And a false one is not hidden by a hit in the same cell."""
    lines = shown(timeline(graded(rules, HIT, fires(BEGINS + LASTS + 70, BEGINS + LASTS + 100)).heard))
    assert row(lines, "Slow").count("×") == 1


def test_the_timeline_keeps_to_the_width(rules):
    """However long names are, at any width."""
    long = rule_file(rules.path.parent, "An alert with a very long name indeed that nobody would want to read", "Slow")
    for width in (60, 80, 200):
        assert max(map(len, shown(timeline(graded(long, HIT).heard), width))) <= width


def test_what_misleads_is_not_drawn_as_a_fault(rules):
    """Nor told as one."""
    lure = struck(20_000, fault="jitter", expect="silence")
    line = row(shown(timeline(graded(rules, HIT, incidents=[struck(), lure]).heard)), f"seed {SEED}")
    assert "░" in line
    assert "jitter" not in line


def test_alerts_stand_in_the_order_that_is_given(tmp_path):
    """Those too that were pending and never fired; without an order, those that fired or never matched are told by name."""
    rules = rule_file(tmp_path, "Zero", "Slow")
    heard = graded(rules, HIT).heard
    given = shown(timeline(heard, ["Zero", "Pending", "Slow"]))
    assert [line.split()[0] for line in given[1:4]] == ["Zero", "Pending", "Slow"]
    assert [line.split()[0] for line in shown(timeline(heard))[1:3]] == ["Slow", "Zero"]


# JSON -----------------------------------------------------------------------------------------------------------------

SECRET = ("straggler", "jitter", "rank", "12", str(SEED), str(int(BEGINS)), "severity")


def secret(rules):
    """A grade whose faults, targets, seeds and times are words that stand nowhere else."""
    lure = struck(20_000, fault="jitter", target={"run": True}, expect="silence")
    return graded(rules, HIT, fires(20_000, 20_600), incidents=[struck(), lure], dead=[("Dead", "it gives nothing")])


def test_everything_is_told_after_the_debrief(rules):
    """Incidents with what was made of them, alarms with their outcome, restarts; and JSON takes it."""
    told = json.loads(json.dumps(as_dict(secret(rules), told=True), allow_nan=False))
    (seed,) = told["seeds"]
    straggler, jitter = seed["incidents"]
    assert seed["seed"] == SEED
    assert (straggler["fault"], straggler["target"], straggler["delay_seconds"], straggler["culprit"]) == (
        "straggler",
        {"rank": 12},
        90,
        1,
    )
    assert straggler["hit"] == {"name": "Slow", "kind": "page", "begins": BEGINS + 90, "ends": BEGINS + LASTS + 60}
    assert jitter["expect"] == "silence"
    assert jitter["hit"] is None
    assert [alarm["outcome"] for alarm in seed["alarms"]] == ["hit", "false"]
    assert seed["alarms"][0]["episodes"][0]["labels"]["rank"] == "12"
    assert told["dead"] == [{"alert": "Dead", "why": "it gives nothing"}]


def test_before_the_debrief_no_secret_is_told(rules):
    """Neither fault, target, severity, seed nor time; what was scored and counted is."""
    grade = secret(rules)
    told = as_dict(grade, told=False)
    written = json.dumps(
        {key: value for key, value in told.items() if key not in ("healthy_hours", "false_per_day_bound")}
    )
    assert [word for word in SECRET if word in json.dumps(as_dict(grade, told=True))] == list(SECRET)
    assert [word for word in SECRET if word in written] == []
    assert told["score"] == round(grade.score.score, 1)
    assert told["seeds"] == [
        {"seconds": SECONDS, "told": 1, "incidents": 1, "false_alarms": 1, "healthy_hours": pytest.approx(7.55)}
    ]


def test_neither_does_the_scorecard_tell(rules):
    """It is shown before the debrief, too."""
    told = "\n".join(shown(scorecard(secret(rules))))
    assert [word for word in ("straggler", "jitter", "rank", str(SEED)) if word in told] == []


def test_a_fault_that_never_showed_is_null(rules):
    """JSON knows no infinity."""
    told = as_dict(graded(rules, visible=[float("inf")]), told=True)
    assert told["seeds"][0]["incidents"][0]["visible"] is None


def test_the_summary_has_the_mean_and_no_secret(rules):
    """As `stepscope grade --json` prints it."""
    good, silent = secret(rules), graded(rules, id="other")
    told = summary([good, silent])
    assert told["score"] == round(good.score.score / 2, 1)
    assert [(one["id"], one["score"]) for one in told["drills"]] == [
        ("hand-made", round(good.score.score, 1)),
        ("other", 0.0),
    ]
    assert str(SEED) not in json.dumps(told)
