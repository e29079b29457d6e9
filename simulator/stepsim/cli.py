"""The ``stepscope`` command. Exit status: 0 good, 1 a finding or a failure, 2 bad usage or input."""

from __future__ import annotations

import sys

from stepscope import cli as cluster


def main() -> None:
    """Entry point. What a training cluster runs needs the library alone; the rest says what to install if it must."""
    if sys.argv[1:2] and sys.argv[1] in cluster.COMMANDS:
        sys.exit(cluster.main(sys.argv[1:]))
    try:
        from stepsim.commands import app
    except ModuleNotFoundError as error:
        sys.exit(
            f"stepscope: this command needs the lab's packages ({error.name} is missing): pip install 'stepscope[lab]'"
        )
    app()
