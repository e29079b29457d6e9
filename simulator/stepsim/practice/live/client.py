"""Practice on the running lab: one's own rules in its Prometheus, and blind drills on its job."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from stepsim.fault_commands import call
from stepsim.practice.live.rules import EMPTY, LOADED, rendered, version_of
from stepsim.practice.rule_file import RuleFile, check_with_promtool

WAIT_SECONDS = 60.0
"""For Prometheus to notice: in compose it looks at its files every 30 s."""
POLL_SECONDS = 0.3
ASK_SECONDS = 5.0
DEFAULT_PORT = 8000

Groups = list[dict[str, Any]]


class LiveError(RuntimeError):
    """The rules are not in the lab's Prometheus; says what to do."""


def install(rules: RuleFile, target: Path, prometheus: str, wait_seconds: float = WAIT_SECONDS) -> None:
    """Put rules that were checked into ``target``, the lab's prometheus/rules/practice.yml, and wait until Prometheus has them.

    Raises ``LiveError``, and ``RuleFileError`` in promtool's words where there is a promtool. What Prometheus refuses is
    taken back: the file is then what it was.
    """
    if shutil.which("promtool"):
        check_with_promtool(rules.path)
    version = version_of(rules)

    def there(groups: Groups) -> bool:
        return any(rule["name"] == LOADED and rule.get("labels", {}).get("version") == version
                   for group in groups for rule in group["rules"])  # fmt: skip

    _exchange(rendered(rules), target, prometheus, there, wait_seconds)


def clear(target: Path, prometheus: str, wait_seconds: float = WAIT_SECONDS) -> None:
    """Put the empty file back, and wait until Prometheus has no rule of it. Raises ``LiveError``."""
    _exchange(EMPTY, target, prometheus, lambda groups: not groups, wait_seconds)


def _exchange(text: str, target: Path, prometheus: str, done: Callable[[Groups], bool], wait_seconds: float) -> None:
    url = _url(prometheus)
    if not target.is_file():
        raise LiveError(f"there is no {target}: run this in the project's folder, the one whose lab is running")
    _groups(url, target)
    well, before = _reloaded_well(url), target.read_text(encoding="utf-8")
    _replace(target, text)
    deadline = time.monotonic() + wait_seconds
    while not done(_groups(url, target)):
        if well and not _reloaded_well(url):
            _replace(target, before)
            raise LiveError(f"Prometheus at {url} refuses the rules; its log says why. {target} is what it was")
        if time.monotonic() > deadline:
            raise LiveError(f"Prometheus at {url} has not taken over {target} within {wait_seconds:g} s, though the file is in "
                            "place. Is it this lab's Prometheus? 'make lab' tells it by itself; with compose, so does: "
                            "docker compose kill -s HUP prometheus")  # fmt: skip
        time.sleep(POLL_SECONDS)


def _replace(target: Path, text: str) -> None:
    """At once: Prometheus reads the old file or the new one."""
    fresh = target.with_name(f".{target.name}.new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.chmod(0o644)  # a container's Prometheus is another user
        fresh.replace(target)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise LiveError(f"cannot write {target}: {error.strerror}") from None


def _groups(url: str, target: Path) -> Groups:
    """Those that Prometheus has of the file, whatever folder it sees the file in."""
    answer = _ask(url, "/api/v1/rules")
    try:
        groups: Groups = json.loads(answer)["data"]["groups"]
        return [group for group in groups if Path(group["file"]).name == target.name]
    except (ValueError, KeyError, TypeError):
        raise LiveError(f"{url} answers, but not as a Prometheus does; name the lab's own with --prometheus") from None


_RELOADED = re.compile(r"^prometheus_config_last_reload_successful (\d)", re.MULTILINE)


def _reloaded_well(url: str) -> bool:
    """Whether it could read its files the last time it looked."""
    found = _RELOADED.search(_ask(url, "/metrics"))
    return found is not None and found[1] == "1"


def _ask(url: str, path: str) -> str:
    try:
        return requests.get(url + path, timeout=ASK_SECONDS).text
    except requests.RequestException:
        raise LiveError(f"no Prometheus answers at {url}: start the lab with 'make lab' or 'docker compose up', or name its "
                        "Prometheus with --prometheus") from None  # fmt: skip


def _url(prometheus: str) -> str:
    return (prometheus if "://" in prometheus else f"http://{prometheus}").rstrip("/")


# Blind drills: what the lab answers, as stepsim.practice.live.blind tells it. Whoever asks no lab gets told, and typer.Exit.


def start_blind(
    url: str | None, drill: str | None = None, minutes: float = 20.0, incidents: int = 3, *, port: int = DEFAULT_PORT
) -> dict[str, Any]:
    """Begin a blind drill: what may be known of it, with the commitment."""
    wanted = {"drill": drill, "minutes": minutes, "incidents": incidents}
    begun: dict[str, Any] = call("POST", "/practice", url, port, json=wanted)
    return begun


def state(url: str | None, *, port: int = DEFAULT_PORT) -> dict[str, Any]:
    """Whether a drill is on, and how long still."""
    known: dict[str, Any] = call("GET", "/practice", url, port)
    return known


def reveal(url: str | None, *, port: int = DEFAULT_PORT) -> dict[str, Any]:
    """End the drill: the truth and the grade."""
    revealed: dict[str, Any] = call("POST", "/practice/reveal", url, port)
    return revealed


def result(url: str | None, *, port: int = DEFAULT_PORT) -> dict[str, Any]:
    """The same of the last drill, once more."""
    last: dict[str, Any] = call("GET", "/practice/result", url, port)
    return last
