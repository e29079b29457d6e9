"""Which series an expression reads, and which of the lab's recording rules it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def names_in(exprs: Iterable[str], known: Iterable[str]) -> set[str]:
    """Of the known metrics, those that are read. A word that happens to be one's name counts, which does no harm; where
    names are matched by ``__name__``, all do."""
    words = {word for expr in exprs for word in _WORD.findall(expr)}
    return set(known) if "__name__" in words else words & set(known)


def recorded_for(exprs: Iterable[str], recording: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The recording rules that expressions need, in their order. ``recording`` is a rule file's content."""
    rules = {rule["record"]: rule for group in recording["groups"] for rule in group["rules"]}
    needed: set[str] = set()
    found = names_in(exprs, rules)
    while found:
        needed |= found
        found = names_in((rules[name]["expr"] for name in found), rules) - needed
    return [rule for name, rule in rules.items() if name in needed]
