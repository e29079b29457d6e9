"""``stepscope fault``: start, stop and list faults of a running lab."""

from __future__ import annotations

import json
from math import isfinite
from typing import Annotated, Any

import requests
import typer
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Column, Table

from stepsim.board import target_label
from stepsim.failure import fail
from stepsim.options import port_option

fault_app = typer.Typer(no_args_is_help=True, help="Start, stop and list the faults of a running lab.")

Url = Annotated[
    str | None, typer.Option("--url", envvar="STEPSCOPE_URL", help="The simulator; else 127.0.0.1 at STEPSCOPE_PORT.")
]
Port = Annotated[int, port_option("", "STEPSCOPE_PORT", hidden=True)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

TABLE_CELLS = 120
"""In a narrower terminal the catalogue's columns would be too narrow to read."""

ACTION = {"X-Stepscope-Action": "cli"}


@fault_app.command()
def start(
    fault: Annotated[str, typer.Argument(help="Its name; see 'stepscope fault catalogue'.")],
    rank: Annotated[str | None, typer.Option(metavar="N", help="Strike this rank.")] = None,
    node: Annotated[str | None, typer.Option(help="Strike this node, such as node-1.")] = None,
    severity: Annotated[str | None, typer.Option(help="A number; what it means is in the catalogue.")] = None,
    ramp: Annotated[str | None, typer.Option(help="Time to full severity, such as 30s.")] = None,
    duration: Annotated[str | None, typer.Option(help="End by itself after this time, such as 10m.")] = None,
    url: Url = None,
    port: Port = 8000,
    as_json: AsJson = False,
) -> None:
    """Start a fault while the job runs."""
    if rank is not None and node is not None:
        raise fail("give --rank or --node, not both")
    target = {"rank": _whole(rank)} if rank is not None else {"node": node} if node is not None else None
    request = {
        "fault": fault,
        "target": target,
        "severity": _number(severity),
        "ramp": _number(ramp),
        "duration": _number(duration),
    }
    wanted = {key: value for key, value in request.items() if value is not None}
    started = call("POST", "/faults", url, port, json=wanted)
    _print(started, as_json, f"started {_sentence(started)}. Stop it: stepscope fault stop {started['id']}")


@fault_app.command()
def stop(
    fault_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The fault's id; without it, all.")] = None,
    url: Url = None,
    port: Port = 8000,
) -> None:
    """Stop a fault, or all of them."""
    stopped = fault_id or ", ".join(fault["id"] for fault in call("GET", "/faults", url, port))
    call("DELETE", f"/faults/{fault_id}" if fault_id else "/faults", url, port)
    Console().print(f"stopped {stopped}" if stopped else "no fault is active", highlight=False)


@fault_app.command("list")
def list_active(url: Url = None, port: Port = 8000, as_json: AsJson = False) -> None:
    """Show the active faults."""
    active = call("GET", "/faults", url, port)
    table = Table("id", "fault", "target", "severity", "ramp", "ends after")
    for fault in active:
        ends = fault["duration_seconds"]
        table.add_row(fault["id"], fault["fault"], target_label(fault["target"]), f"{fault['severity']:g}",
                      f"{fault['ramp_seconds']:g} s", f"{ends:g} s" if ends else "–")  # fmt: skip
    _print(active, as_json, table if active or as_json else _none_told(url, port))


@fault_app.command()
def catalogue(url: Url = None, port: Port = 8000, as_json: AsJson = False) -> None:
    """Show the faults that there are, and what their severity means."""
    known = call("GET", "/faults/catalogue", url, port)
    rows = [_explained(fault) for fault in known["faults"]]
    _print(known, as_json, _table(rows) if Console().width >= TABLE_CELLS else Group(*map(_block, rows)))


def _explained(fault: dict[str, Any]) -> dict[str, str]:
    """A fault of the catalogue by its columns."""
    scale = fault["severity"]
    return {
        "fault": fault["name"],
        "strikes a": " or ".join(fault["targets"]),
        "what it does": fault["description"],
        "severity": scale["meaning"],
        "mild / plain / severe": " / ".join(f"{scale[grade]:g}" for grade in ("mild", "plain", "severe")),
    }


def _table(rows: list[dict[str, str]]) -> Table:
    first, *others = rows[0]
    table = Table(Column(first, no_wrap=True), *others, show_lines=True)
    for row in rows:
        table.add_row(*row.values())
    return table


def _block(row: dict[str, str]) -> Padding:
    """The same, a line for each column, and an empty one."""
    name, *others = row.items()
    block = Table(
        Column(no_wrap=True), "", title=name[1], title_justify="left", title_style="bold", box=None, show_header=False
    )
    for column, text in others:
        block.add_row(column, text)
    return Padding(block, (0, 0, 1, 0))


def _none_told(url: str | None, port: int) -> str:
    """Why the list is empty."""
    status = call("GET", "/status", url, port)
    if status["practice"]["running"]:
        return "a blind drill is on: nobody is told which faults are active. End it: stepscope practice reveal"
    return "this lab is blind: nobody is told which faults are active" if status["blind"] else "no fault is active"


def _sentence(fault: dict[str, Any]) -> str:
    return f"{fault['fault']} on {target_label(fault['target'])}, severity {fault['severity']:g}, id {fault['id']}"


def _print(value: Any, as_json: bool, text: Any) -> None:
    if as_json:
        typer.echo(json.dumps(value))
    else:
        Console().print(text, highlight=False, soft_wrap=isinstance(text, str))


def _whole(rank: str) -> int | str:
    """As ``_number``."""
    return int(rank) if rank.isascii() and rank.isdigit() else rank


def _number(severity: str | None) -> float | str | None:
    """What is not a number goes to the API as it is: its answer says what is allowed."""
    try:
        number = float(severity) if severity is not None else None
    except ValueError:
        return severity
    return severity if number is not None and not isfinite(number) else number


def call(method: str, path: str, url: str | None, port: int, **options: Any) -> Any:
    """What a running lab answers. Says what is wrong, and raises ``typer.Exit``, if it does not or refuses."""
    base = (url or f"http://127.0.0.1:{port}").rstrip("/")
    base = base if "://" in base else f"http://{base}"
    try:
        answer = requests.request(method, base + path, headers=ACTION, timeout=10, **options)
    except requests.RequestException:
        raise fail(
            f"no lab answers at {base}. Start one with 'make lab' or 'make lab-real', or name it with --url.", 1
        ) from None
    if answer.status_code >= 400:
        try:
            message = answer.json()["error"]
        except (ValueError, KeyError):
            message = f"{base} answered {answer.status_code}: is it a Stepscope simulator?"
        raise fail(message, 2 if answer.status_code < 500 else 1)
    return answer.json() if answer.content else None
