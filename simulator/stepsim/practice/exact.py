"""Engine A: Prometheus's own rule engine, faster than real time, by ``promtool test rules``.

promtool is given a recording as its input series, and told to expect nothing of each expression at every evaluation; it
says what it got instead. ``for``, ``keep_firing_for``, recording rules, templates and staleness are Prometheus's own.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import yaml

from stepsim.durations import parse_duration
from stepsim.practice.needed import names_in, recorded_for
from stepsim.practice.recording import FloatArray, Recording, is_stale
from stepsim.practice.rule_file import RuleFile, RuleFileError

Labels: TypeAlias = frozenset[tuple[str, str]]
Samples: TypeAlias = dict[Labels, list[tuple[float, float]]]
"""Of each label set, when it was there (seconds after the beginning, at evaluations), and its values."""
Moments: TypeAlias = dict[Labels, list[float]]

RECORDED_GROUP = "recorded by the lab"
ALERTS = "ALERTS"


class EngineError(RuntimeError):
    """promtool is missing, or says what nobody understands."""


def evaluate(
    recording: Recording, rules: RuleFile | None, exprs: Sequence[str], *, every: float, lab: Mapping[str, Any]
) -> dict[str, Samples]:
    """What each expression gives while the rules are evaluated ``every`` so many seconds. ``lab`` is the content of the
    lab's recording.yml, of which only what is needed is evaluated. Raises ``EngineError``; ``RuleFileError`` where the
    rules fail at run time."""
    read = [*exprs, *rules.exprs()] if rules else list(exprs)
    recorded = recorded_for(read, lab)
    names = names_in([*read, *(rule["expr"] for rule in recorded)], recording.names())
    with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        files = [_write_rules(Path(folder), recorded)] if recorded else []
        order = [RECORDED_GROUP] if recorded else []
        if rules:
            files.append(str(rules.path.resolve()))
            order += [group["name"] for group in yaml.safe_load(rules.text)["groups"]]
        test = Path(folder) / "test.yml"
        with test.open("w", encoding="utf-8") as file:
            file.writelines(_test(recording, names, exprs, every, files, order))
        return _run(test, exprs, rules)


def firing(recording: Recording, rules: RuleFile, *, every: float, lab: Mapping[str, Any]) -> tuple[Moments, Moments]:
    """When each alert fired, and when it was pending. Labels have ``alertname``, and no ``alertstate``."""
    found = evaluate(recording, rules, [ALERTS], every=every, lab=lab)[ALERTS]
    states: dict[str, Moments] = {"firing": {}, "pending": {}}
    for labels, samples in found.items():
        told = dict(labels)
        state = told.pop("alertstate")
        states[state][frozenset(told.items())] = [moment for moment, _ in samples]
    return states["firing"], states["pending"]


def _write_rules(folder: Path, recorded: list[dict[str, Any]]) -> str:
    file = folder / "recorded.yml"
    file.write_text(
        yaml.safe_dump({"groups": [{"name": RECORDED_GROUP, "rules": recorded}]}, width=1000), encoding="utf-8"
    )
    return str(file)


def _test(
    recording: Recording, names: set[str], exprs: Sequence[str], every: float, files: list[str], order: list[str]
) -> Iterator[str]:
    yield f"rule_files: {_flow(files)}\nevaluation_interval: {_shown(every)}\ngroup_eval_order: {_flow(order)}\n"
    yield f"tests:\n- interval: {_shown(recording.scrape_seconds)}\n  input_series:\n"
    for key, values in recording.of(names):
        yield f"  - {{series: {_quoted(key)}, values: '{' '.join(_notation(values))}'}}\n"
    yield "  promql_expr_test:\n"
    for moment in np.arange(0.0, recording.last + 1e-3, every).tolist():
        for expr in exprs:
            yield f"  - {{expr: {_quoted(expr)}, eval_time: {_shown(moment)}}}\n"


def _notation(values: FloatArray) -> Iterator[str]:
    """promtool's notation of a series: runs of equal values are written once, and an end is marked where it comes."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    starts = np.flatnonzero(np.concatenate([[True], bits[1:] != bits[:-1]]))
    lengths = np.diff(np.append(starts, len(values)))
    absent = is_stale(values[starts])
    for gone, value, length, start in zip(
        absent.tolist(), values[starts].tolist(), lengths.tolist(), starts.tolist(), strict=True
    ):
        if gone:
            yield "stale" if start else "_"
            yield from [f"_x{length - 1}"] if length > 1 else []
        elif isfinite(value):
            yield f"{value!r}x{length - 1}" if length > 1 else repr(value)
        else:
            yield from [{"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}[repr(value)]] * length


def _run(test: Path, exprs: Sequence[str], rules: RuleFile | None) -> dict[str, Samples]:
    try:
        done = subprocess.run(["promtool", "test", "rules", str(test)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise EngineError(
            "promtool is not on the PATH; it comes with Prometheus (Debian: apt-get install prometheus)"
        ) from None
    said = done.stdout + done.stderr
    failed = FAILED.search(said)
    if failed:
        raise RuleFileError(
            f"{rules.path if rules else 'the lab'}: {failed['rule']} fails when it is evaluated: {failed['why']}"
        )
    found: dict[str, Samples] = {expr: {} for expr in exprs}
    cases = 0
    for case in CASE.finditer(said):
        moment, cases = parse_duration(case["time"]), cases + 1
        for labels, value in SAMPLE.findall(case["got"]):
            kept = frozenset((name, json.loads(text)) for name, text in LABEL.findall(labels) if name != "__name__")
            found[json.loads(case["expr"])].setdefault(kept, []).append((moment, float(value)))
    if done.returncode and not cases:
        raise EngineError(f"promtool says what is not understood here: {said.strip()[-500:]}")
    return found


_STRING = r'"(?:[^"\\]|\\.)*"'
FAILED = re.compile(r"^    (?:rule: (?P<rule>.+?), time: |expr: .*?, time: )[^,]*, err: (?P<why>.+)$", re.MULTILINE)
CASE = re.compile(rf"expr: (?P<expr>{_STRING}), time: (?P<time>\w+),\s+exp: .*\s+got: (?P<got>.*)")
LABEL = re.compile(rf"(\w+)=({_STRING})")
SAMPLE = re.compile(rf"\{{((?:\w+={_STRING}(?:, )?)*)\}} (\S+?)(?=,|\s|$)")


def _flow(words: Iterable[str]) -> str:
    return json.dumps(list(words))


def _quoted(text: str) -> str:
    """As YAML, of which JSON's strings are a part."""
    return json.dumps(text, ensure_ascii=False)


def _shown(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms"
