"""What the calculator's page shows: the answer, the same at other sizes, and the experiments."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stepsim.straggler.answer import Answer
from stepsim.straggler.curve import efficiency_by_size
from stepsim.straggler.experiments import EXPERIMENTS


def page_of(answer: Answer) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "question": answer.question.model_dump(),
        "answer": answer.to_dict(),
        "bars": [asdict(bar) for bar in answer.bars],
        "sizes": [{"gpus": gpus, "efficiency": efficiency} for gpus, efficiency in efficiency_by_size(answer.question)],
        "experiments": [
            {"name": one.name, "notice": one.notice, "question": one.question.model_dump(exclude_defaults=True)}
            for one in EXPERIMENTS
        ],
    }
