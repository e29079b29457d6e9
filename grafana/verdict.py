"""Panels that more than one dashboard shows."""

from __future__ import annotations

from board import RUNBOOK, to, to_ranks
from meaning import BAD, PLAIN, Json, steps
from panels import from_query, named, rows, stat, target
from series import NO_REFEREE
from tables import table


def verdict(size: int) -> Json:
    """Rank or node, and the phase in which it is late; else that there is no single culprit."""
    return stat(
        "Who holds everyone up",
        "The rank, or else the node, that costs the run more than 8 % of its time and comes last far more often than its "
        "share, and the phase in which it is late. Late by turns, as with starved loaders or jitter, is nobody's fault.",
        target('topk(1, rank:training_culprit:share{run="$run"})', "rank {{rank}} on {{node}}: {{phase}}", instant=True),
        target('topk(1, node:training_culprit:share{run="$run"})', "{{node}}: {{phase}}", instant=True),
        target(
            '0 * run:training_late_share:rate1m{run="$run"} unless on (run) rank:training_culprit:share{run="$run"} '
            'unless on (run) node:training_culprit:share{run="$run"}',
            "no single culprit", instant=True,
        ),
        unit="percentunit", text="name", size=size, color={"mode": "thresholds"}, noValue=NO_REFEREE,
        thresholds=steps((None, PLAIN), (0.01, BAD)),
        overrides=[from_query("A", links=[to_ranks()]), from_query("B", links=[to("ranks", "All ranks")])],
    )  # fmt: skip


def alerts_firing() -> Json:
    return table(
        "Alerts firing",
        "What the rules say now; a name leads to its runbook. GpuUtilizationLow is an exhibit: see what it misses.",
        rows('topk(256, ALERTS{alertstate="firing",run="$run"})'), unit="none", noValue="no alert is firing",
        columns={"alertname": "Alert", "cause": "Cause", "severity": "Severity", "rank": "Rank", "node": "Node"},
        overrides=[named("Alert", links=[RUNBOOK], custom__width=220)],
    )  # fmt: skip
