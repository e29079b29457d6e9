"""Writes the tables of docs/alert-practice.md: what reference rules, tempting rules, the lab's own and public ones score.

Takes some minutes: every drill's sealed seeds are simulated and judged. Run: make practice-scores.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from stepsim.practice.drill import Drill, drills, rule_text
from stepsim.practice.grade import DrillGrade, Heard, grade, workers
from stepsim.practice.rule_file import RuleFile, load_rules
from stepsim.practice.scenario import sealed_seeds

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "alert-practice.md"
BEGIN, END = "<!-- practice_scores.py: begin -->\n", "<!-- practice_scores.py: end -->"
FOLDER = ROOT / "build" / "practice"
OWN, PUBLIC = ROOT / "prometheus/rules/alerts.yml", ROOT / "docs/practice/public-gpu-rules.yml"


def main() -> None:
    known = list(drills().values())
    with workers() as pool, Progress(console=Console(stderr=True)) as progress:
        seeds = [(drill, sealed_seeds(drill)) for drill in known]
        task = progress.add_task(
            "grading", total=sum((2 + 1 + len(drill.tempting)) * len(numbers) for drill, numbers in seeds)
        )

        def told(name: str) -> None:
            progress.advance(task)

        def graded(files: Callable[[Drill], RuleFile]) -> list[DrillGrade]:
            return [grade(pool, [one], files(one[0]), FOLDER / "data", told)[0] for one in seeds]

        own, public = (grade(pool, seeds, load_rules(file), FOLDER / "data", told) for file in (OWN, PUBLIC))
        reference = graded(lambda drill: shipped(drill, 0))
        tempting = [
            [
                grade(pool, [one], shipped(one[0], n), FOLDER / "data", told)[0]
                for n in range(1, len(one[0].tempting) + 1)
            ]
            for one in seeds
        ]
    text = tables(reference, tempting, own, public)
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")


def shipped(drill: Drill, number: int) -> RuleFile:
    """A drill's reference rules (0), or its tempting ones."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{drill.id}-{number}.yml"
    file.write_text(
        rule_text(drill.tempting[number - 1].rules if number else drill.reference, drill.id), encoding="utf-8"
    )
    return load_rules(file)


def tables(
    reference: list[DrillGrade], tempting: list[list[DrillGrade]], own: list[DrillGrade], public: list[DrillGrade]
) -> str:
    """Markdown."""
    lines = [
        "| drill | what good rules do | reference | tempting | the lab's own | public GPU rules |",
        "|---|---|---|---|---|---|",
    ]
    for good, bad, ours, theirs in zip(reference, tempting, own, public, strict=True):
        told = ", ".join(f"{one.score.score:.0f}" for one in bad)
        lines.append(
            f"| `{good.drill.id}` | {good.drill.goal} | {good.score.score:.0f} | {told} | {_said(ours)} | {_said(theirs)} |"
        )
    lines.append(f"| **mean** | | **{_mean(reference)}** | | **{_mean(own)}** | **{_mean(public)}** |")
    return (
        "## The drills, and what rules score\n\n" + "\n".join(lines) + "\n\n"
        "In brackets: incidents told, and false alarms per healthy day.\n\n" + _public(public)
    )


def _said(graded: DrillGrade) -> str:
    score = graded.score
    return f"{score.score:.0f} ({score.told}/{score.incidents}, {24 * score.false_alarms / score.healthy_hours:.1f})"


def _mean(grades: list[DrillGrade]) -> str:
    return f"{sum(one.score.score for one in grades) / len(grades):.0f}"


def _public(grades: list[DrillGrade]) -> str:
    """What each public rule did, over all drills."""
    days = sum(one.score.healthy_hours for one in grades) / 24
    hits = _counted(
        grades, lambda heard: [name for one in heard.result.judged for name in {a.name for a in one.alarms}]
    )
    false = _counted(grades, lambda heard: [alarm.name for alarm in heard.result.false])
    rules = load_rules(PUBLIC).alerts
    lines = ["| public rule | incidents in which it fired | false alarms per healthy day |", "|---|---|---|"]
    lines += [f"| `{rule.name}` | {hits.get(rule.name, 0)} | {false.get(rule.name, 0) / days:.1f} |" for rule in rules]
    total = sum(one.score.incidents for one in grades)
    return (
        f"The public rules are those that documentation and repositories recommend for GPUs ([with sources]"
        f"(practice/public-gpu-rules.yml)); there were {total} incidents in {days:.1f} healthy days:\n\n"
        + "\n".join(lines)
        + "\n"
    )


def _counted(grades: list[DrillGrade], names: Callable[[Heard], list[str]]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for heard in (one for graded in grades for one in graded.heard):
        for name in names(heard):
            counts[name] = counts.get(name, 0) + 1
    return counts


if __name__ == "__main__":
    main()
