"""How a command says that it cannot."""

from __future__ import annotations

import typer
from rich.console import Console


def fail(message: object, status: int = 2) -> typer.Exit:
    """Print an error; raise what this returns."""
    errors = Console(stderr=True, highlight=False)
    errors.print(f"stepscope: {message}", style="red", markup=False, soft_wrap=True)
    return typer.Exit(status)
