"""Small drills for tests."""

from stepsim.practice.drill import Drill

RULE = {"alert": "Slow", "expr": "rank:training_culprit:share > 0.08", "for": "15s", "labels": {"severity": "page"}}


def drill_of(**changes):
    """One straggler of ten minutes among eight ranks, and nothing beside it, unless said otherwise."""
    told = {
        "id": "small", "title": "A small one", "goal": "Find it", "quiet_hours": 1.0, "ranks": 8, "eval": "15s",
        "seeds": {"practice": [1], "sealed": 1}, "incidents": [{"fault": "straggler", "lasts": "10m"}], "distractors": [],
        "debrief": "It was slow.", "reference": [RULE], "tempting": [{"why": "It is not.", "rules": [RULE]}], **changes,
    }  # fmt: skip
    return Drill.model_validate(told)
