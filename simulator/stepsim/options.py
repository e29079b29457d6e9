"""Options of commands that are whole numbers, and that a variable may give."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import typer

from stepsim.failure import fail

LAST_PORT = 65535


def port_option(help_: str, variable: str = "", *, low: int = 0, hidden: bool = False) -> Any:
    """A port of this machine."""
    return number_option("port", help_, variable, low=low, high=LAST_PORT, hidden=hidden)


def number_option(what: str, help_: str, variable: str = "", *, low: int, high: int, hidden: bool = False) -> Any:
    """A wrong value is repeated, with what would be right; where it came from the variable, that is named."""
    return typer.Option(envvar=variable or None, help=help_, min=low, max=high, metavar="N", hidden=hidden,
                        parser=_reader(what, variable, low, high))  # fmt: skip


def _reader(what: str, variable: str, low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if low <= number <= high:
            return number
        wrong = f"{str(value)!r} is no {what}: {low} to {high}"
        if variable and os.environ.get(variable) == value:
            raise fail(f"{variable}={wrong}")
        raise typer.BadParameter(wrong)

    return read
