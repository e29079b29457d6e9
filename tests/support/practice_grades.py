"""Grades made by hand: a drill's incidents, and what fired at which time, without a simulation."""

from dataclasses import replace

import yaml

from stepsim.practice.alarms import Alarm, Episode
from stepsim.practice.dead import Dead
from stepsim.practice.drill import Drill
from stepsim.practice.grade import DrillGrade, judged
from stepsim.practice.rule_file import load_rules
from stepsim.practice.scenario import Scenario, Struck

HOURS = 8
SECONDS = 3600.0 * HOURS
SEED = 774_411
BEGINS = 7200.0
LASTS = 1200.0
RESTARTS = (15_000.0,)


def drill(**changes):
    told = {
        "id": "hand-made", "title": "One GPU slows down", "goal": "Find the culprit", "quiet_hours": 7,
        "debrief": "Look at **who** waits.",
        "incidents": [{"fault": "straggler", "severity": 1.4}],
        "reference": [{"alert": "Reference", "expr": "rank:training_culprit:share > 0.08"}],
        "tempting": [{"why": "because", "rules": [{"alert": "Bad", "expr": "up < 1"}]}], **changes,
    }  # fmt: skip
    return Drill.model_validate(told)


def struck(begins=BEGINS, lasts=LASTS, **changes):
    """A straggler on rank 12 that pages, unless said otherwise."""
    told = {"fault": "straggler", "target": {"rank": 12}, "severity": 1.4, "ramp_seconds": 60.0, "flaps": None, "expect": "page",
            "detect_within": 300.0, "reset_within": 300.0, **changes}  # fmt: skip
    return Struck(begins=begins, ends=begins + lasts, **told)


def fires(begins, ends, name="Slow", ranks=("12",), severity="page", late=0.0):
    """One alarm, with an episode per rank; each next one ``late`` seconds after."""
    labels = [
        {"alertname": name, "run": "practice", "severity": severity, **({"rank": rank} if rank else {})}
        for rank in ranks
    ]
    episodes = [
        Episode(labels=frozenset(one.items()), begins=begins + number * late, ends=ends)
        for number, one in enumerate(labels)
    ]
    return Alarm(name=name, kind=severity, episodes=tuple(episodes))


HIT = fires(BEGINS + 90, BEGINS + LASTS + 60)
"""Of the incident, 90 seconds after it began, to 60 after its end."""


def rule_file(folder, *names, severity="page"):
    rules = [{"alert": name, "expr": "up < 1", "labels": {"severity": severity}} for name in names or ("Slow",)]
    file = folder / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "own", "rules": rules}]}), encoding="utf-8")
    return load_rules(file)


def graded(rules, *raised, incidents=None, seeds=(SEED,), dead=(), visible=None, **changes):
    """Each seed alike: the incidents are visible at once, and what does not fire never matched."""
    incidents = (struck(),) if incidents is None else tuple(incidents)
    made = drill(**changes)
    seen = tuple(visible or [incident.begins for incident in incidents])
    heard = [
        judged(Scenario(drill=made, job=made.make_job(), seed=seed, seconds=SECONDS, incidents=incidents, restarts=RESTARTS),
               seen, rules, sorted(raised, key=lambda alarm: alarm.begins), {alarm.name for alarm in raised}, {})
        for seed in seeds
    ]  # fmt: skip
    return replace(DrillGrade.of(made, heard), dead=tuple(Dead(alert=name, why=why) for name, why in dead))
