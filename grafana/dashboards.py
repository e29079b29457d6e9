"""THE list of dashboards, and the program that writes them. ``make generate`` runs it; a test proves them up to date.

To add a panel: add it to its dashboard's grid in boards/.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from boards.cost import cost
from boards.exporter import exporter
from boards.gpus import gpus
from boards.learning import learning
from boards.mirage import mirage
from boards.practice import practice
from boards.ranks import ranks
from boards.step import step

DASHBOARDS = (mirage, ranks, step, gpus, learning, cost, practice, exporter)
"""In the order in which they are numbered; each is written to a file of its own name."""


def write(folder: Path) -> list[Path]:
    """Write every dashboard's JSON; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for make in DASHBOARDS:
        file = folder / f"{make.__name__}.json"
        file.write_text(json.dumps(make(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        written.append(file)
    return written


if __name__ == "__main__":
    for file in write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "dashboards"):
        sys.stdout.write(f"{file}\n")
