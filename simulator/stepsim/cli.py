"""The ``stepscope`` command. Exit status: 0 good, 1 a finding or a failure, 2 bad usage or input."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point; says what to install where the lab's packages are missing."""
    try:
        from stepsim.commands import app
    except ModuleNotFoundError as error:
        sys.exit(
            f"stepscope: this command needs the lab's packages ({error.name} is missing): pip install 'stepscope[lab]'"
        )
    app()
