"""Diagnoses to show, and a diagnoser that has come to one."""

import math

from stepscope.diagnosis import Evidence, Report, RuledOut, Verdict
from stepsim.diagnoser import Diagnoser

AT = 1_700_000_120.0

COOL = Evidence(what="GPUs throttled for heat", value=0.0, unit="count", healthy="0", query="hot")
STRAGGLER = Verdict(
    fault="straggler",
    target={"rank": 5},
    summary="Rank 5 computes 43 % longer than the median rank, and all others wait for it.",
    confidence=0.97,
    lost_gpus=9.84,
    evidence=(
        Evidence(
            what="rank 5's share of the run's time", value=0.273, unit="ratio", healthy="below 8 %",
            query='rank:training_culprit:share{\n  run="cluster"}',
        ),
        Evidence(what="its backward", value=0.0123, unit="seconds", healthy="within 5 % of the median", query="b"),
    ),
    ruled_out=(RuledOut(fault="thermal_throttle", evidence=COOL),),
    runbook="TrainingRankStraggling",
)  # fmt: skip
EXPLOSION = Verdict(
    fault="gradient_explosion",
    target={"run": True},
    summary="The gradient norm is no number any more.",
    confidence=1.0,
    lost_gpus=1.0,
    evidence=(Evidence(what="gradient norm", value=math.nan, unit="number", healthy="below 1.2", query="g"),),
    runbook="TrainingGradientExploding",
)

TWO = Report(
    run="cluster", at=AT, enough_data=True, verdicts=(STRAGGLER, EXPLOSION), missing=("no PCIe counters", "no XIDs")
)
HEALTHY = Report(run="cluster", at=AT, enough_data=True)
UNKNOWN = Report(run="cluster", at=AT, enough_data=False, missing=("no steps in the last minute",))


def diagnosed(report, *, now=AT, run="cluster"):
    """A diagnoser whose judge always comes to that report, after its first look."""
    made = Diagnoser(None, lambda: run, judge=lambda source, name, at: report, clock=lambda: now)
    made.look()
    return made
