"""Writes the table of series in deploy/README.md: counted on pages that the exporter renders, never estimated.

Run: make generate.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from stepscope.metrics import REFEREE, TRAINING
from stepscope.phases import PHASES
from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.job import load_job
from stepsim.pages import Pages

ROOT = Path(__file__).parents[1]
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- cardinality.py: begin -->\n", "<!-- cardinality.py: end -->\n"
RANKS, RANKS_PER_NODE, SECONDS = 10_000, 8, 10
"""What the table's totals are for: ranks, and the scrape interval."""

Json = dict[str, Any]
Count = Counter[str]
"""Series by what they multiply with: rank, node or run."""

ROWS = {
    "training": "training, from the ranks",
    "referee": "critical path, from the referee",
    "dcgm": "GPUs, DCGM's names",
    "node": "hosts, node_exporter's names, {cpus} CPUs",
}


def pages(*, per_rank_histogram: bool = False, sent: bool = False) -> tuple[dict[str, Count], str]:
    """Series of the default simulated job by page, per rank, node and run; and the pages' text.

    Divided by how many ranks and nodes it has: a remainder would be an error. With ``sent``, only those that
    remote_write.yml sends.
    """
    drops = dropped() if sent else []
    job = load_job("cluster")
    engine = Engine(job, FaultBoard(job), seed=1, now=1_700_000_000.0)
    engine.advance(engine.now + 60)
    made = Pages(engine, lambda: engine.now, per_rank_histogram=per_rank_histogram, blind=True)
    found: dict[str, Count] = {}
    whole = ""
    for source, node in made.names():
        text = made.text(source, node)
        whole += text
        for line in text.splitlines():
            if not line.startswith("#") and not _matches(line, drops):
                found.setdefault(source, Counter())[_level(line, source)] += 1
    many = {"rank": job.ranks, "node": job.nodes, "run": 1}
    for counts in found.values():
        for level, number in counts.items():
            counts[level], rest = divmod(number, many[level])
            assert rest == 0, (counts, level)
    return found, whole


def _level(line: str, source: str) -> str:
    labels = set(re.findall(r'[{,](\w+)="', line))
    if labels & {"rank", "UUID"}:
        return "rank"
    return "node" if "node" in labels or source == "node" else "run"


def dropped() -> list[Json]:
    """The rules by which remote_write.yml keeps series to itself."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/remote_write.yml").read_text(encoding="utf-8"))
    rules: list[Json] = config["remote_write"][0]["write_relabel_configs"]
    assert {rule["action"] for rule in rules} == {"drop"}
    return rules


def _matches(line: str, drops: list[Json]) -> bool:
    labels = {"job": "stepscope", "__name__": line.partition("{")[0].split()[0]}
    labels.update(re.findall(r'[{,](\w+)="([^"]*)', line))
    values = [";".join(labels.get(name, "") for name in rule["source_labels"]) for rule in drops]
    return any(re.fullmatch(rule["regex"], value) for rule, value in zip(drops, values, strict=True))


FEW = "culprit|rank:training_missing|rank:gpu_power_capped|stall"


def recorded() -> Count:
    """Series that the recording rules make, by the level in their names; the accused's and the lost's, which are few, aside."""
    groups = yaml.safe_load((ROOT / "prometheus/rules/recording.yml").read_text(encoding="utf-8"))["groups"]
    rules = {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}
    counts: Count = Counter()
    for name in rules:
        if not re.search(FEW, name):
            counts[name.partition(":")[0]] += len(PHASES) if _by_phase(name, rules) else 1
    return counts


def _by_phase(name: str, rules: dict[str, str]) -> bool:
    """Whether the rule's result has the label: its first series decides, be it aggregated or recorded itself."""
    expr = rules[name]
    first = re.search(r"\bby \(([^)]*)\)|\b((?:run|rank|node):[\w:]+)(\{phase=)?", expr)
    assert first, name
    if first[1]:
        return "phase" in first[1]
    return not first[3] and _by_phase(first[2], rules)


def silent(text: str) -> list[str]:
    """Families of the table that the simulated job does not publish, and that are therefore not counted."""
    published = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    return sorted({metric.name for metric in (*TRAINING, *REFEREE)} - published)


def table() -> str:
    by_page, text = pages()
    histograms = pages(per_rank_histogram=True)[0]["training"]
    rows = {
        **{ROWS[source].format(cpus=load_job("cluster").cpus_per_node): counts for source, counts in by_page.items()},
        "recording rules": recorded(),
    }
    nodes = RANKS // RANKS_PER_NODE
    sent = sum(pages(sent=True)[0].values(), recorded())
    lines = [
        f"| series | per rank | per node | per run | at {RANKS:,} ranks |",
        "|---|---:|---:|---:|---:|",
        *(_row(name, counts, nodes) for name, counts in rows.items()),
        _row("**all**", sum(rows.values(), Counter()), nodes),
        _row("*of these, sent by remote_write.yml*", sent, nodes),
        _row("*training, with `--per-rank-histogram`*", histograms, nodes),
    ]
    total = sum(_total(counts, nodes) for counts in rows.values())
    left_out = ", ".join(f"`{name}`" for name in silent(text))
    rate = total // SECONDS
    notes = [f"{nodes:,} nodes of {RANKS_PER_NODE}; scraped every {SECONDS} s: {rate:,} samples per second."]
    if left_out:
        notes.append(f"Not counted, since the simulator has none: {left_out}.")
    return "\n".join(lines) + "\n\n" + " ".join(notes) + "\n"


def _total(counts: Count, nodes: int) -> int:
    return counts["rank"] * RANKS + counts["node"] * nodes + counts["run"]


def _row(name: str, counts: Count, nodes: int) -> str:
    return f"| {name} | {counts['rank']} | {counts['node']} | {counts['run']} | {_total(counts, nodes):,} |"


def readme() -> str:
    """The README with the table as it is now."""
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
