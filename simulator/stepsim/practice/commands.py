"""``stepscope practice`` and ``stepscope grade``: drills to write alert rules for, and what the rules are worth."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.table import Column, Table

from stepscope.server import PortInUse
from stepsim.failure import fail
from stepsim.options import port_option
from stepsim.practice import as_json, tables
from stepsim.practice.data import lab_rules
from stepsim.practice.drill import Drill, DrillError, drills, find_drill, rule_text
from stepsim.practice.exact import EngineError
from stepsim.practice.explore import explored, graph
from stepsim.practice.grade import DrillGrade, grade, workers
from stepsim.practice.lint import Finding, lint
from stepsim.practice.live import commands as live
from stepsim.practice.outcome import counted, spoken
from stepsim.practice.preview import preview
from stepsim.practice.report import write_report
from stepsim.practice.rule_file import RuleFile, RuleFileError, check_with_promtool, load_rules
from stepsim.practice.scenario import draw_scenario, sealed_seeds
from stepsim.practice.submissions import SubmissionError, Submissions
from stepsim.practice.vocabulary import vocabulary

practice_app = typer.Typer(no_args_is_help=True, help="Write alert rules for drills, and learn how good they are.")

practice_app.command("live")(live.install)
practice_app.command("start")(live.start)
practice_app.command("state")(live.state)
practice_app.command("reveal")(live.reveal)

DrillName = Annotated[
    str, typer.Argument(metavar="DRILL", help="Its id (see 'stepscope practice list'), or a drill's YAML file.")
]
Rules = Annotated[Path, typer.Argument(metavar="RULES", help="Prometheus rule file.")]
DataFolder = Annotated[
    Path, typer.Option("--data", envvar="STEPSCOPE_PRACTICE", help="Where data and results are kept.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_FOLDER = Path("build/practice")
START = """label_replace(run:training_mfu:ratio_rate1m, "what", "MFU", "", "")
or label_replace(avg by (run) (rank:gpu_utilization:ratio_avg1m), "what", "utilization", "", "")"""
"""What a graph of a drill begins with."""

out = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


@practice_app.command("list")
def list_drills(as_json_: AsJson = False, data: DataFolder = DEFAULT_FOLDER) -> None:
    """Show the drills, and your best score in each."""
    kept, known = Submissions(data), drills()
    best = {name: max((one.score for one in kept.all(name)), default=None) for name in known}
    if as_json_:
        typer.echo(
            json.dumps(
                [{"id": one.id, "title": one.title, "goal": one.goal, "best": best[one.id]} for one in known.values()]
            )
        )
        return
    table = Table(Column("drill", no_wrap=True), "what it is about", Column("best", justify="right"))
    for one in known.values():
        score = best[one.id]
        table.add_row(one.id, one.title, "–" if score is None else f"{score:.1f}")
    out.print(table)
    out.print("Begin with: stepscope practice show dead-rule")


@practice_app.command()
def show(
    name: DrillName,
    hints: Annotated[int, typer.Option(min=0, help="So many hints.")] = 0,
) -> None:
    """Show what a drill asks for, and where to look; hints on request."""
    with _told_errors():
        drill = find_drill(name)
    out.print(Markdown(_brief(drill, name, hints)))


def _brief(drill: Drill, name: str, hints: int) -> str:
    """Not what happens: that is to be found out."""
    expected = {kind: sum(one.expect == kind for one in drill.incidents) for kind in ("page", "ticket")}
    asked = " and ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in expected.items() if count)
    beside = ", ".join(one.replace("_", " ") for one in drill.distractors)
    lines = [
        f"# {drill.title}", drill.goal.rstrip(".") + ".",
        f"{drill.ranks} GPUs, scraped every {drill.scrape:g} s; rules are evaluated every {drill.eval:g} s. Each seed has "
        f"incidents worth {asked}, and healthy hours in which nothing should fire. At most {drill.rules_budget} alert "
        "rules; the label `severity` says `page` or `ticket`, and `rank` or `node` names the culprit, where there is one.",
        f"An alarm is due within {_spans(drill, 'detect_within')}, and must end within {_spans(drill, 'reset_within')}.",
        f"Beside them: {beside}." if beside else "",
        *(["## Where to look", *(f"- {place}" for place in drill.look_at)] if drill.look_at else []),
        *(f"**Hint {number}.** {hint}" for number, hint in enumerate(drill.hints[:hints], 1)),
        f"There are {len(drill.hints)} hints: `--hints N` shows them." if hints < len(drill.hints) else "",
        f"Look at its series: `stepscope practice explore {name}`.",
        f"Then: `stepscope practice preview {name} rules.yml`, and `submit` when you are content.",
    ]  # fmt: skip
    return "\n\n".join(filter(None, lines))


def _spans(drill: Drill, limit: str) -> str:
    found = sorted({getattr(one, limit) for one in drill.incidents if one.expect != "silence"})
    return " to ".join(spoken(seconds) for seconds in dict.fromkeys((found[0], found[-1])))


@practice_app.command()
def schema() -> None:
    """Print the format of a drill's file as JSON Schema."""
    typer.echo(json.dumps(Drill.model_json_schema(), indent=2))


