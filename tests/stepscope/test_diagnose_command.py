"""``stepscope diagnose``, over a fake Prometheus, with the judge replaced."""

import json

import pytest

from fake_prometheus import fake_prometheus
from reports import AT, HEALTHY, TWO, UNKNOWN
from stepscope import cli
from stepscope.diagnosis import command

NOW = 1_700_000_600.0


@pytest.fixture
def fake():
    with fake_prometheus() as made:
        yield made


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """None of the variables that count, and a clock that stands."""
    for name in ("STEPSCOPE_PROMETHEUS", "PROMETHEUS_PORT", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(command.time, "time", lambda: NOW)


@pytest.fixture
def judged(monkeypatch):
    """Replaces the judge's report; what it was asked."""
    asked = []

    def replace(report):
        monkeypatch.setattr(command, "diagnose", lambda source, run, at: asked.append((run, at)) or report)
        return asked

    return replace


def diagnose(fake, *arguments):
    """The command's exit status."""
    return cli.main(["diagnose", "--prometheus", fake.url, *arguments])


@pytest.mark.parametrize(("report", "status"), [(HEALTHY, 0), (TWO, 1), (UNKNOWN, 1)])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_exit_status_is_0_only_for_a_run_that_was_found_healthy(fake, judged, report, status, form):
    """A finding is 1; so is not enough data, which proves nothing."""
    judged(report)
    assert diagnose(fake, *form) == status


def test_the_only_run_is_diagnosed_now(fake, judged):
    """Without any option but the address."""
    asked = judged(HEALTHY)
    diagnose(fake)
    assert asked == [("cluster", NOW)]
    assert fake.asked[0][1]["time"] == f"{NOW:.3f}"


def test_of_several_runs_one_must_be_chosen(fake, judged, capsys):
    """The error names them; then that one is diagnosed."""
    asked = judged(HEALTHY)
    fake.runs("pod", "gpt")
    assert diagnose(fake) == 2
    assert "there are gpt, pod; choose with --run" in capsys.readouterr().err
    assert asked == []
    assert diagnose(fake, "--run", "gpt") == 0
    assert asked == [("gpt", NOW)]


def test_without_any_run_it_says_what_is_not_there(fake, judged, capsys):
    """Exit status 2: there is nothing to judge."""
    asked = judged(HEALTHY)
    fake.runs()
    assert diagnose(fake) == 2
    assert "no training_steps_total; is the job scraped?" in capsys.readouterr().err
    assert asked == []


def test_a_run_that_does_not_report_is_named_beside_those_that_do(fake, judged, capsys):
    """It may be misspelt, or dead: the judge says what it can, and that it is not enough."""
    judged(UNKNOWN)
    assert diagnose(fake, "--run", "clutser") == 1
    said = capsys.readouterr()
    assert "run 'clutser' does not report at that moment; there are cluster" in said.err
    assert "not enough data" in said.out


def test_the_json_has_the_keys_that_others_script_against(fake, judged, capsys):
    """Those of design.md, with lists and numbers; what JSON cannot write as a number is text."""
    judged(TWO)
    diagnose(fake, "--json")
    report = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert report.keys() == {"healthy", "run", "at", "enough_data", "verdicts", "suspicions", "missing", "steps"}
    assert (report["healthy"], report["enough_data"], report["run"], report["at"]) == (False, True, "cluster", AT)
    first, second = report["verdicts"]
    assert first.keys() == {
        "fault", "target", "summary", "confidence", "lost_gpus", "evidence", "ruled_out", "runbook",
    }  # fmt: skip
    assert (first["fault"], first["target"], first["lost_gpus"]) == ("straggler", {"rank": 5}, 9.84)
    assert first["evidence"][0].keys() == {"what", "value", "unit", "healthy", "query"}
    assert [other["fault"] for other in first["ruled_out"]] == ["thermal_throttle"]
    assert first["ruled_out"][0]["evidence"]["value"] == 0.0
    assert second["evidence"][0]["value"] == "NaN"


def test_a_source_that_does_not_answer_is_exit_status_2(judged, capsys):
    """And one line, without a traceback."""
    judged(HEALTHY)
    assert cli.main(["diagnose", "--prometheus", "http://127.0.0.1:1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("stepscope: no Prometheus answers at http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, "http://127.0.0.1:9090"),
        ({"PROMETHEUS_PORT": "9191"}, "http://127.0.0.1:9191"),
        ({"PROMETHEUS_PORT": ""}, "http://127.0.0.1:9090"),
        ({"PROMETHEUS_PORT": "9191", "STEPSCOPE_PROMETHEUS": "http://prom/x"}, "http://prom/x"),
    ],
)
def test_the_address_comes_from_the_environment(environment, url):
    """As the lab's ports do."""
    assert command.default_url(environment) == url


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2023-11-14T22:13:20Z", 1_700_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000.5),
        ("2023-11-14 22:13:20Z", 1_700_000_000),
        ("1700000000", 1_700_000_000),
        ("1700000000.25", 1_700_000_000.25),
        ("10m", NOW - 600),
        ("1h30m", NOW - 5400),
        (" 90s ", NOW - 90),
        ("0s", NOW),
        ("99999999w", 0),
    ],
)
def test_a_time_is_read_as_people_write_it(text, at):
    """RFC 3339, seconds since 1970, or how long ago."""
    assert command.moment(text, NOW) == at


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yesterday", "is no time; give RFC 3339"),
        ("", "is no time"),
        ("10", None),
        ("10 m", "is no time"),
        ("nan", "is no time"),
        ("2023-11-14T22:13:20", "does not say in which zone"),
        ("2023-11-14", "does not say in which zone"),
        ("2023-13-14T22:13:20Z", "is no time"),
        ("1700000000000", "lies in the future"),
        ("9" * 400, "lies in the future"),
        ("2999-01-01T00:00:00Z", "lies in the future"),
    ],
)
def test_a_time_that_cannot_be_meant_is_exit_status_2(fake, judged, capsys, text, said):
    """What is wrong, and what would be right; a time long ago is one."""
    judged(HEALTHY)
    if said is None:
        assert diagnose(fake, "--at", text) == 0
        return
    with pytest.raises(SystemExit) as stopped:
        diagnose(fake, "--at", text)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
    assert fake.asked == []


def test_the_past_is_asked_of_the_past(fake, judged):
    """Runs and all."""
    asked = judged(HEALTHY)
    diagnose(fake, "--at", "10m")
    assert asked == [("cluster", NOW - 600)]
    assert fake.asked[0][1]["time"] == f"{NOW - 600:.3f}"


@pytest.mark.parametrize(("tty", "no_color", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)])
def test_colours_are_for_terminals_that_want_them(fake, judged, capsys, monkeypatch, tty, no_color, coloured):
    """See no-color.org."""
    judged(TWO)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stdout.isatty", lambda: tty)
    diagnose(fake)
    assert ("\x1b[" in capsys.readouterr().out) == coloured
