"""What Alertmanager sent to the lab's webhook."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

KEPT = 500


class AlertLog:
    """Keeps the last notifications, and the state of each alert. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._firing: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}

    def add(self, notification: Any, now: float) -> int:
        """Book one notification; returns its number of alerts. Raises ``ValueError`` for anything else."""
        alerts = notification.get("alerts") if isinstance(notification, dict) else None
        if not isinstance(alerts, list) or not all(_is_alert(alert) for alert in alerts):
            raise ValueError('expected an Alertmanager notification: {"alerts": [{"status": …, "labels": {…}}]}')
        with self._lock:
            for alert in alerts:
                kept = {key: alert.get(key) for key in ("status", "labels", "annotations", "startsAt", "endsAt")}
                self._received.append({"received": now, **kept})
                key = tuple(sorted(alert["labels"].items()))
                if alert["status"] == "firing":
                    self._firing[key] = self._received[-1]
                else:
                    self._firing.pop(key, None)
        return len(alerts)

    def received(self) -> list[dict[str, Any]]:
        """All kept alerts, oldest first."""
        with self._lock:
            return list(self._received)

    def firing(self) -> list[dict[str, Any]]:
        """The last word on each label set, where that word is ``firing``."""
        with self._lock:
            return list(self._firing.values())


def _is_alert(alert: Any) -> bool:
    return (
        isinstance(alert, dict)
        and alert.get("status") in ("firing", "resolved")
        and _is_strings(alert.get("labels"))
        and _is_strings(alert.get("annotations", {}))
    )


def _is_strings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
