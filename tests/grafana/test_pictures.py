"""The program that takes pictures of the dashboards, as far as it needs no browser."""

import json
import re
import signal
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import pictures

ROOT = Path(__file__).parents[2]
DASHBOARD = {
    "panels": [{"type": "stat"}, {"type": "row", "panels": [{"type": "stat"}]}, {"type": "table"}],
    "timepicker": {"refresh_intervals": ["5s", "1m"]},
}


@pytest.fixture
def world(monkeypatch):
    """A lab and a Grafana in one server; it keeps the faults that are on and all requests."""
    monkeypatch.setattr(pictures, "wait", lambda seconds, what: made.log.append(what))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with World() as made:
        monkeypatch.setenv("GRAFANA_URL", made.url)
        monkeypatch.setenv("STEPSCOPE_URL", made.url + "/")
        yield made


class World:
    """Answers as the two would."""

    def __init__(self):
        self.faults, self.log, self.found = {}, [], [{"uid": "b", "title": "2"}, {"uid": "a", "title": "1"}]
        self.wrong, outer = {"b": ["a stat: No data"]}, self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                code, value = outer.answer(self.command, self.path, self.headers, json.loads(body or "null"))
                self.send_response(code)
                self.end_headers()
                self.wfile.write(b"" if value is None else json.dumps(value).encode())

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, method, path, headers, body):
        if method != "GET":
            assert headers["X-Stepscope-Action"]
            self.log.append(f"{method} {path}")
        if method == "POST":
            self.faults["id-1"] = {"id": "id-1", **body}
            return 201, self.faults["id-1"]
        if method == "DELETE":
            del self.faults[path.rsplit("/", 1)[1]]
            return 204, None
        known = [{"name": name} for name in ("straggler", "data_starvation", "gradient_explosion")]
        answers = {
            "/status": {"job": {"run": "my run", "ranks": 8}},
            "/faults": list(self.faults.values()),
            "/faults/catalogue": {"faults": known},
            "/api/search?type=dash-db&tag=stepscope": self.found,
            "/api/dashboards/uid/a": {"dashboard": DASHBOARD},
            "/api/dashboards/uid/b": {"dashboard": {"panels": []}},
        }
        return (200, answers[path]) if path in answers else (404, {"message": "not found"})

    @contextmanager
    def chromium(self, size):
        """A camera that writes down what is on, and fails on request."""

        def camera(url, panels, file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"")
            self.log.append(f"{file.parent.name}/{file.stem} while {[on['fault'] for on in self.faults.values()]}")
            if isinstance(self.wrong, BaseException) and self.faults:
                raise self.wrong
            return self.wrong.get(file.stem, []) if isinstance(self.wrong, dict) else []

        yield camera


@pytest.fixture
def shoot(world, monkeypatch, tmp_path):
    """Runs the program without a browser; returns its exit status."""
    monkeypatch.setattr(pictures, "chromium", world.chromium)
    return lambda *arguments: pictures.main(["--out", str(tmp_path), *arguments])


def test_every_dashboard_is_taken_in_every_state(shoot, world, tmp_path, capsys):
    """Healthy first, then fault by fault, with time to recover between them."""
    assert shoot("--faults", "straggler,gradient_explosion") == 1
    assert world.log == [
        "healthy/a while []", "healthy/b while []",
        "POST /faults", "straggler is on", "straggler/a while ['straggler']", "straggler/b while ['straggler']",
        "DELETE /faults/id-1", "recovering, before gradient_explosion",
        "POST /faults", "gradient_explosion is on", "gradient_explosion/a while ['gradient_explosion']",
        "gradient_explosion/b while ['gradient_explosion']", "DELETE /faults/id-1",
    ]  # fmt: skip
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.*")} == {"8/index.html"} | {
        f"8/{state}/{uid}.png" for state in ("healthy", "straggler", "gradient_explosion") for uid in "ab"
    }
    said = capsys.readouterr()
    assert f"{tmp_path}/8/straggler/b.png: a stat: No data" in said.err
    assert re.search(r"a .* ok .* ok .* ok ", said.out)
    assert "a stat: No" in said.out


def test_all_well_is_exit_status_0(shoot, world):
    """Also without any fault."""
    world.wrong = {}
    assert shoot("--faults", "none") == 0
    assert not any("POST" in line for line in world.log)


def test_dashboards_can_be_named(shoot, world):
    """By uid, in that order."""
    assert shoot("--faults", "none", "--dashboards", "b,a") == 1
    assert world.log == ["healthy/b while []", "healthy/a while []"]


