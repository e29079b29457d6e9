"""The stack as it is composed, on a real engine, without the Grafana service; its images must be there already."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import requests
import yaml

from stepsim.serving import free_port

ROOT = Path(__file__).parents[2]
SERVICES = ("simulator", "prometheus", "alertmanager")
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


class Stack:
    """A project of its own name, on free ports."""

    def __init__(self):
        self.project = f"stepscope-test-{os.getpid()}"
        self.ports = {name: str(free_port()) for name in ("STEPSCOPE_PORT", "PROMETHEUS_PORT", "ALERTMANAGER_PORT")}

    def run(self, *arguments):
        done = subprocess.run(
            ["docker", "compose", "-p", self.project, *arguments], cwd=ROOT, env={**os.environ, **self.ports},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self):
        """Start, wait until all is healthy and a panel has data; returns the seconds that took."""
        began = time.monotonic()
        self.run("up", "-d", "--pull", "never", "--wait", *SERVICES)
        while not self.query("run:training_mfu:ratio_rate1m"):
            assert time.monotonic() - began < 120, self.run("logs", "--tail", "20")
            time.sleep(0.5)
        return time.monotonic() - began

    def url(self, name):
        return f"http://127.0.0.1:{self.ports[name]}"

    def query(self, expr):
        answer = requests.post(self.url("PROMETHEUS_PORT") + "/api/v1/query", data={"query": expr}, timeout=10)
        return answer.json()["data"]["result"]


@pytest.fixture(scope="module")
def stack():
    made = Stack()
    made.run("build", "simulator")
    try:
        yield made
    finally:
        made.run("down", "-v", "-t", "2")


@pytest.mark.compose
def test_the_stack_comes_up_with_its_past_and_comes_down_without_a_trace(stack):
    """Empty volumes: history is loaded first. Kept volumes: faults and data are kept. ``down -v``: nothing is left."""
    empty = stack.up()
    assert len(stack.query("count_over_time(lab_fault_active[2h])")) == 3
    assert "history: loaded" in stack.run("logs", "load")
    assert len(requests.get(stack.url("STEPSCOPE_PORT") + "/sd", timeout=5).json()) == 16

    fault = {"fault": "gradient_explosion"}
    made = requests.post(
        stack.url("STEPSCOPE_PORT") + "/faults", json=fault, headers={"X-Grafana-Action": "1"}, timeout=5
    )
    assert made.status_code == 201
    deadline = time.monotonic() + 90
    while not requests.get(stack.url("STEPSCOPE_PORT") + "/alerts", timeout=5).json()["firing"]:
        assert time.monotonic() < deadline, "the webhook hears of no alert"
        time.sleep(1)

    for line in stack.run("ps", "--format", "json").splitlines():
        for port in json.loads(line).get("Publishers") or []:
            assert port["URL"] in ("127.0.0.1", ""), port

    stack.run("down", "-t", "2")
    kept = stack.up()
    assert "left as it is" in stack.run("logs", "load")
    active = requests.get(stack.url("STEPSCOPE_PORT") + "/faults", timeout=5).json()
    assert [one["fault"] for one in active] == ["gradient_explosion"]
    print(f"\nup with empty volumes {empty:.0f} s, with kept ones {kept:.0f} s")  # noqa: T201

    stack.run("down", "-v", "-t", "2")
    for kind in ("volume", "network"):
        left = subprocess.run(
            ["docker", kind, "ls", "-q", "--filter", f"name={stack.project}"], capture_output=True, check=True
        )
        assert left.stdout == b"", kind
    assert stack.run("ps", "-aq") == ""


def test_the_compose_file_keeps_its_promises():
    """Ports on 127.0.0.1 from .env, memory limits within 4 GB, healthchecks, restarts, init, pinned images."""
    services = {name: one for name, one in COMPOSE["services"].items() if one.get("profiles") != ["real"]}
    lasting = {name: service for name, service in services.items() if "restart" in service}
    assert lasting.keys() == {"simulator", "prometheus", "alertmanager", "grafana"}
    megabytes = {"g": 1024, "m": 1}
    limits = {
        name: int(service["mem_limit"][:-1]) * megabytes[service["mem_limit"][-1]] for name, service in services.items()
    }
    assert sum(limits[name] for name in lasting) <= 2.5 * 1024
    assert sum(limits.values()) - limits["past"] <= 4 * 1024  # the past is written before anything else starts
    for service in (*lasting.values(), COMPOSE["services"]["watch"], COMPOSE["services"]["training"]):
        assert service["healthcheck"]
        assert service["init"] is True
        assert service["mem_limit"]
        assert all(port.startswith("127.0.0.1:${") for port in service.get("ports", []))
    settings = dict(
        line.split("=", 1)
        for line in (ROOT / ".env").read_text(encoding="utf-8").splitlines()
        if "=" in line and line[0] != "#"
    )
    for name in ("PROMETHEUS_IMAGE", "ALERTMANAGER_IMAGE", "GRAFANA_IMAGE"):
        assert ":latest" not in settings[name]
        assert f"${{{name}:-{settings[name]}}}" in (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert "version" not in COMPOSE


@pytest.mark.parametrize("name", ["simulator", "watch"])
def test_the_job_is_diagnosed_from_the_stacks_prometheus(name):
    """By its name there. It starts after the job, which must not wait for it."""
    service = COMPOSE["services"][name]
    assert service["environment"]["STEPSCOPE_PROMETHEUS"] == "http://prometheus:9090"
    assert "prometheus" not in service.get("depends_on", {})
    assert name in COMPOSE["services"]["prometheus"]["depends_on"]


@pytest.mark.compose
def test_the_profile_real_trains_in_the_simulators_place(stack):
    """Its services in place of the simulated ones; Prometheus finds them under the same name."""
    services = {
        profile: set(stack.run(*(["--profile", profile] if profile else []), "config", "--services").split())
        for profile in (None, "real")
    }
    assert services[None] - services["real"] == {"past", "load", "simulator"}
    assert services["real"] - services[None] == {"watch", "training"}
    assert "simulator" in COMPOSE["services"]["watch"]["networks"]["default"]["aliases"]
