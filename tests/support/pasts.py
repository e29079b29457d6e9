"""A Prometheus that holds what several simulated jobs did, each as a run of its own, with every rule evaluated."""

from contextlib import contextmanager

import yaml

from past import EPOCH, RULES, prometheus_on
from stepsim.history import write_rules


@contextmanager
def prometheus_of(replays, folder):
    """Its URL. ``replays``: name of the run → ``Replay``; all begin at ``EPOCH``."""
    past = folder / "past"
    past.mkdir(parents=True)
    write_rules(RULES / "recording.yml", past, EPOCH, EPOCH + max(one.scrapes * one.step for one in replays.values()))
    with (past / "history.om").open("w", encoding="utf-8") as file:
        for name, replay in replays.items():
            file.writelines(_samples(name, replay))
        file.write("# EOF\n")
    config = {"global": {"evaluation_interval": "5s"}, "rule_files": [str(RULES / "alerts.yml")]}
    (past / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with prometheus_on(past, past / "prometheus.yml") as url:
        yield url


def _samples(name, replay):
    """Every value with its time, under the run's own name, on nodes of its own."""
    for key, values in replay.series.items():
        series = key.replace('run="cluster"', f'run="{name}"').replace('"node-', f'"{name}.node-')
        series = series.replace('UUID="GPU-', f'UUID="GPU-{name}-')
        shift = EPOCH if "_timestamp_seconds" in key else 0
        for number, value in enumerate(values):
            if value not in ("_", "stale"):
                shown = repr(float(value) + shift) if shift else value
                yield f"{series} {shown} {EPOCH + number * replay.step:.0f}\n"
