"""A Prometheus that holds what several simulated jobs did, each as a run of its own, with every rule evaluated."""

import subprocess
from contextlib import contextmanager

import yaml

from past import EPOCH, RULES, _ready
from running_lab import ROOT, free_ports, poll_until
from stepsim.history import rule_levels

EVALUATED_SECONDS = 15
"""Between two evaluations of the recording rules, by load-history.sh."""


@contextmanager
def prometheus_of(replays, folder):
    """Its URL. ``replays``: name of the run → ``Replay``; all begin at ``EPOCH``."""
    past, data = folder / "past", folder / "data"
    past.mkdir(parents=True)
    data.mkdir()
    levels = rule_levels(yaml.safe_load((RULES / "recording.yml").read_text(encoding="utf-8")))
    for number, level in enumerate(levels, 1):
        (past / f"recording-{number}.yml").write_text(yaml.safe_dump(level, sort_keys=False), encoding="utf-8")
    (past / "empty.yml").write_text("global: {}\n", encoding="utf-8")
    (past / "start").write_text(f"{EPOCH:.0f}")
    (past / "end").write_text(f"{EPOCH + max(one.scrapes * one.step for one in replays.values()):.0f}")
    with (past / "history.om").open("w", encoding="utf-8") as file:
        for name, replay in replays.items():
            file.writelines(_samples(name, replay))
        file.write("# EOF\n")
    port, loading = free_ports(2)
    done = subprocess.run(["sh", str(ROOT / "prometheus/load-history.sh"), str(past), str(data), str(loading)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert "history: loaded" in done.stdout, done.stdout + done.stderr + (past / "promtool.log").read_text()[-2000:]
    config = {"global": {"evaluation_interval": "5s"}, "rule_files": [str(RULES / "alerts.yml")]}
    (past / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        ["prometheus", f"--config.file={past / 'prometheus.yml'}", f"--storage.tsdb.path={data}", "--log.level=error",
         "--query.lookback-delta=20s", "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        poll_until(lambda: _ready(url), "Prometheus is ready", 30)
        yield url
    finally:
        process.terminate()
        process.wait(10)


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
