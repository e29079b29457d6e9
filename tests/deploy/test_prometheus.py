"""The Prometheus configurations: valid, the lab's where they must be, and right on real scrapes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/prometheus"
CONFIGS = sorted(FOLDER.glob("*.yml"))


def read(file):
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@pytest.mark.prometheus
@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_promtool_accepts_the_config(file):
    """Whole, as it is committed, with the rule files that it names."""
    done = subprocess.run(["promtool", "check", "config", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout + done.stderr


def test_files_are_scraped_as_the_lab_scrapes():
    """The same relabelling of metrics and the same rules; intervals that leave two samples in the shortest window."""
    ours, lab = read(FOLDER / "file_sd.yml"), read(ROOT / "prometheus/prometheus.yml")
    scrape = {one["job_name"]: one for one in ours["scrape_configs"]}["stepscope"]
    (lab_scrape,) = (one for one in lab["scrape_configs"] if one["job_name"] == "stepscope")
    assert scrape["metric_relabel_configs"] == lab_scrape["metric_relabel_configs"]
    of_the_lab = [name for name in lab["rule_files"] if name != "rules/practice.yml"]
    assert [Path(name).name for name in ours["rule_files"]] == [Path(name).name for name in of_the_lab]
    texts = [(FOLDER / name).resolve().read_text(encoding="utf-8") for name in ours["rule_files"]]
    shortest = min(
        int(number) * {"s": 1, "m": 60}[unit] for text in texts for number, unit in re.findall(r"\[(\d+)([sm])\]", text)
    )
    for name in ("scrape_interval", "evaluation_interval"):
        assert 2 * int(ours["global"][name].removesuffix("s")) <= shortest


@pytest.mark.prometheus
def test_a_jobs_file_makes_targets_whose_own_labels_win(tmp_path, start, free_ports, poll_until, query):
    """Found by the file, lost with it. Ranks keep run, rank and node; what has no node gets its target's; the referee's
    nodes stay those that were late."""
    simulator, port = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    start(
        [sys.executable, "-m", "stepsim", "simulate", "--port", str(simulator)], f"http://127.0.0.1:{simulator}/healthz"
    )
    listed = tmp_path / "4711.json"
    pages = ("training/node-0", "node/node-0", "referee")
    groups = [
        {"targets": [f"127.0.0.1:{simulator}"], "labels": {"__metrics_path__": f"/metrics/{page}", "instance": page}}
        for page in pages
    ]
    listed.write_text(json.dumps(groups), encoding="utf-8")
    config = read(FOLDER / "file_sd.yml")
    del config["rule_files"]
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config["scrape_configs"][0]["file_sd_configs"][0] = {"files": [str(tmp_path / "*.json")], "refresh_interval": "1s"}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    start(
        ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}"],
        url + "/-/ready",
    )  # fmt: skip
    poll_until(lambda: len(query(url, "up == 1")) == len(pages), "all targets are up", 30)

    def values(expr, label):
        return {metric.get(label) for metric, _ in query(url, expr)}

    assert values("training_steps_total", "node") == {"node-0"}
    assert values("training_steps_total", "rank") == {str(rank) for rank in range(8)}
    assert values("node_memory_MemAvailable_bytes", "node") == {"127.0.0.1"}
    assert values("training_late_steps_total", "node") == {f"node-{node}" for node in range(4)}
    assert query(url, '{__name__=~".+",exported_node!=""}') == []
    assert values("training_steps_total", "job") == {"stepscope"}
    listed.unlink()
    poll_until(lambda: not query(url, "up"), "the targets are gone with the file", 30)
