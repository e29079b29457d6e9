"""A grade as plain JSON: for ``--json``, and to be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from stepsim.practice.alarms import Alarm
from stepsim.practice.grade import DrillGrade, Heard
from stepsim.practice.outcome import Happened, happened, judged_of, mean, mean_score, outcome


def summary(grades: Sequence[DrillGrade]) -> dict[str, Any]:
    """The mean over drills, and each without what its sealed seeds hide."""
    return {"score": round(mean_score(grades), 1), "drills": [as_dict(grade, told=False) for grade in grades]}


def as_dict(grade: DrillGrade, *, told: bool) -> dict[str, Any]:
    """``told``: with seeds, faults, targets and times, which nobody should know before the debrief."""
    score = grade.score
    return {
        "id": grade.drill.id,
        "title": grade.drill.title,
        "score": round(score.score, 1),
        "parts": {
            "recall": _rounded(score.recall),
            "precision": _rounded(score.precision),
            "delay": _rounded(score.delay),
            "culprit": _rounded(score.culprit),
            "reset": _rounded(score.reset),
            "noise": _rounded(score.noise),
        },
        "told": score.told,
        "incidents": score.incidents,
        "false_alarms": score.false_alarms,
        "healthy_hours": _rounded(score.healthy_hours),
        "false_per_day_bound": _rounded(score.false_per_day_bound),
        "delay_seconds": _rounded(mean(one.delay_seconds for one in judged_of(grade))),
        "reset_seconds": _rounded(mean(one.reset_seconds for one in judged_of(grade))),
        "dead": [asdict(dead) for dead in grade.dead],
        "seeds": [_told(heard) if told else _counted(heard) for heard in grade.heard],
    }


def _counted(heard: Heard) -> dict[str, Any]:
    return {
        "seconds": heard.scenario.seconds,
        "told": sum(one.hit is not None for one in heard.result.judged),
        "incidents": len(heard.result.judged),
        "false_alarms": len(heard.result.false),
        "healthy_hours": _rounded(heard.result.healthy_hours),
    }


def _told(heard: Heard) -> dict[str, Any]:
    counted = _counted(heard)
    return {
        "seed": heard.scenario.seed,
        "seconds": counted.pop("seconds"),
        "counts": counted,
        "restarts": list(heard.scenario.restarts),
        "incidents": [_incident(one) for one in happened(heard)],
        "alarms": [{**_alarm(alarm), "outcome": outcome(alarm, heard.result)} for alarm in heard.alarms],
    }


def _incident(one: Happened) -> dict[str, Any]:
    struck, judged = one.incident, one.judged
    hit = judged.hit if judged else None
    return {
        "fault": struck.fault,
        "target": struck.target,
        "severity": struck.severity,
        "expect": struck.expect,
        "begins": struck.begins,
        "ends": struck.ends,
        "visible": one.visible if isfinite(one.visible) else None,
        "hit": {"name": hit.name, "kind": hit.kind, "begins": hit.begins, "ends": hit.ends} if hit else None,
        "delay_seconds": judged and judged.delay_seconds,
        "reset_seconds": judged and judged.reset_seconds,
        "culprit": judged and _rounded(judged.culprit),
    }


def _alarm(alarm: Alarm) -> dict[str, Any]:
    return {
        "name": alarm.name,
        "kind": alarm.kind,
        "begins": alarm.begins,
        "ends": alarm.ends,
        "episodes": [
            {"labels": dict(sorted(one.labels)), "begins": one.begins, "ends": one.ends} for one in alarm.episodes
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
