"""What is sent to long-term storage is enough for the home dashboard: asked of Prometheus and of VictoriaMetrics."""

import math
import sys
import time

import pytest
import requests
import yaml
from rich.console import Console

from dashboard_files import DASHBOARDS
from queries import panels_of, queries_of, substituted
from running_lab import ROOT
from stepsim.lab import Lab, write_configs

HOME = DASHBOARDS["mirage"]
PRESET = "node"
"""Its GPUs have every counter that rules read."""
QUERIES = {substituted(expr, run=PRESET): panel["title"] for panel in panels_of(HOME) for expr in queries_of(panel)}
EXTERNAL = {"cluster"}
RELATIVE = 1e-12
"""VictoriaMetrics keeps a value as a decimal number: of 2.5100834369659424 it gives 2.510083436965 back."""
WINDOW = 60
"""Seconds that most rules look back: the stores are compared when it is full."""

pytestmark = [pytest.mark.prometheus, pytest.mark.victoria]


@pytest.fixture(scope="module")
def both(tmp_path_factory, start, free_ports, poll_until, query):
    """Both stores' URLs, and a moment for which both have everything: rank 1 has straggled for more than a minute.

    VictoriaMetrics does not show the newest 30 s unless it is told to: an answer for a moment before that is whole.
    """
    folder = tmp_path_factory.mktemp("remote-write")
    simulator, prometheus, alertmanager, victoria = free_ports(4)
    ports = {"simulator": simulator, "prometheus": prometheus, "alertmanager": alertmanager}
    write_configs(Lab(root=ROOT, folder=folder, ports=ports, console=Console(quiet=True)))
    config = yaml.safe_load((folder / "prometheus.yml").read_text(encoding="utf-8"))
    ours = yaml.safe_load((ROOT / "deploy/prometheus/remote_write.yml").read_text(encoding="utf-8"))
    config["global"].update(ours["global"])
    config["remote_write"] = ours["remote_write"]
    config["remote_write"][0]["url"] = f"http://127.0.0.1:{victoria}/api/v1/write"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")

    urls = [f"http://127.0.0.1:{port}" for port in (prometheus, victoria, simulator)]
    start(
        [sys.executable, "-m", "stepsim", "simulate", "--preset", PRESET, "--port", str(simulator)],
        urls[2] + "/healthz",
    )
    start(
        ["victoria-metrics", f"-storageDataPath={folder / 'victoria'}", f"-httpListenAddr=127.0.0.1:{victoria}",
         "-search.latencyOffset=1s"],
        urls[1] + "/health",
    )  # fmt: skip
    start(
        ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'prometheus'}",
         f"--web.listen-address=127.0.0.1:{prometheus}"],
        urls[0] + "/-/ready",
    )  # fmt: skip
    fault = {"fault": "straggler", "target": {"rank": 1}}
    requests.post(
        urls[2] + "/faults", json=fault, headers={"X-Stepscope-Action": "test"}, timeout=10
    ).raise_for_status()
    poll_until(lambda: query(urls[0], 'ALERTS{alertstate="firing"}'), "the alert fires", 120)
    oldest = f"training_steps_total offset {WINDOW + 15}s"
    poll_until(lambda: query(urls[0], oldest), "the window is full", 120)
    at = round(time.time(), 3)
    newest = "max(timestamp(run:training_lost_gpus:total))"
    poll_until(lambda: (found := query(urls[1], newest)) and found[0][1] > at + 5, "everything until then is sent", 60)
    return urls[0], urls[1], at


def by_labels(samples):
    """Values by labels, without those that the sending Prometheus adds."""
    found = {frozenset((k, v) for k, v in metric.items() if k not in EXTERNAL): value for metric, value in samples}
    assert len(found) == len(samples)
    return found


@pytest.mark.parametrize("expr", QUERIES, ids=lambda expr: f"{QUERIES[expr]}: {expr[:40]}")
def test_a_query_of_the_home_dashboard_has_the_same_answer(both, query, expr):
    """The same series with the same values, for the same past moment; and there is an answer."""
    prometheus, victoria, at = both
    expected, got = by_labels(query(prometheus, expr, at)), by_labels(query(victoria, expr, at))
    assert got.keys() == expected.keys()
    for labels, value in expected.items():
        assert math.isclose(got[labels], value, rel_tol=RELATIVE), labels
    # A rank is the culprit, and no node; steps end; and nobody diagnoses this run.
    if not any(text in expr for text in ("unless", "stalled", "node:training_culprit:share", "stepscope_diagnosis")):
        assert expected


def test_the_straggler_is_named_in_long_term_storage(both, query):
    """The culprit and the alert, with the label of the Prometheus that sent them."""
    _, victoria, at = both
    ((culprit, _),) = query(victoria, "topk(1, rank:training_culprit:share)", at)
    ((alert, _),) = query(victoria, 'ALERTS{alertstate="firing"}', at)
    assert culprit["rank"] == alert["rank"] == "1"
    assert alert["alertname"] == "TrainingRankStraggling"
    assert culprit["cluster"] == alert["cluster"] == "example"


def test_raw_series_of_ranks_stay_behind(both, query):
    """Prometheus has them; what is stored of a rank is recorded, or an alert."""
    prometheus, victoria, at = both
    raw = 'count({__name__=~"(training|stepscope)_.+",rank!=""})'
    assert query(prometheus, raw, at)[0][1] > 100
    assert query(victoria, raw, at) == []
    assert query(victoria, 'count({__name__=~"training_step_duration_seconds_.+"})', at) == []
    for expr in ("training_loss", "training_critical_path_seconds_total", "training_run_info"):
        expected, got = by_labels(query(prometheus, expr, at)), by_labels(query(victoria, expr, at))
        assert expected
        assert got.keys() == expected.keys()


def test_recorded_series_of_a_rank_are_as_many_as_the_table_of_the_readme_says(both, query):
    """Counted in Prometheus: per rank, without those of the accused and the lost."""
    prometheus, _, at = both
    ((_, ranks),) = query(prometheus, "count(training_steps_total)", at)
    ((_, recorded),) = query(
        prometheus, 'count({__name__=~"rank:.+",__name__!~".+(culprit|missing|power_capped).+"})', at
    )
    readme = (ROOT / "deploy/README.md").read_text(encoding="utf-8")
    (line,) = (line for line in readme.splitlines() if line.startswith("| recording rules |"))
    assert recorded / ranks == int(line.split("|")[2])


RATES = {
    "a rate": "rate(training_critical_path_seconds_total{phase='forward'}[1m])",
    "an increase": "sum(increase(training_referee_steps_total{outcome='complete'}[1m]))",
}


@pytest.mark.parametrize("expr", RATES.values(), ids=RATES.keys())
def test_a_rate_computed_in_the_store_is_close(both, query, expr):
    """Why dashboards read recorded series: Prometheus extrapolates from the samples to the edges of the window, and
    VictoriaMetrics counts from the sample before it. They differ by less than one scrape of the twelve."""
    prometheus, victoria, at = both
    ((_, expected),) = query(prometheus, expr, at)
    ((_, got),) = query(victoria, expr, at)
    assert got == pytest.approx(expected, rel=1 / 12)
