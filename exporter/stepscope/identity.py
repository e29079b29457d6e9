"""Who a process is within a distributed job: rank, node and run, from what the launcher left in the environment."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class IdentityError(ValueError):
    """The environment or the arguments name no valid rank."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One rank of one run."""

    run: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: str = "localhost"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise IdentityError(f"rank {self.rank} does not exist: a world of {self.world_size} has ranks 0 to "
                                f"{self.world_size - 1}")  # fmt: skip
        if self.local_rank < 0:
            raise IdentityError(f"local rank {self.local_rank} is negative")
        if not self.run:
            raise IdentityError("the run's name is empty: set STEPSCOPE_RUN")

    @property
    def one_node(self) -> bool:
        """All ranks are on this machine, as far as the launcher says."""
        return self.world_size <= self.local_world_size

    def labels(self) -> dict[str, str]:
        """Of all the rank's series."""
        return {"run": self.run, "rank": str(self.rank), "node": self.node}

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        run: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        local_rank: int | None = None,
        local_world_size: int | None = None,
    ) -> Identity:
        """torchrun's variables, else those of a Slurm step (``srun``), else a single process; arguments come first. A script
        that ``sbatch`` or ``salloc`` runs sees its job's number of tasks, and is one process.

        Raises ``IdentityError`` for a variable that is no number, and for a rank outside of the world.
        """
        env = os.environ if environ is None else environ
        world = _first(world_size, env, "WORLD_SIZE", "SLURM_STEP_NUM_TASKS", default=1)
        rank = _first(rank, env, "RANK", "SLURM_PROCID", default=0)
        local = _first(local_world_size, env, "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", default=_local(env, world))
        return cls(
            run=run or env.get("STEPSCOPE_RUN") or _launcher_run(env),
            rank=rank,
            world_size=world,
            local_rank=_first(local_rank, env, "LOCAL_RANK", "SLURM_LOCALID", default=rank % max(1, local)),
            local_world_size=local,
            node=env.get("STEPSCOPE_NODE") or env.get("SLURMD_NODENAME") or socket.gethostname(),
        )


def _launcher_run(env: Mapping[str, str]) -> str:
    """The launcher's id where somebody chose it; else the script's name, with the id that torchrun drew."""
    chosen = env.get("TORCHELASTIC_RUN_ID", "none")
    script = Path(sys.argv[0]).stem or "training"
    if re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}", chosen):
        return f"{script}-{chosen[:8]}"
    if chosen != "none":
        return chosen
    return f"slurm-{env['SLURM_JOB_ID']}" if env.get("SLURM_JOB_ID") else script


def _local(env: Mapping[str, str], world: int) -> int:
    """Without a word from the launcher: all ranks are here if Slurm has one node, or the master is this machine."""
    if env.get("SLURM_NNODES"):
        return world if _number(env, "SLURM_NNODES", 1) == 1 else 1
    master = env.get("MASTER_ADDR", "localhost")
    return world if master in ("localhost", "::1") or master.startswith("127.") else 1


def _first(argument: int | None, env: Mapping[str, str], *names: str, default: int) -> int:
    if argument is not None:
        return argument
    known = next((name for name in names if env.get(name)), None)
    return default if known is None else _number(env, known, default)


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise IdentityError(f"{name}={text!r} is no whole number; the launcher sets it, or leave it out") from None
