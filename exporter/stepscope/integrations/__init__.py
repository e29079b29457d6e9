"""Callbacks that put Stepscope into other frameworks' training loops, and what they have in common."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from stepscope.monitor import StepMonitor

log = logging.getLogger("stepscope")

Hook: TypeAlias = Callable[..., None]


class Guest:
    """A monitor in a loop that somebody else wrote. What fails is logged once and counted; then the guest has left.

    A monitor that was passed in stays its owner's to close; without one, ``options`` make one for each training.

    Raises ``ValueError`` for options besides a monitor.
    """

    def __init__(self, *, monitor: StepMonitor | None = None, **options: Any) -> None:
        super().__init__()
        if monitor is not None and options:
            raise ValueError(f"give {', '.join(options)} to the monitor that you made, not to the callback")
        self.monitor = monitor
        self._owned = monitor is None
        self._options = options
        self.on_leaving: list[Callable[[], None]] = []
        """What puts things back, last first."""
        self.present = False

    def arrive(self, **options: Any) -> StepMonitor:
        """Begin to measure. The user's own options win over these."""
        self.depart()  # an earlier training may have been broken off
        self.present = True
        if self._owned:
            self.monitor = StepMonitor.from_env(**{**options, **self._options})
        assert self.monitor is not None
        return self.monitor

    def depart(self) -> None:
        """Put everything back as it was; close the monitor, if it is ours."""
        self._leave()
        monitor = self.monitor
        if monitor is None:
            return
        if self._owned:
            self.monitor = None
            monitor.close()
        else:
            monitor.flush()

    def attempt(self, action: Callable[..., None], *args: Any) -> None:
        """Do it, unless the guest has left; if it fails, leave."""
        if not self.present:
            return
        try:
            action(*args)
        except Exception as error:
            self.give_up(error)

    def enter(self, phase: str) -> None:
        """From now on it is this phase."""
        if self.monitor is not None:
            self.monitor.enter(phase)

    def around(self, owner: Any, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
        """From now on ``owner.name(…)`` does this before and after, until the guest leaves. A name that is not there is
        skipped: frameworks rename what is not public."""
        action = getattr(owner, name, None)
        if action is None:
            return

        @functools.wraps(action)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.attempt(before)
            try:
                return action(*args, **kwargs)
            finally:
                self.attempt(after)

        self.replace(owner, name, timed)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set the instance's attribute, until the guest leaves."""
        own = vars(owner).get(name)
        setattr(owner, name, new)

        def undo() -> None:
            if vars(owner).get(name) is not new:  # somebody else came after us, and calls us
                return
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

        self.on_leaving.append(undo)

    def _leave(self) -> None:
        self.present = False
        while self.on_leaving:
            self.on_leaving.pop()()

    def give_up(self, error: Exception) -> None:
        self.present = False
        if self.monitor is not None:
            self.monitor.errors.add("monitor", error)
        else:
            log.error("Stepscope does not measure this training: %s (training goes on)", error, exc_info=error)


def entrance(hook: Hook) -> Hook:
    """The hook that lets the guest in, or out again: it never raises."""

    @functools.wraps(hook)
    def call(self: Guest, *args: Any, **kwargs: Any) -> None:
        try:
            hook(self, *args, **kwargs)
        except Exception as error:
            self.give_up(error)

    return call


def guarded(hook: Hook) -> Hook:
    """Any other hook: it is not called once the guest has left."""
    safe = entrance(hook)

    @functools.wraps(hook)
    def call(self: Guest, *args: Any, **kwargs: Any) -> None:
        if self.present:
            safe(self, *args, **kwargs)

    return call
