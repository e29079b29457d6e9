"""What survives a restart of the simulator: the active faults, and the training job's last checkpoint.

The file is replaced atomically, so a crash leaves the old one or the new one, never half of one.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from stepsim.board import ActiveFault
from stepsim.learning import Weights

VERSION = 1


class StateError(ValueError):
    """A state file that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class SavedState:
    version: int = VERSION
    run: str = ""
    """Whose state it is: another run begins anew."""
    attempt: int = 0
    checkpoint: Weights = field(default_factory=Weights)
    faults: list[ActiveFault] = field(default_factory=list)
    until: float | None = None
    """Where a generated past ends, seconds since the epoch: the live job takes up there, so that no gap is seen."""


_ADAPTER = TypeAdapter(SavedState)


def load_state(path: Path) -> SavedState | None:
    """The saved state, or None where there is none. Raises ``StateError`` for a file that is damaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"cannot read the state file {path}: {error}") from error
    try:
        state = _ADAPTER.validate_json(text, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise StateError(
            f"the state file {path} is damaged ({where}: {first['msg']}). "
            "Mend it, or delete it to begin a new run without faults."
        ) from None
    if state.version != VERSION:
        raise StateError(f"the state file {path} has version {state.version}; this program reads {VERSION}. Delete it.")
    return state


def save_state(path: Path, state: SavedState) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(path.suffix + ".new")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(asdict(state), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
