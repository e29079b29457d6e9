"""The pages and what they load."""

import re

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from stepsim.web import FOLDER, PAGES, web_routes

MODULES = sorted(file.relative_to(FOLDER).as_posix() for file in FOLDER.glob("*.js"))
client = TestClient(Starlette(routes=web_routes()))


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_what_there_is_and_holds_nothing_inline(path):
    """Style and script come from files, as the policy forbids the rest."""
    answer = client.get(path)
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    loaded = re.findall(r'(?:href|src)="(/console/[^"]+)"', answer.text)
    assert len(loaded) >= 2
    assert [name for name in loaded if client.get(name).status_code != 200] == []
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*\ssrc=)", answer.text)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_what_there_is_and_asks_nobody_else(module):
    """No address of another machine, and no name that nobody exports."""
    text = client.get(f"/console/{module}").text
    assert "https://" not in text
    assert "http://" not in text
    for names, source in re.findall(r'import (.+?) from "(.+?)";', text):
        path = source if source.startswith("/") else f"/console/{source.removeprefix('./')}"
        imported = client.get(path)
        assert imported.status_code == 200
        for name in re.findall(r"\w+", names) if names.startswith("{") else []:
            assert re.search(rf"export (const|function|async function|class) {name}\b", imported.text), (module, name)


def test_every_module_is_of_some_use():
    """Each is loaded by a page, or imported by another."""
    text = " ".join(file.read_text(encoding="utf-8") for file in (*FOLDER.glob("*.js"), *FOLDER.glob("*.html")))
    assert [module for module in MODULES if f"/{module}" not in text] == []


def test_what_is_vendored_carries_its_licence():
    """As its terms ask."""
    assert "MIT License" in client.get("/console/vendor/uplot.LICENSE").text


@pytest.mark.parametrize("name", ["nothing.js", "../api.py", "%2e%2e/api.py", "vendor", ""])
def test_nothing_else_is_served(name):
    """What is no file of the folder is no page."""
    assert client.get(f"/console/{name}").status_code == 404


def test_a_calculator_answers_its_pages_query():
    """And says in one sentence what was wrong with it."""
    answer = client.get("/straggler.json?gpus=1024").json()
    assert round(answer["answer"]["lost_gpu_hours_per_day"]) == 5867
    assert len(answer["bars"]) == 128
    refused = client.get("/straggler.json?gpus=none")
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("gpus: ")
