"""A Prometheus that holds a simulated past, generated and loaded faster than real time."""

import subprocess
from contextlib import contextmanager

import requests
import yaml
from rich.console import Console

from running_lab import ROOT, free_ports, poll_until
from stepsim import history

EPOCH = 1_700_000_000.0
RULES = ROOT / "prometheus/rules"


@contextmanager
def prometheus_with(job, folder, *, minutes, incidents=(), further="", monkeypatch):
    """Its URL, and when the past began. ``incidents``: fault, minute at which it begins, minutes that it lasts.

    Always the same moment, so that all numbers are, too. Scraped every 7 s: a gauge read every 15 s would meet a fault that
    comes every 30 s always, or never. A generated past has no staleness markers, so values are looked for in the last 20 s
    only. Alerts are there too, as series that begin without the delay of their ``for``. ``further`` are lines of the
    exposition format, with seconds after the beginning in place of the time.
    """
    monkeypatch.setattr(history, "SCRAPE_SECONDS", 7.0)
    monkeypatch.setattr(history, "INCIDENTS", [
        history.Incident(fault=fault, begins=begins / minutes, lasts=lasts / minutes) for fault, begins, lasts in incidents
    ])  # fmt: skip
    monkeypatch.setattr(history, "FULL_LENGTH_RANKS", job.ranks)
    past = folder / "past"
    history.write_history(
        job, past, seed=5, hours=minutes / 60, rules=RULES / "recording.yml", console=Console(quiet=True), now=EPOCH
    )
    began = float((past / "start").read_text())
    _append(past / "history.om", further, began)
    (past / "recording-9.yml").write_text(yaml.safe_dump(_alerts_as_series()), encoding="utf-8")
    with prometheus_on(past, past / "empty.yml") as url:
        yield url, began


@contextmanager
def prometheus_on(past, config):
    """Its URL, once it holds the past in that folder, loaded as the lab's is."""
    data = past.with_name("data")
    data.mkdir()
    port, loading = free_ports(2)
    done = subprocess.run(["sh", str(ROOT / "prometheus/load-history.sh"), str(past), str(data), str(loading)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert "history: loaded" in done.stdout, done.stdout + done.stderr + (past / "promtool.log").read_text()[-2000:]
    url = f"http://127.0.0.1:{port}"
    options = {"config.file": config, "storage.tsdb.path": data, "storage.tsdb.retention.time": "100y", "log.level": "error",
               "query.lookback-delta": "20s", "web.listen-address": f"127.0.0.1:{port}"}  # fmt: skip
    command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        poll_until(lambda: _ready(url), "Prometheus is ready", 30)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _append(file, lines, began):
    text = file.read_text(encoding="utf-8").removesuffix("# EOF\n")
    added = "".join(
        f"{series} {began + float(offset):.0f}\n"
        for series, _, offset in (line.rpartition(" ") for line in lines.splitlines())
    )
    file.write_text(f"{text}{added}# EOF\n", encoding="utf-8")


def _alerts_as_series():
    groups = yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    rules = [
        {"record": "ALERTS", "expr": f"({rule['expr']}) * 0 + 1",
         "labels": {"alertname": rule["alert"], "alertstate": "firing", **rule["labels"]}}
        for group in groups for rule in group["rules"]
    ]  # fmt: skip
    return {"groups": [{"name": "alerts", "rules": rules}]}


def _ready(url):
    try:
        return requests.get(url + "/-/ready", timeout=1).status_code == 200
    except requests.RequestException:
        return False
