"""How the ranks of a job find each other's pages: through PyTorch's own store, which every launcher sets up.

Only single requests to the store, off the training loop; never a collective, which a rank without a monitor would hang.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from stepscope.identity import Identity


def _distributed() -> Any:
    """``torch.distributed``, if the job has imported and initialized it."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


def backend() -> str:
    """``nccl``, ``gloo``, …; empty without a process group."""
    distributed = _distributed()
    return str(distributed.get_backend()) if distributed else ""


def _store() -> Any:
    distributed = _distributed()
    return distributed.distributed_c10d._get_default_store() if distributed else None


def _key(rank: int) -> str:
    return f"stepscope/{rank}"


def announce(identity: Identity, address: str) -> bool:
    """Tell the others this rank's address. False while there is no process group yet."""
    store = _store()
    if store is None:
        return identity.world_size == 1
    store.set(_key(identity.rank), address)
    return True


class StorePeers:
    """Addresses of the ranks of a job, as far as they are known by now. ``own`` tells this rank's, once it has one."""

    def __init__(
        self, identity: Identity, own: Callable[[], str | None], discovered: Callable[[], Iterable[str]]
    ) -> None:
        self._identity, self._own, self._discovered = identity, own, discovered
        self._known: dict[int, str] = {}

    def __call__(self) -> Iterable[str]:
        if self._identity.world_size == 1:
            own = self._own()
            return [own] if own else []
        store = _store()
        if store is None:
            return self._discovered()
        for rank in range(self._identity.world_size):
            if rank not in self._known and store.check([_key(rank)]):
                self._known[rank] = store.get(_key(rank)).decode()
        return self._known.values()
