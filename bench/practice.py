"""Alert practice: how long a day of data takes to make, to preview and to grade, and in how much memory."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from results import Result, timed
from stepsim.practice.data import recording_of
from stepsim.practice.drill import Drill, find_drill, rule_text
from stepsim.practice.grade import grade, workers
from stepsim.practice.preview import preview
from stepsim.practice.rule_file import RuleFile, load_rules
from stepsim.practice.scenario import Scenario, draw_scenario

SEEDS = [1, 2, 3, 4]


def practice() -> Iterator[Result]:
    """16 ranks for 24 hours, as four seeds of six, which come out even on two cores: simulated, previewed and graded."""
    drill = _drill()
    scenarios = [draw_scenario(drill, seed) for seed in SEEDS]
    hours = sum(scenario.seconds for scenario in scenarios) / 3600
    with tempfile.TemporaryDirectory() as folder, workers() as pool:
        data, file = Path(folder), Path(folder) / "rules.yml"
        file.write_text(rule_text(drill.reference, "reference"), encoding="utf-8")
        rules = load_rules(file)
        list(pool.map(abs, range(8)))  # the processes are there

        def everywhere(action: Callable[[Scenario, RuleFile, Path], object]) -> None:
            for done in [pool.submit(action, scenario, rules, data) for scenario in scenarios]:
                done.result()

        made = timed(partial(everywhere, _made))
        yield Result(name=f"practice data, 16 ranks × {hours:.0f} h", value=made, unit="s", target=20, better="lower")
        everywhere(preview)
        yield Result(name="preview of it, warm", value=min(timed(partial(everywhere, preview)) for _ in range(3)), unit="s",
                     target=2, better="lower")  # fmt: skip
        yield Result(name="exact grade of it, warm", value=timed(lambda: grade(pool, [(drill, SEEDS)], rules, data)), unit="s",
                     target=30, better="lower")  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    yield Result(name="the most memory that a process of it took", value=peak, unit="MB", target=1000, better="lower")


def _made(scenario: Scenario, rules: RuleFile, data: Path) -> None:
    recording_of(scenario, data)


def _drill() -> Drill:
    told = find_drill("straggler").model_dump(by_alias=True)
    return Drill.model_validate(
        {**told, "ranks": 16, "quiet_hours": 16, "scrape": 15.0, "eval": 30.0, "seeds": {"practice": SEEDS}}
    )


MEASUREMENTS = (practice,)