def test_a_grafana_that_finds_none_is_asked_for_the_files_dashboards(world):
    """Their uids are those of the files."""
    world.found = []
    files = (ROOT / "grafana/dashboards").glob("*.json")
    grafana, _ = pictures.services()
    assert set(pictures.dashboards(grafana)) == {json.loads(file.read_text(encoding="utf-8"))["uid"] for file in files}


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SystemExit(143)])
def test_its_own_fault_is_stopped_on_any_exit(shoot, world, failure):
    """Ctrl-C and SIGTERM, while a picture is being taken."""
    world.wrong = failure
    with pytest.raises(SystemExit) as left:
        sys.exit(shoot())
    assert left.value.code in (130, 143)
    assert world.faults == {}
    assert world.log[-1] == "DELETE /faults/id-1"


def test_a_page_that_fails_is_that_pages_problem(shoot, world, tmp_path):
    """The others' pictures are taken all the same, and the contact sheet says it."""
    world.wrong = pictures.WebDriverException("tab crashed")
    assert shoot() == 1
    assert world.faults == {}
    sheet = next(tmp_path.rglob("index.html")).read_text(encoding="utf-8")
    assert sheet.count("the browser failed: tab crashed") == 6  # two dashboards in three faults


def test_a_fault_ends_by_itself_should_the_program_be_killed(world):
    """Not before all its pictures can be taken."""
    _, lab = pictures.services()
    with pictures.fault(lab, "straggler", 100.0, 340.0):
        assert world.faults["id-1"]["duration"] == 340.0


def test_a_fault_that_is_on_already_is_an_error(shoot, world, capsys):
    """It is not ours to stop."""
    world.faults["theirs"] = {"id": "theirs", "fault": "storage_outage"}
    assert shoot() == 2
    assert world.faults
    assert world.log == []
    assert "already on: storage_outage. Stop it first, with 'stepscope fault stop'" in capsys.readouterr().err


def test_an_unknown_fault_is_an_error_before_any_picture(shoot, world, capsys):
    """It says which there are."""
    assert shoot("--faults", "straggler,stragler") == 2
    assert world.log == []
    assert "has no fault stragler; it has straggler, data_starvation" in capsys.readouterr().err


@pytest.mark.parametrize(("variable", "name", "remedy"), [
    ("GRAFANA_URL", "Grafana", "docker compose up"),
    ("STEPSCOPE_URL", "lab", "make lab"),
])  # fmt: skip
def test_a_service_that_does_not_answer(shoot, world, monkeypatch, capsys, variable, name, remedy):
    """What was asked, and what would be right."""
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    assert shoot() == 2
    said = capsys.readouterr().err
    assert f"no {name} answers at http://127.0.0.1:9" in said
    assert remedy in said
    assert variable in said


def test_a_dashboard_that_grafana_does_not_have(shoot, capsys):
    """Grafana's own words."""
    assert shoot("--dashboards", "nowhere", "--faults", "none") == 2
    assert 'answered 404 to GET /api/dashboards/uid/nowhere: {"message": "not found"}' in capsys.readouterr().err


