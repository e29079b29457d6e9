"""A report in plain words, and as JSON. To add a unit: add a row to ``WRITTEN``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from math import isfinite, isnan
from typing import Any, TypeAlias

from stepscope.diagnosis.report import Evidence, Report, Step, Suspicion, Target, Unit, Verdict

Paint: TypeAlias = Callable[[str, str], str]
"""A style's name and a text → the text in that style."""

STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
"""ANSI, as any terminal has them."""
COLOUR = re.compile(r"(\x1b\[\d{1,2}m)")
RUNBOOKS = "docs/runbooks"


def plain(style: str, text: str) -> str:
    return text


def coloured(style: str, text: str) -> str:
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def in_words(report: Report, paint: Paint = plain) -> str:
    """The whole report, costliest verdict first as it is sorted."""
    lines = [_headline(report, paint)]
    for number, verdict in enumerate(report.verdicts, 1):
        lines += ["", *_verdict(number, verdict, paint)]
    if report.suspicions:
        lines += ["", "Not certain yet:", *(f"- {suspicion_text(one)}" for one in report.suspicions)]
    if report.steps:
        lines += [
            "",
            "What was looked at, in order:",
            *(line for step in enumerate(report.steps, 1) for line in _step(*step, paint)),
        ]
    if report.missing:
        lines += ["", f"Could not be looked at: {'; '.join(report.missing)}."]
    return "\n".join(_printable(line) for line in lines) + "\n"


def as_json(report: Report) -> dict[str, Any]:
    """``Report.to_dict``, with numbers that JSON does not know as text: NaN, +Inf and -Inf, as Prometheus writes them."""
    found: dict[str, Any] = _json(report.to_dict())
    return found


def with_texts(report: Report) -> dict[str, Any]:
    """``as_json``, with ``shown`` in each piece of evidence: its number as people read it."""
    found = as_json(report)
    for verdict, written in zip(report.verdicts, found["verdicts"], strict=True):
        told = [*verdict.evidence, *(other.evidence for other in verdict.ruled_out)]
        texts = [*written["evidence"], *(other["evidence"] for other in written["ruled_out"])]
        for evidence, one in zip(told, texts, strict=True):
            one["shown"] = human(evidence.value, evidence.unit)
    return found


def target_text(target: Target) -> str:
    """Whose fault it is: ``rank 5``, ``node-2`` or ``the whole run``."""
    if "rank" in target:
        return f"rank {target['rank']}"
    return str(target["node"]) if "node" in target else "the whole run"


def suspicion_text(suspicion: Suspicion) -> str:
    """What it is, of whom, and for how long: ``hang: rank 5, for 10 s of the 15 s that it takes``."""
    held, needed = (human(seconds, "seconds") for seconds in (suspicion.held_seconds, suspicion.needed_seconds))
    return f"{suspicion.fault}: {target_text(suspicion.target)}, for {held} of the {needed} that it takes"


def human(value: float, unit: Unit) -> str:
    """A number with its unit, in three digits."""
    return WRITTEN[unit](value) if isfinite(value) else not_finite(value)


def not_finite(value: float) -> str:
    return "NaN" if isnan(value) else f"{'+' if value > 0 else '-'}Inf"


def _headline(report: Report, paint: Paint) -> str:
    when = datetime.fromtimestamp(report.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    found, now = len(report.verdicts), any(verdict.confidence for verdict in report.verdicts)
    if now:
        said = paint("red", "1 thing is wrong" if found == 1 else f"{found} things are wrong, the costliest first")
    elif report.verdicts:
        said = paint("yellow", "1 thing has just ended" if found == 1 else f"{found} things have just ended")
    elif report.suspicions:
        said = paint("yellow", "not certain yet") + ", something may be wrong: ask again within a minute"
    elif report.healthy:
        said = paint("green", "healthy") + ", nothing was found that is wrong"
    else:
        said = paint("yellow", "not enough data") + ", so nothing is proven: neither that it is well, nor what is wrong"
    return f"{paint('bold', report.run)}, {when}: {said}."


def _verdict(number: int, verdict: Verdict, paint: Paint) -> Iterator[str]:
    what = paint("bold", f"{number}. {verdict.fault}: {target_text(verdict.target)}")
    cost = f"costs {human(verdict.lost_gpus, 'number')} {'GPU' if verdict.lost_gpus == 1 else 'GPUs'}"
    sure = f"confidence {human(verdict.confidence, 'ratio')}" if verdict.confidence else "has just ended"
    yield f"{what}, {cost}, {sure}"
    yield f"   {verdict.summary}"
    for evidence in verdict.evidence:
        yield f"   - {_evidence(evidence)}"
        yield f"     {paint('dim', ' '.join(evidence.query.split()))}"
    for other in verdict.ruled_out:
        yield f"   - not {other.fault}: {_evidence(other.evidence)}"
    yield f"   Runbook: {verdict.runbook} ({RUNBOOKS}/{verdict.runbook}.md)"


def _step(number: int, step: Step, paint: Paint) -> Iterator[str]:
    if step.wrong:
        found = paint("red", f"here: {', '.join(step.wrong)}")
    else:
        found = paint("yellow", f"not certain yet: {', '.join(step.suspected)}") if step.suspected else "no finding"
    yield f"{number}. {step.question} {found}"
    for evidence in step.evidence:
        yield paint("dim", f"   {_evidence(evidence)}")


def _evidence(evidence: Evidence) -> str:
    return f"{evidence.what}: {human(evidence.value, evidence.unit)} (healthy: {evidence.healthy})"


def _printable(line: str) -> str:
    """Names come from whoever is scraped: nothing in them may steer the terminal, but for its colours."""
    return "".join(part if COLOUR.fullmatch(part) else _visible(part) for part in COLOUR.split(line))


def _visible(text: str) -> str:
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    return not_finite(value) if isinstance(value, float) and not isfinite(value) else value


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _scaled(*scale: tuple[float, str]) -> Callable[[float], str]:
    """Written in the first unit that it reaches; the last one is for all that is smaller, the base unit for 0."""

    def write(value: float) -> str:
        size, name = next((one for one in scale if (abs(value) or 1.0) >= one[0]), scale[-1])
        return f"{_digits(value / size)} {name}"

    return write


WRITTEN: Mapping[Unit, Callable[[float], str]] = {
    "ratio": lambda value: f"{_digits(100 * value)} %",
    "seconds": _scaled((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "watts": lambda value: f"{_digits(value)} W",
    "celsius": lambda value: f"{_digits(value)} °C",
    "hertz": _scaled((1e9, "GHz"), (1e6, "MHz"), (1.0, "Hz")),
    "bytes_per_second": _scaled((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")),
    "count": lambda value: f"{value:,.0f}",
    "number": _digits,
}
