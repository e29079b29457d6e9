"""The page: the score over all drills, a card for each, and the rules as they were written, with what lint says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from stepsim.markup import Markup, tag
from stepsim.practice.grade import DrillGrade
from stepsim.practice.lint import Finding
from stepsim.practice.outcome import counted, mean_score, parts, remark, unheard
from stepsim.practice.report.card import card, dial, difference, never_matched
from stepsim.practice.report.marks import hatches, legend
from stepsim.practice.rule_file import RuleFile

NOTHING_LOADED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(
    grades: Sequence[DrillGrade],
    rules: RuleFile,
    file: Path,
    *,
    title: str,
    findings: Sequence[Finding] = (),
    before: Sequence[DrillGrade] | None = None,
    debrief: bool = True,
) -> None:
    """``before``: grades of earlier rules, on the same seeds, to compare with. It tells everything of its seeds; without
    ``debrief`` only what the drill has to say of them, and its reference rules, are left out."""
    earlier = {grade.drill.id: grade for grade in before or ()}
    alone = len(grades) == 1
    body = [
        hatches(),
        _top(grades, rules, title, earlier),
        *([] if alone else [_overview(grades, earlier)]),
        legend(),
        *(
            card(grade, rules, earlier.get(grade.drill.id), alone=alone, debrief=debrief)
            for grade in grades
        ),
        _written(rules, findings, [] if alone else _never(grades)),
    ]  # fmt: skip
    file.write_text(f"<!doctype html>\n{_document(title, body)}\n", encoding="utf-8")


def _document(title: str, body: Sequence[Markup]) -> Markup:
    style = (files("stepsim.practice.report") / "page.css").read_text(encoding="utf-8")
    head = tag(
        "head", tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=NOTHING_LOADED),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"), tag("title", title),
        tag("link", rel="icon", href="data:,"), tag("style", Markup(style)),
    )  # fmt: skip
    return tag("html", head, tag("body", tag("main", *body)), lang="en")


def _top(grades: Sequence[DrillGrade], rules: RuleFile, title: str, earlier: Mapping[str, DrillGrade]) -> Markup:
    told, incidents = sum(grade.score.told for grade in grades), sum(grade.score.incidents for grade in grades)
    false, hours = sum(grade.score.false_alarms for grade in grades), sum(grade.score.healthy_hours for grade in grades)
    pages = sum(alert.kind == "page" for alert in rules.alerts)
    by = f"by rules for {counted(pages, 'page')} and {counted(len(rules.alerts) - pages, 'ticket')}"
    said = f"told {told} of {counted(incidents, 'incident')}, {counted(false, 'false alarm')} in {hours:.1f} healthy hours, {by}"
    both = [grade for grade in grades if grade.drill.id in earlier]
    before = mean_score([earlier[grade.drill.id] for grade in both]) if len(both) == len(grades) else None
    over = [] if len(grades) == 1 else [dial(mean_score(grades), before)]
    mean_of = "" if len(grades) == 1 else f"The mean of {len(grades)} drills: "
    heading = tag(
        "div", tag("h1", title), tag("p", mean_of, said), tag("p", tag("code", rules.path.name), class_="faint")
    )
    return tag("header", *over, heading, class_="top")


# All drills -----------------------------------------------------------------------------------------------------------

COLUMNS = ("drill", "score", "told", "false a day", "delay", "culprit", "reset", "remark")


def _overview(grades: Sequence[DrillGrade], earlier: Mapping[str, DrillGrade]) -> Markup:
    head = tag("tr", *(tag("th", column, scope="col") for column in COLUMNS))
    rows = [tag("tr", *_row(grade, earlier.get(grade.drill.id))) for grade in grades]
    return tag("section", tag("table", tag("thead", head), tag("tbody", *rows)), class_="overview")


def _row(grade: DrillGrade, before: DrillGrade | None) -> Iterator[Markup]:
    score = grade.score
    shares = {part.key: part.share for part in parts(grade)}
    yield tag("th", tag("a", grade.drill.title, href=f"#{grade.drill.id}"), scope="row")
    change = [] if before is None else [difference(score.score - before.score.score)]
    yield tag("td", _bar(score.score / 100), tag("b", f"{score.score:.1f}"), *change, class_="score")
    yield tag("td", f"{score.told} of {score.incidents}", class_="number")
    yield tag("td", f"{score.false_alarms / score.healthy_hours * 24:.1f}", class_="number")
    for key in ("delay", "culprit", "reset"):
        yield tag("td", *([_bar(shares[key])] if key in shares else [tag("span", "the whole run", class_="faint")]))
    yield tag("td", remark(grade))


def _bar(share: float) -> Markup:
    filled = tag("i", style=f"width:{100 * share:.1f}%", class_="filled")
    return tag(
        "span", filled, class_="bar", role="img", aria_label=f"{100 * share:.0f} %", title=f"{100 * share:.0f} %"
    )


# The rules ------------------------------------------------------------------------------------------------------------


def _never(grades: Sequence[DrillGrade]) -> list[tuple[str, str]]:
    """On no drill. An alert that is silent on one may be meant for another."""
    everywhere = frozenset.intersection(*(grade.silent for grade in grades))
    return [(name, why) for name, why in unheard(grades[0]) if name in everywhere]


def _written(rules: RuleFile, findings: Sequence[Finding], never: Sequence[tuple[str, str]]) -> Markup:
    """Line by line; what lint says stands beneath, with the lines it speaks of marked."""
    worst = {finding.line: finding.level for finding in reversed(findings)}
    lines = [
        tag("span", line or " ", class_=" ".join(filter(None, ["line", worst.get(number)])), id=f"line-{number}")
        for number, line in enumerate(rules.text.splitlines(), 1)
    ]
    dead = [tag("h3", "Never matched, on any drill"), *never_matched(never)] if never else []
    listing = tag("pre", tag("code", *lines), class_="listing")
    return tag("section", tag("h2", "The rules as written"), listing, *dead, *_findings(findings), class_="rules")


def _findings(findings: Sequence[Finding]) -> Iterator[Markup]:
    if not findings:
        return
    yield tag("h3", f"What lint says: {counted(len(findings), 'finding')}")
    rows = (
        tag("li", tag("a", f"line {one.line}", href=f"#line-{one.line}"), " ", tag("b", one.level, class_=one.level), " ",
            tag("code", one.rule), f" {one.message} ", tag("span", "Instead: ", one.instead, class_="instead"))
        for one in findings
    )  # fmt: skip
    yield tag("ul", *rows, class_="findings")
