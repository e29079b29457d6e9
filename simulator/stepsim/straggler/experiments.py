"""Four experiments that every conversation about stragglers starts from. To add one: add a row."""

from __future__ import annotations

from dataclasses import dataclass

from stepsim.straggler.question import Straggler


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    question: Straggler
    notice: str
    """What to notice."""


EXPERIMENTS = (
    Experiment(
        name="One slow GPU among 64",
        question=Straggler(),
        notice="One GPU at 70 % costs 24 % of the time of all 64: 367 GPU-hours a day. Displayed utilization goes up, as waiting "
        "counts: it is useful compute that falls.",
    ),
    Experiment(
        name="The same among 1,024",
        question=Straggler(gpus=1024),
        notice="The efficiency is the same to the last digit. What it costs is sixteen times as much: 5,867 GPU-hours a day, for "
        "one GPU.",
    ),
    Experiment(
        name="No slow GPU, only variation",
        question=Straggler(gpus=1024, slow_gpus=0, variability=5),
        notice="Nobody is slow, everybody varies by 5 %, and each step waits for the worst draw of 1,024: 89.4 % expected, where 8 "
        "GPUs have 95.0 %. Move the GPUs.",
    ),
    Experiment(
        name="A slower network hides it",
        question=Straggler(allreduce_ms=200),
        notice="With 200 ms of all-reduce instead of 80 the efficiency rises, to 80.5 %, and the job is slower: compute's share of "
        "the step falls from 55.7 to 45.6 %. A ratio to an ideal that has the same fault says nothing of that fault.",
    ),
)