@practice_app.command("lint")
def lint_rules(rules: Rules, as_json_: AsJson = False) -> None:
    """Say what is wrong with a rule file, and what to write instead. Exit status 1 if there is an error."""
    with _told_errors():
        file = load_rules(rules)
        check_with_promtool(rules)
    found = lint(file, vocabulary(lab_rules()))
    if as_json_:
        typer.echo(json.dumps([vars(finding) for finding in found]))
    else:
        _print_findings(file, found)
    raise typer.Exit(1 if any(finding.level == "error" for finding in found) else 0)


@practice_app.command()
def explore(
    name: DrillName,
    seed: Annotated[int | None, typer.Option(help="One of its practice seeds; else the first.")] = None,
    port: Annotated[int, port_option("Where that Prometheus listens.", low=1)] = 9091,
    data: DataFolder = DEFAULT_FOLDER,
) -> None:
    """Open a Prometheus over a practice seed, with all its series, to look at before you write rules; until Ctrl-C."""
    with _told_errors():
        drill = find_drill(name)
        chosen = drill.seeds.practice[0] if seed is None else seed
        if chosen not in drill.seeds.practice:
            raise DrillError(
                f"{drill.id} has no practice seed {chosen}; there are {', '.join(map(str, drill.seeds.practice))}"
            )
        _room(data)
        scenario = draw_scenario(drill, chosen)
        with errors.status(f"simulating and loading seed {chosen}: a minute or two, once"), ExitStack() as stack:
            process = stack.enter_context(explored(scenario, data / "data", port))
            kept = stack.pop_all()
        with kept:
            out.print(f"[green]ready[/]  {graph(scenario, port, START)}", soft_wrap=True)
            out.print("The seed begins at 00:00 of 1 January 1970 (UTC). Ctrl-C ends it.")
            with suppress(KeyboardInterrupt):
                process.wait()


@practice_app.command("preview")
def preview_rules(name: DrillName, rules: Rules, data: DataFolder = DEFAULT_FOLDER) -> None:
    """Evaluate rules on the practice seeds, and show when they fired beside what was true."""
    with _told_errors():
        drill, file = find_drill(name), load_rules(rules)
        check_with_promtool(rules)
        _room(data)
        scenarios = [draw_scenario(drill, seed) for seed in drill.seeds.practice]
        with workers() as pool, _progress(f"{drill.id}, practice seeds", len(scenarios)) as told:
            waiting = [pool.submit(preview, scenario, file, data / "data") for scenario in scenarios]
            heard = []
            for one in waiting:
                heard.append(one.result())
                told(drill.id)
    _print_findings(file, lint(file, vocabulary(lab_rules())), quiet=True)
    out.print(tables.timeline(heard, [alert.name for alert in file.alerts]))
    out.print(tables.scorecard(DrillGrade.of(drill, heard)))
    out.print(f"These are the practice seeds. On others: stepscope practice submit {name} {rules}")


@practice_app.command()
def submit(name: DrillName, rules: Rules, as_json_: AsJson = False, data: DataFolder = DEFAULT_FOLDER) -> None:
    """Grade rules on the sealed seeds with Prometheus's own rule engine, and keep the result."""
    with _told_errors():
        drill, file = find_drill(name), load_rules(rules)
        if len(file.alerts) > drill.rules_budget:
            raise RuleFileError(
                f"{rules}: {len(file.alerts)} alert rules; {drill.id} allows {drill.rules_budget}. Nothing was submitted"
            )
        (graded,) = _graded([(drill, sealed_seeds(drill))], file, data)
        found = lint(file, vocabulary(lab_rules()))
        kept = Submissions(data).keep(graded, file, findings=found)
    if as_json_:
        typer.echo(
            json.dumps({**as_json.as_dict(graded, told=False), "submission": kept.number, "report": str(kept.report)})
        )
        return
    _print_findings(file, found, quiet=True)
    out.print(tables.scorecard(graded))
    out.print(f"Submission {kept.number}, kept in {kept.path}", soft_wrap=True)
    out.print(f"What happened, and what was missed: stepscope practice debrief {name}", soft_wrap=True)


