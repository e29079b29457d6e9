"""``stepscope practice live``, ``start``, ``state`` and ``reveal``: practice on the running lab."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from stepsim.board import target_label
from stepsim.failure import fail
from stepsim.fault_commands import AsJson, Port, Url
from stepsim.options import port_option
from stepsim.practice.live import client
from stepsim.practice.outcome import counted
from stepsim.practice.rule_file import RuleFileError, load_rules

out = Console(highlight=False)
GRADED = {"yours": "your own rules, which were loaded", "the lab's": "the lab's rules, as none of yours were loaded"}


def install(
    rules: Annotated[Path | None, typer.Argument(metavar="[RULES]", help="Prometheus rule file.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take your rules out again.")] = False,
    root: Annotated[Path, typer.Option(help="The project's folder.")] = Path(),
    prometheus: Annotated[
        str | None, typer.Option("--prometheus", metavar="URL", envvar="STEPSCOPE_PROMETHEUS")
    ] = None,
    prometheus_port: Annotated[int, port_option("", "PROMETHEUS_PORT", hidden=True)] = 9090,
) -> None:
    """Put your rules into the running lab's Prometheus, beside its own; with --clear, take them out again."""
    url, target = prometheus or f"http://127.0.0.1:{prometheus_port}", root / "prometheus" / "rules" / "practice.yml"
    try:
        if clear:
            client.clear(target, url)
            out.print(f"cleared: {url} has the lab's own rules only", soft_wrap=True)
        elif rules is None:
            raise client.LiveError("which rules? Give a rule file, or --clear")
        else:
            file = load_rules(rules)
            client.install(file, target, url)
            carry = "it carries" if len(file.alerts) == 1 else "they carry"
            out.print(f"loaded {counted(len(file.alerts), 'alert')} into {url}; {carry} the label practice. See dashboard 7, or "
                      f"{url}/alerts. Take them out again: stepscope practice live --clear", soft_wrap=True)  # fmt: skip
    except (RuleFileError, client.LiveError) as error:
        raise fail(error, 2 if isinstance(error, RuleFileError) or rules is None else 1) from None


def start(
    drill: Annotated[str | None, typer.Option(help="A drill's id: only its kinds of faults; else any.")] = None,
    minutes: Annotated[float, typer.Option(help="How long it lasts.")] = 20.0,
    incidents: Annotated[int, typer.Option(help="How many faults strike.")] = 3,
    url: Url = None,
    port: Port = 8000,
    as_json: AsJson = False,
) -> None:
    """Begin a blind drill on the running lab: faults strike, and nothing tells which."""
    _print_state(client.start_blind(url, drill, minutes, incidents, port=port), as_json)


def state(url: Url = None, port: Port = 8000, as_json: AsJson = False) -> None:
    """Say whether a blind drill is on, and how long still."""
    _print_state(client.state(url, port=port), as_json)


def _print_state(known: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(known))
        return
    if known["state"] in ("running", "over"):
        left = f"{known['seconds_left'] / 60:.0f} min left" if known["running"] else "it is over"
        out.print(
            f"A blind drill of {known['minutes']:g} min: {left}; {known['alerts_received']} alerts received.",
            soft_wrap=True,
        )
        out.print(f"SHA-256 of salt and seed: {known['commitment']}", soft_wrap=True)
        out.print("End it, and learn what happened: stepscope practice reveal")
    else:
        out.print("No blind drill is on. Begin one: stepscope practice start")
    out.print(f"{known['note'][0].upper()}{known['note'][1:]}.", style="dim", soft_wrap=True)


def reveal(
    again: Annotated[bool, typer.Option("--again", help="Show the last one once more.")] = False,
    url: Url = None,
    port: Port = 8000,
    as_json: AsJson = False,
) -> None:
    """End the blind drill: what happened, and how good the alerts were that Alertmanager sent."""
    if not again and client.state(url, port=port)["state"] == "none":
        raise fail("no blind drill is on; begin one: stepscope practice start")
    told = client.result(url, port=port) if again else client.reveal(url, port=port)
    if as_json:
        typer.echo(json.dumps(told))
        return
    table = Table("after", "fault", "target", "severity", "expected", "what became of it")
    for one in told["incidents"]:
        table.add_row(f"{one['begins_seconds'] / 60:.1f} min", one["fault"], target_label(one["target"]), f"{one['severity']:g}",
                      one["expect"], _became(one))  # fmt: skip
    out.print(table)
    for false in told["false_alarms"]:
        out.print(
            f"false alarm: {false['alert']}, a {false['kind']} after {false['begins_seconds'] / 60:.1f} min",
            style="yellow",
        )
    grade = told["grade"]
    if grade:
        parts = ", ".join(
            f"{name} {100 * grade[name]:.0f} %" for name in ("recall", "precision", "delay", "culprit", "reset")
            if grade[name] is not None
        )  # fmt: skip
        out.print(
            f"Score {grade['score']:.0f} of 100. Graded: {GRADED[told['rules']]}. {parts}; noise {grade['noise']:.1f} points",
            soft_wrap=True,
        )
    else:
        out.print(f"No score: {told['ungraded']}", soft_wrap=True)
    out.print(
        f"seed {told['seed']}, salt {told['salt']}\n{told['check']}: {told['commitment']}", style="dim", soft_wrap=True
    )


def _became(one: dict[str, Any]) -> str:
    if one["verdict"] != "told":
        return str(one["verdict"])
    culprit = {None: "", 1: ", culprit named", 0: ", culprit not named"}.get(one["culprit"], ", culprit among others")
    return f"told by {one['alert']} after {one['delay_seconds']:.0f} s{culprit}"
