"""``python -m stepsim`` is the ``stepscope`` command."""

from stepsim.cli import main

main()
