"""The page on the lab's HTTP API agrees with its routes."""

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from stepsim.api import create_app
from stepsim.live import LiveJob
from stepsim.pages import Pages

PAGE = (Path(__file__).parents[2] / "docs/http-api.md").read_text(encoding="utf-8")
NOW = 1_700_000_100.0


@pytest.fixture(scope="module")
def application(cluster):
    live = LiveJob(cluster, clock=lambda: NOW)
    live.engine.advance(NOW + 5)
    return create_app(live, Pages(live.engine, lambda: NOW), origins=[], clock=lambda: NOW)


@pytest.fixture(scope="module")
def client(application):
    return TestClient(application)


def test_every_route_is_described_and_no_other(application):
    """In the table of all routes."""
    there = {
        f"{method} {re.sub(':[a-z]+}', '}', route.path)}"
        for route in application.routes
        for method in route.methods - {"HEAD"}
    }
    told = section("All routes")
    assert set(re.findall(r"^\| `([A-Z]+ /\S*)` \|", told, re.MULTILINE)) == there


def test_every_example_is_answered_as_the_page_says(client):
    """In the page's order: what one starts another stops."""
    examples = re.findall(r"^curl .*$", PAGE, re.MULTILINE)
    assert len(examples) > 15
    known = ""
    for example in examples:
        method, path, headers, body = parsed(example.replace("$ID", known))
        answer = client.request(method, path, headers=headers, content=body)
        assert answer.status_code in (200, 201, 204), (example, answer.text)
        if answer.status_code == 201 and path == "/faults":
            known = answer.json()["id"]
    assert client.get("/status").json()["alerts"] == [], "what the page posts it also resolves"


def test_the_keys_of_the_status_are_described(client):
    """All, and no others."""
    keys = re.findall(r"^\| (`.+?`) \|", section("Status"), re.MULTILINE)
    assert {key for cell in keys for key in re.findall(r"`(\w+)`", cell)} == client.get("/status").json().keys()


def test_the_statuses_of_errors_are_the_pages(client):
    """Each of those that a caller can provoke without a real job, a diagnosis or Alertmanager."""
    action, json = {"X-Stepscope-Action": "test"}, {"Content-Type": "application/json"}
    provoked = {
        client.post("/faults", content=b"[", headers=action).status_code,
        client.post("/faults", json={"fault": "straggler"}).status_code,
        client.get("/metrics/nothing").status_code,
        client.delete("/status").status_code,
        client.post("/practice/reveal", headers=action).status_code,
        client.post("/alerts", content=b"{}").status_code,
        client.post("/alerts", content=b"{}", headers=json).status_code,
    }
    told = {int(status) for status in re.findall(r"^\| (\d{3}) \|", section("What went wrong"), re.MULTILINE)}
    assert told - {503} == provoked


def section(title):
    return re.split(r"^#+ ", PAGE.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def parsed(command):
    """Method, path, headers and body of a curl command."""
    words = shlex.split(command)[1:]
    method, headers, body, address = "GET", {}, None, ""
    while words:
        match words:
            case ["-X", method, *words]:
                pass
            case ["-H", header, *words]:
                name, value = header.split(": ", 1)
                headers[name] = value
            case ["-d", body, *words]:
                pass
            case ["-s", *words]:
                pass
            case [address, *words]:
                pass
    assert address.startswith("http://127.0.0.1:8000/")
    return method, urlsplit(address).path, headers, body