def test_no_browser(monkeypatch, tmp_path, capsys):
    """The packages by name."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert pictures.main([]) == 2
    said = capsys.readouterr().err
    assert "not on PATH: chromium, chromedriver" in said
    assert "apt-get install chromium chromium-driver" in said


def test_the_services_default_to_the_labs_own_ports(monkeypatch):
    """Which the same variables move as everywhere else."""
    for name in ("GRAFANA_URL", "STEPSCOPE_URL", "STEPSCOPE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRAFANA_PORT", "3001")
    assert [service.url for service in pictures.services()] == ["http://127.0.0.1:3001", "http://127.0.0.1:8000"]


def test_options():
    """Durations, sizes and lists."""
    plain = pictures.parse([])
    assert (plain.range, plain.settle, plain.size, plain.theme) == (900.0, 100.0, (1920, 1080), "dark")
    assert plain.faults == ("straggler", "data_starvation", "gradient_explosion")
    assert plain.dashboards == ()
    assert plain.out == Path("build/pictures")
    given = pictures.parse(["--faults", "none", "--range", "1h30m", "--settle", "5s", "--size", "800x600"])
    assert (given.faults, given.range, given.settle, given.size) == ((), 5400.0, 5.0, (800, 600))


@pytest.mark.parametrize(("option", "value", "told"), [
    ("--range", "soon", "written like 90s"), ("--size", "big", "1920x1080"), ("--theme", "blue", "dark"),
])  # fmt: skip
def test_an_option_that_is_not_understood(capsys, option, value, told):
    """Says how it is written."""
    with pytest.raises(SystemExit) as left:
        pictures.parse([option, value])
    assert left.value.code == 2
    assert told in capsys.readouterr().err


def test_the_url_of_a_page(world):
    """Kiosk, range, theme, run, the slowest refresh that is allowed; rows are no panels, nor what is folded in them."""
    grafana, _ = pictures.services()
    url, panels = pictures.page(grafana, "a", "my run", pictures.parse(["--theme", "light"]))
    assert url == f"{world.url}/d/a?kiosk&from=now-900s&to=now&refresh=1m&theme=light&var-run=my%20run"
    assert panels == 2
    assert "&refresh=1d&" in pictures.page(grafana, "b", "my run", pictures.parse([]))[0]


def test_the_contact_sheet():
    """A row for each dashboard, a column for each state, links to the pictures, no scripts."""
    text = pictures.sheet("a <run>", {"healthy": {"a": [], "b": ["x: <error>"]}, "straggler": {"a": [], "b": []}})
    assert "<h1>a &lt;run&gt;</h1>" in text
    assert "x: &lt;error&gt;" in text
    rows = [line for line in text.splitlines() if line.startswith("<tr>")]
    files = [re.findall(r'<a href="([^"]+)"><img src="\1"', row) for row in rows]
    assert files == [[], ["healthy/a.png", "straggler/a.png"], ["healthy/b.png", "straggler/b.png"]]
    assert re.findall(r"<th>(\w+)", rows[0]) == ["healthy", "straggler"]
    assert "<script" not in text


def panel(title, text="1.0", *, error=False, drawn=True):
    return {"title": title, "text": text, "error": error, "drawn": drawn}


def test_what_a_person_would_want_to_know_of_a_page():
    """Errors, panels without data, panels that did not come, what the page itself says, and its height."""
    camera = sys.modules["camera"]
    fine = {"height": 1080, "alerts": [], "panels": [panel("a"), panel("b", "No alert is firing")]}
    assert camera.problems(fine, 2, 1080) == []
    panels = [panel("a", "No data", error=True), panel("b", "rank\nNo data"), panel("c", "No data in response"),
              panel("d", "Data is missing a number field"), panel("e", drawn=False)]  # fmt: skip
    bad = {"height": 1500, "alerts": ["Templating\nfailed"], "panels": panels}
    assert camera.problems(bad, 6, 1080) == [
        "the page says: Templating failed", "only 5 of 6 panels appeared in time", "e: not drawn in time", "a: error",
        "b: No data", "c: No data in response", "d: Data is missing a number field", "needs scrolling: 1500 px of 1080",
    ]  # fmt: skip


class FakeDriver:
    """Shows one page after the other; the last one stays."""

    def __init__(self, *pages):
        self.pages, self.heights = list(pages), []

    def execute_script(self, script):
        return self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]

    def execute_cdp_cmd(self, command, metrics):
        self.heights.append(metrics["height"])

    def get(self, url):
        pass

    def get_screenshot_as_png(self):
        return b"picture"


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(sys.modules["camera"].time, "sleep", lambda seconds: None)
    return sys.modules["camera"]


def test_a_picture_waits_for_the_page_and_shows_all_of_it(fast, tmp_path):
    """The window grows with the page; a page that was quiet but not drawn is waited for."""
    blank = {"height": 1080, "alerts": [], "panels": []}
    loading = {**blank, "height": 1400, "panels": [panel("a", drawn=False)]}
    driver = FakeDriver(*[blank] * 10, *[loading] * 10, {**loading, "panels": [panel("a", "No data")]})
    file = tmp_path / "healthy" / "a.png"
    found = fast.photograph(driver, (1920, 1080), "http://x", 1, file)
    assert found == ["a: No data", "needs scrolling: 1400 px of 1080"]
    assert driver.heights == [1080, 1400]
    assert file.read_bytes() == b"picture"


def test_a_page_that_never_comes_is_taken_as_it_is(fast, tmp_path, monkeypatch):
    """And reported."""
    monkeypatch.setattr(fast, "PAGE_SECONDS", 0.05)
    found = fast.photograph(
        FakeDriver({"height": 9, "alerts": [], "panels": []}), (9, 9), "http://x", 3, tmp_path / "a"
    )
    assert found == ["only 0 of 3 panels appeared in time"]
    assert (tmp_path / "a").read_bytes() == b"picture"
