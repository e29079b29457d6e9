"""Panels that more than one dashboard shows."""

from __future__ import annotations

from board import RUNBOOK, to, to_ranks
from meaning import BAD, PLAIN, Json, steps
from panels import from_query, named, rows, stat, target
from series import NO_REFEREE, STALLED
from tables import table

ELSEWHERE = 'rank:training_outside_allreduce:sum{run="$run"} == 1'
"""Ranks that are not where the others wait."""
ALONE = f"count by (run) ({ELSEWHERE}) == 1"
GONE = 'rank:training_missing:last1h{run="$run"}'


def verdict(size: int) -> Json:
    """Rank or node, and the phase in which it is late; else that there is no single culprit. While no step ends, the rank that
    has vanished, or the only one that does not arrive."""
    return stat(
        "Who holds everyone up",
        "The rank, or else the node, that costs the run more than 8 % of its time and comes last far more often than its "
        "share, and the phase in which it is late. Late by turns, as with starved loaders or jitter, is nobody's fault. While no "
        "step ends: the rank that all others wait for.",
        target('topk(1, rank:training_culprit:share{run="$run"})', "rank {{rank}} on {{node}}: {{phase}}", instant=True),
        target('topk(1, node:training_culprit:share{run="$run"})', "{{node}}: {{phase}}", instant=True),
        target(
            '0 * run:training_late_share:rate1m{run="$run"} unless on (run) rank:training_culprit:share{run="$run"} '
            'unless on (run) node:training_culprit:share{run="$run"}',
            "no single culprit", instant=True,
        ),
        target(f"topk(1, {GONE} and on (run) {STALLED})", "rank {{rank}} on {{node}} has vanished", instant=True),
        target(
            f"topk(1, {ELSEWHERE} and on (run) {STALLED} and on (run) {ALONE} unless on (run) {GONE})",
            "rank {{rank}} on {{node}} does not arrive", instant=True,
        ),
        target(
            f"{STALLED} unless on (run) {GONE} unless on (run) {ALONE}", "no step ends",
            instant=True,
        ),
        unit="percentunit", text="name", size=size, color={"mode": "thresholds"}, noValue=NO_REFEREE,
        thresholds=steps((None, PLAIN), (0.01, BAD)),
        overrides=[
            *(from_query(ref, links=[to_ranks()]) for ref in "ADE"), from_query("B", links=[to("ranks", "All ranks")])
        ],
    )  # fmt: skip


def diagnosis() -> Json:
    """What is wrong, or that nothing is; empty where nobody looked."""
    whole = '"fault", "{}", "run", ".*"'
    well = 'stepscope_diagnosis_healthy{run="$run"} == 1'
    unjudged = (
        'stepscope_diagnosis_timestamp_seconds{run="$run"} unless on (run) stepscope_diagnosis_healthy{run="$run"}'
    )
    return table(
        "Diagnosis",
        "What stepscope diagnose says of this run, the costliest first: what is wrong, whose it is, and the GPUs that it costs. A "
        "name in the last column leads to its runbook; the console shows the evidence, and what was ruled out.",
        rows('max by (fault, target, runbook) (stepscope_diagnosis_lost_gpus{run="$run"})'),
        rows('max by (fault, target, runbook) (stepscope_diagnosis_confidence_ratio{run="$run"})'),
        rows(f"max by (fault) (label_replace({well}, {whole.format('nothing is wrong')}))"),
        rows(f"max by (fault) (label_replace({unjudged}, {whole.format('not enough data')}))"),
        unit="none", noValue="nobody diagnoses this run",
        columns={"fault": "What", "target": "Whose", "Value #A": "GPUs", "Value #B": "Sure", "runbook": "Runbook"},
        sort="GPUs",
        overrides=[
            named("What", custom__width=150), named("Whose", custom__width=75),
            named("GPUs", decimals=1, custom__width=60), named("Sure", unit="percentunit", decimals=0, custom__width=60),
            named("Runbook", links=[RUNBOOK]),
        ],
    )  # fmt: skip


def alerts_firing() -> Json:
    return table(
        "Alerts firing",
        "What the rules say now; a name leads to its runbook. GpuUtilizationLow is an exhibit: see what it misses.",
        rows('topk(256, ALERTS{alertstate="firing",run="$run"})'), unit="none", noValue="no alert is firing",
        columns={"alertname": "Alert", "cause": "Cause", "severity": "Severity", "rank": "Rank", "node": "Node"},
        overrides=[
            named("Alert", links=[RUNBOOK], custom__width=195),
            *(named(name, custom__width=width) for name, width in
              (("Cause", 140), ("Severity", 72), ("Rank", 50), ("Node", 75))),
        ],
    )  # fmt: skip
