"""The page's tables: the catalogue of faults, and the matrix theme by theme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml

from fault_matrix.columns import Column, Theme, Value, plain
from fault_matrix.measuring import Setup
from fault_matrix.rows import row, runs
from stepsim.faults import FAULTS, Severity, SimulatedFault
from stepsim.job import PRESETS, load_job
from stepsim.real import REAL_FAULTS

RULES = Path(__file__).parents[2] / "prometheus" / "rules" / "alerts.yml"


def cell(column: Column, value: Value, healthy: Value) -> str:
    if not column.moved(value, healthy):
        return "·"
    return f"**{column.shown(value)}** {column.distance(value, healthy)}".rstrip()


def table_row(setup: Setup, fault: str | None, columns: Sequence[Column]) -> str:
    values, healthy = row(setup, fault), row(setup, None)
    if fault is None:
        return table_line(f"*{setup.title}*", *(column.shown(healthy[column.key]) for column in columns))
    return table_line(f"`{fault}`", *(cell(column, values[column.key], healthy[column.key]) for column in columns))


def table_line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def table(head: Sequence[str], align: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join((table_line(*head), f"|{'|'.join(align)}|", *rows))


def matrix(theme: Theme) -> str:
    """One theme: its table, and how each column is read."""
    head = ("", *(column.label for column in theme.columns))
    align = ("---", *("--:" for _ in theme.columns))
    rows = [table_row(setup, fault, theme.columns) for setup, fault in runs()]
    legend = [
        table_line(one.label, one.series, "any" if one.bits or one.exact else plain(one.floor)) for one in theme.columns
    ]
    return "\n\n".join((
        f"### {theme.title}", theme.text, table(head, align, rows),
        table(("column", "how it is read", "floor"), ("---", "---", "--:"), legend),
    ))  # fmt: skip


@cache
def alerts() -> Mapping[str, str]:
    """The alert that claims each fault. Exhibits claim nothing."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "exhibit" not in rule.get("labels", {})]
    return {rule["labels"]["cause"]: rule["alert"] for rule in rules}


def grades(severity: Severity) -> str:
    return f"{severity.mild:g} / {severity.plain:g} / {severity.severe:g}"


def catalogue_row(fault: SimulatedFault) -> str:
    alert, real = alerts()[fault.name], REAL_FAULTS.get(fault.name)
    return table_line(
        f"`{fault.name}`",
        " or ".join(fault.targets),
        fault.description,
        fault.severity.meaning,
        grades(fault.severity),
        f"[{alert}](runbooks/{alert}.md)",
        grades(real.severity) if real else "",
    )


def catalogue() -> str:
    head = (
        "fault", "strikes", "what happens", "severity", "mild / plain / severe", "alert and runbook", "in real training",
    )  # fmt: skip
    return table(head, ["---"] * len(head), [catalogue_row(fault) for fault in FAULTS.values()])


def impossible() -> str:
    """A line for every fault that some presets cannot have: which ones, and why."""
    jobs = {preset: load_job(preset) for preset in PRESETS}
    why = {
        name: {preset: reason for preset, job in jobs.items() if (reason := fault.need(job))}
        for name, fault in FAULTS.items()
    }
    return "\n".join(
        f"- `{name}`, in {', '.join(f'`{preset}`' for preset in reasons)}: it {next(iter(reasons.values()))}."
        for name, reasons in why.items()
        if reasons
    )