@practice_app.command()
def debrief(
    name: DrillName,
    submission: Annotated[int | None, typer.Option(help="Its number; else the last.")] = None,
    against: Annotated[int | None, typer.Option(help="Compare with this submission.")] = None,
    data: DataFolder = DEFAULT_FOLDER,
) -> None:
    """Tell what happened in a submission's seeds, what was missed and why, and how good rules do it."""
    with _told_errors():
        drill, kept = find_drill(name), Submissions(data)
        one = kept.get(drill.id, submission)
        before = kept.other(drill.id, one, against) if against is not None else None
        file = load_rules(one.rules)
        graded, *others = _graded_each(drill, [one.rules, *([before.rules] if before else [])], data)
        target = one.path / (f"against-{before.number}.html" if before else "report.html")
        write_report([graded], file, target, title=f"{drill.title}: submission {one.number}", before=others or None,
                     findings=lint(file, vocabulary(lab_rules())), debrief=True)  # fmt: skip
    if others:
        out.print(f"Submission {one.number} against {before.number if before else 0}: {graded.score.score:.1f}, "
                  f"{graded.score.score - others[0].score.score:+.1f} points")  # fmt: skip
    out.print(tables.scorecard(graded))
    out.print(tables.timeline(graded.heard, [alert.name for alert in file.alerts]))
    out.print(Markdown(f"# Debrief\n\n{drill.debrief}\n\n# Rules that do it"))
    out.print(Syntax(rule_text(drill.reference, drill.id), "yaml", background_color="default", word_wrap=True))
    out.print(f"With pictures: {target}", soft_wrap=True)


def grade_rules(
    rules: Rules,
    names: Annotated[
        str | None, typer.Option("--drills", metavar="IDS", help="Ids or files, with commas; else all.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Where the HTML report goes; else beside the data.")] = None,
    at_least: Annotated[float, typer.Option(min=0, max=100, help="Exit status 1 below this mean score.")] = 0.0,
    as_json_: AsJson = False,
    data: DataFolder = DEFAULT_FOLDER,
) -> None:
    """Grade your own alert rules over drills: how much of each failure mode they catch before they page anyone for real."""
    with _told_errors():
        chosen = [find_drill(name.strip()) for name in names.split(",")] if names else list(drills().values())
        file = load_rules(rules)
        graded = _graded([(drill, sealed_seeds(drill)) for drill in chosen], file, data)
        target = report or data / f"{rules.stem}.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_report(
            graded, file, target, title=str(rules), findings=lint(file, vocabulary(lab_rules())), debrief=False
        )
    summary = as_json.summary(graded)
    if as_json_:
        typer.echo(json.dumps(summary))
    else:
        out.print(tables.overview(graded))
        out.print(f"With pictures: {target}", soft_wrap=True)
    raise typer.Exit(1 if summary["score"] < at_least else 0)


def _graded(chosen: Sequence[tuple[Drill, list[int]]], rules: RuleFile, data: Path) -> list[DrillGrade]:
    check_with_promtool(rules.path)
    _room(data)
    with workers() as pool, _progress("seeds", sum(len(seeds) for _, seeds in chosen)) as told:
        return grade(pool, chosen, rules, data / "data", told)


def _graded_each(drill: Drill, files: list[Path], data: Path) -> list[DrillGrade]:
    return [_graded([(drill, sealed_seeds(drill))], load_rules(file), data)[0] for file in files]


class DataFolderError(ValueError):
    """Nothing can be kept there."""


def _room(data: Path) -> None:
    """Before anything is computed."""
    try:
        (data / "data").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=data / "data"):
            pass
    except OSError as error:
        raise DataFolderError(
            f"nothing can be kept in {data}: {error.strerror}; name another folder with --data"
        ) from None


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[str], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_interactive) as shown:
        task = shown.add_task(what, total=total)
        yield lambda name: shown.update(task, advance=1, description=f"{name}: one more seed is simulated and judged")


@contextmanager
def _told_errors() -> Iterator[None]:
    """What the user can mend is said in one line, with exit status 2."""
    try:
        yield
    except (DrillError, RuleFileError, EngineError, SubmissionError, PortInUse, DataFolderError) as error:
        raise fail(error) from None


def _print_findings(file: RuleFile, found: list[Finding], *, quiet: bool = False) -> None:
    """``quiet``: nothing is said of a file without findings, and advice is left out."""
    colours = {"error": "red", "warning": "yellow", "advice": "cyan"}
    for finding in found:
        if quiet and finding.level == "advice":
            continue
        out.print(f"[{colours[finding.level]}]{finding.level}[/] {file.path}:{finding.line}: ", end="")
        out.print(f"{finding.rule}: {finding.message}", markup=False, soft_wrap=True)
        out.print(f"    {finding.instead}", markup=False, soft_wrap=True, style="dim")
    if not found and not quiet:
        out.print(f"[green]nothing to say[/] of {file.path}: {counted(len(file.alerts), 'alert')}", soft_wrap=True)
