"""Writes docs/cli.md: all commands, read from the code. Run: make generate."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer

from stepscope.cli import parser as cluster_parser
from stepsim.commands import app

FILE = Path(__file__).with_name("cli.md")

HEAD = """\
# Command line

Generated from the commands themselves by `make generate`: edit those, not this page.

`make setup` puts `stepscope` into `.venv/bin`; with compose it is `docker compose exec simulator stepscope`. Exit status: 0 good, 1
a finding or a failure, 2 bad usage or input. An option with a variable takes its default from the environment where that is set.
"""

CLUSTER = """\
## For clusters

They need the library alone: an installation without extras is enough.
"""

LAB = """\
## For the lab

They need the extra `lab`.
"""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """An option, or an argument by position."""

    names: str
    help: str
    positional: bool = False
    required: bool = False
    default: str = ""
    variable: str = ""


@dataclass(frozen=True, kw_only=True)
class Command:
    name: str
    text: str
    parameters: tuple[Parameter, ...]
    must: tuple[str, ...] = ()
    """Options that cannot be left out, as a usage line writes them."""
    note: str = ""

    def usage(self) -> str:
        given = [one for one in self.parameters if one.positional]
        options = ["[OPTIONS]"] if len(self.parameters) > len(given) else []
        arguments = [one.names if one.required else f"[{one.names.strip('[]')}]" for one in given]
        return " ".join([self.name, *self.must, *options, *arguments])


# The commands of the lab: functions whose parameters typer annotates --------------------------------------------------


def typer_commands(of: typer.Typer, prefix: str) -> Iterator[Command]:
    for info in of.registered_commands:
        function = info.callback
        assert function is not None
        name = info.name or function.__name__.replace("_", "-")
        parameters = tuple(_typed(function))
        yield Command(
            name=f"{prefix} {name}",
            text=_flat(info.help or inspect.getdoc(function) or ""),
            parameters=parameters,
            must=tuple(one.names for one in parameters if one.required and not one.positional),
        )
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from typer_commands(group.typer_instance, f"{prefix} {group.name or group.typer_instance.info.name}")


def _typed(function: Callable[..., Any]) -> Iterator[Parameter]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if hints[name] is typer.Context:
            continue
        kind, info = get_args(hints[name])[:2]
        if info.hidden:
            continue
        positional = type(info).__name__ == "ArgumentInfo"
        yield Parameter(
            names=info.metavar or name.upper() if positional else _options(name, kind, info),
            help=_joined(_flat(info.help or ""), _range(info)),
            positional=positional,
            required=parameter.default is inspect.Parameter.empty,
            default=_default(parameter.default),
            variable=", ".join([info.envvar] if isinstance(info.envvar, str) else info.envvar or ()),
        )


def _options(name: str, kind: Any, info: Any) -> str:
    first = info.default  # where typer's Option takes its first name, in an annotation
    declared = [*([first] if isinstance(first, str) else []), *info.param_decls] or [
        f"--{name.strip('_').replace('_', '-')}"
    ]
    words = {bool: "", int: "N", float: "NUMBER", Path: "PATH"}
    value = info.metavar or next((word for type_, word in words.items() if type_ in _plain(kind)), "TEXT")
    return " ".join([", ".join(declared), *filter(None, [value, "…" * (list in _plain(kind))])])


def _plain(kind: Any) -> set[Any]:
    """The types of which it is made: of ``list[str] | None`` list, str and None's."""
    return {getattr(kind, "__origin__", kind), *(one for part in get_args(kind) for one in _plain(part))}


def _range(info: Any) -> str:
    low, high = info.min, info.max
    if low is not None and high is not None:
        return f"From {low:g} to {high:g}."
    return f"{low:g} or more." if low is not None else f"{high:g} at most." if high is not None else ""


def _default(value: Any) -> str:
    if value in (inspect.Parameter.empty, None, "") or isinstance(value, bool | list):
        return "yes" if value is True else ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


# The commands for clusters: argparse ----------------------------------------------------------------------------------


def argparse_commands(of: argparse.ArgumentParser) -> Iterator[Command]:
    (commands,) = (action for action in of._actions if isinstance(action, argparse._SubParsersAction))
    helps = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    for name, command in commands.choices.items():
        yield Command(
            name=command.prog,
            text=_joined(_flat(command.description or _capital(helps[name]))),
            parameters=tuple(_parsed(command)),
            must=tuple(_must(command)),
            note=_flat(command.epilog or ""),
        )


def _parsed(command: argparse.ArgumentParser) -> Iterator[Parameter]:
    for action in command._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        text = _flat((action.help or "") % {"default": action.default, "prog": command.prog})
        yield Parameter(
            names=_written(action),
            help=_joined(_capital(text), f"Or {' or '.join(others)}." if (others := _others(command, action)) else ""),
            positional=not action.option_strings,
            required=action.required,
            default="yes" if action.default is True else "",
        )


def _written(action: argparse.Action) -> str:
    value = str(action.metavar or action.dest.upper())
    return " ".join([", ".join(action.option_strings), *([value] if action.nargs != 0 else [])]).strip()


def _others(command: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    """The options that exclude this one."""
    groups = [group._group_actions for group in command._mutually_exclusive_groups if action in group._group_actions]
    return [f"`{other.option_strings[-1]}`" for group in groups for other in group if other is not action]


def _must(command: argparse.ArgumentParser) -> Iterator[str]:
    yield from (_written(action) for action in command._actions if action.required and action.option_strings)
    for group in command._mutually_exclusive_groups:
        if group.required:
            yield f"({' | '.join(map(_written, group._group_actions))})"


# The page -------------------------------------------------------------------------------------------------------------


def _flat(text: str) -> str:
    return " ".join(text.split())


def _capital(text: str) -> str:
    """As a sentence; a word that is written small, such as ``host:port``, stays."""
    return f"{text[:1].upper()}{text[1:]}" if text.partition(" ")[0].isalpha() else text


def _joined(*sentences: str) -> str:
    return " ".join(text if text.endswith(".") else f"{text}." for text in sentences if text)


def _cell(text: str) -> str:
    """A pipe would end the cell, and angle brackets would be taken for HTML."""
    return text.replace("|", r"\|").replace("<", "&lt;")


def section(command: Command) -> str:
    parts = [f"### {command.name}", _cell(command.text), f"```\n{command.usage()}\n```", *_table(command.parameters)]
    return "\n\n".join([*parts, *filter(None, [command.note])]) + "\n"


def _table(parameters: tuple[Parameter, ...]) -> Iterator[str]:
    columns = {
        "option": [f"`{_cell(one.names)}`" for one in parameters],
        "meaning": [_cell(one.help) for one in parameters],
        "default": [one.default for one in parameters],
        "variable": [one.variable and f"`{one.variable}`" for one in parameters],
    }
    used = {title: cells for title, cells in columns.items() if any(cells)}
    if used:
        rows = [list(used), ["---"] * len(used), *zip(*used.values(), strict=True)]
        yield "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page() -> str:
    lab = [section(command) for command in typer_commands(app, "stepscope")]
    return "\n".join([HEAD, CLUSTER, *map(section, argparse_commands(cluster_parser())), LAB, *lab])


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
