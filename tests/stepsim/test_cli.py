"""The command line: exit status 0 good, 1 a failure, 2 bad usage or input."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import requests

from running_simulator import COMMAND, ROOT, Simulator
from stepsim.serving import free_port


def run(*arguments, timeout=60, **environment):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=timeout, cwd=ROOT, check=False,
        env={**os.environ, "COLUMNS": "300", **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def simulator():
    made = Simulator(free_port(), "--preset", "laptop")
    yield made
    made.stop()


def fault(simulator, *arguments):
    return run("fault", *arguments, "--url", simulator.url)


def test_faults_are_started_listed_and_stopped(simulator):
    """As the README shows."""
    started = fault(
        simulator, "start", "straggler", "--rank", "2", "--severity", "1.5", "--ramp", "5s", "--duration", "1m"
    )
    assert started.returncode == 0
    assert "straggler on rank 2, severity 1.5" in started.stdout
    listed = json.loads(fault(simulator, "list", "--json").stdout)
    assert [(one["fault"], one["ramp_seconds"], one["duration_seconds"]) for one in listed] == [("straggler", 5, 60)]
    assert listed[0]["id"] in fault(simulator, "list").stdout
    assert fault(simulator, "stop", listed[0]["id"]).returncode == 0
    assert "no fault is active" in fault(simulator, "list").stdout
    fault(simulator, "start", "data_starvation")
    (active,) = json.loads(fault(simulator, "list", "--json").stdout)
    assert fault(simulator, "stop").stdout == f"stopped {active['id']}\n"
    assert fault(simulator, "stop").stdout == "no fault is active\n"
    assert json.loads(fault(simulator, "list", "--json").stdout) == []


def test_the_catalogue_explains_every_severity(simulator):
    """In a table, and as JSON."""
    table = fault(simulator, "catalogue").stdout
    known = json.loads(fault(simulator, "catalogue", "--json").stdout)["faults"]
    assert len(known) > 15
    assert "network_degradation" not in table, "the laptop has no network"
    assert all(one["name"] in table for one in known)
    assert "1.15 / 1.43 / 2.5" in table


def test_a_narrow_terminal_gets_the_catalogue_in_blocks(simulator):
    """No word is cut, and every column is there."""
    told = run("fault", "catalogue", "--url", simulator.url, COLUMNS="80").stdout
    words = told.split()
    for one in json.loads(fault(simulator, "catalogue", "--json").stdout)["faults"]:
        assert one["name"] in words
        assert set(f"{one['description']} {one['severity']['meaning']}".split()) <= set(words)
    assert "mild / plain / severe" in told
    assert "┃" not in told
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["start", "straggler", "--rank", "99"], "no rank 99; allowed: 0 to 3"),
        (["start", "straggler", "--severity", "fast"], "not 'fast'"),
        (["start", "straggler", "--severity", "nan"], "not 'nan'"),
        (["start", "gremlins"], "unknown fault 'gremlins'; there are straggler"),
        (["start", "straggler", "--duration", "-5s"], "90s, 10m or 1h30m"),
        (["start", "straggler", "--node", "node-0"], "straggler strikes one rank: give a rank (such as 3), not a node"),
        (["start", "data_starvation", "--rank", "3"], "data_starvation strikes the whole run: leave the target out\n"),
        (["start", "straggler", "--rank", "two"], "no rank 'two'; allowed: 0 to 3"),
        (["start", "straggler", "--rank", "1", "--node", "node-0"], "not both"),
        (["stop", "nope"], "no active fault has the id 'nope'"),
        (["start"], "Missing argument"),
    ],
)
def test_bad_input_is_explained_with_exit_status_2(simulator, arguments, said):
    """And nothing is started."""
    done = fault(simulator, *arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert json.loads(fault(simulator, "list", "--json").stdout) == []


def test_no_simulator_is_exit_status_1():
    """With the way out."""
    done = run("fault", "list", "--url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "make lab" in done.stderr


def test_the_port_comes_from_the_environment(simulator):
    """STEPSCOPE_PORT, as everywhere in the lab."""
    assert run("fault", "list", STEPSCOPE_PORT=simulator.url.rpartition(":")[2]).returncode == 0


@pytest.mark.parametrize(
    ("variable", "value", "words", "said"),
    [
        ("STEPSCOPE_PORT", "abc", ("fault", "list"), "no port: 0 to 65535"),
        ("STEPSCOPE_PORT", "99999", ("practice", "state"), "no port: 0 to 65535"),
        ("STEPSCOPE_PORT", "eight", ("lab",), "no port: 0 to 65535"),
        ("PROMETHEUS_PORT", "x", ("practice", "live", "--clear"), "no port: 0 to 65535"),
        ("STEPSCOPE_PUBLIC_PORT", "x", ("simulate",), "no port: 0 to 65535"),
        ("RANKS", "many", ("lab-real",), "no number of ranks: 1 to 64"),
    ],
)
def test_a_wrong_variable_is_named(variable, value, words, said):
    """With its value, and what would be right; no option is named that the command does not have."""
    done = run(*words, **{variable: value})
    assert (done.returncode, done.stderr) == (2, f"stepscope: {variable}='{value}' is {said}\n")


def test_a_wrong_port_by_option_is_repeated():
    """The option is named, as it was typed."""
    done = run("simulate", "--port", "eight", STEPSCOPE_PORT="8000")
    assert done.returncode == 2
    assert "Invalid value for '--port'" in done.stderr
    assert "'eight' is no port: 0 to 65535" in done.stderr


def test_blind_labs_say_that_nobody_is_told():
    """A blind drill is on, or the whole lab is blind: an empty list would be untrue."""
    for arguments, words in (((), "a blind drill is on"), (("--blind",), "this lab is blind")):
        made = Simulator(free_port(), "--preset", "laptop", *arguments)
        try:
            if not arguments:
                nothing = run("practice", "reveal", "--url", made.url)
                assert nothing.stderr == "stepscope: no blind drill is on; begin one: stepscope practice start\n"
                assert run("practice", "start", "--url", made.url).returncode == 0
            said = fault(made, "list").stdout
            assert said.startswith(f"{words}: nobody is told which faults are active")
            assert fault(made, "list", "--json").stdout == "[]\n"
        finally:
            made.stop()


def test_a_port_in_use_is_named(simulator):
    """Exit status 2, and the way out."""
    port = simulator.url.rpartition(":")[2]
    done = run("simulate", "--port", port)
    assert done.returncode == 2
    assert re.search(rf"cannot listen on 127.0.0.1:{port}.*STEPSCOPE_PORT", done.stderr)


def test_a_wrong_job_and_a_damaged_state_are_named(tmp_path):
    """Before anything is served."""
    job, state = tmp_path / "job.yml", tmp_path / "state.json"
    job.write_text("nodse: 3")
    done = run("simulate", "--job", str(job))
    assert (done.returncode, "unknown key 'nodse'" in done.stderr) == (2, True)
    state.write_text('{"version": 1, "faults": [')
    done = run("simulate", "--port", "0", "--state", str(state))
    assert (done.returncode, "is damaged" in done.stderr) == (2, True)
    assert state.read_text() == '{"version": 1, "faults": ['
    for arguments in (
        ["--seed", "-1"],
        ["--port", "99999"],
        ["--nodes", "100000"],
        ["--host", "192.0.2.1", "--port", "0"],
        ["--prometheus", "ftp://host", "--port", "0"],
    ):
        done = run("simulate", *arguments)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    done = run("simulate", "--preset", "huge")
    assert (done.returncode, "there are laptop" in done.stderr) == (2, True)
    done = run("simulate", "--accelerator", "H1000")
    assert (done.returncode, "known are A100 SXM" in done.stderr) == (2, True)


def test_a_killed_simulator_comes_back_with_its_faults(tmp_path):
    """SIGKILL: the state file is whole, the fault is restored, the counters begin anew."""
    port, state = free_port(), tmp_path / "state.json"
    first = Simulator(port, "--state", str(state))
    body = {"fault": "straggler", "target": {"rank": 7}}
    made = requests.post(first.url + "/faults", json=body, headers={"X-Stepscope-Action": "1"}, timeout=5).json()
    time.sleep(2)
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    again = Simulator(port, "--state", str(state))
    try:
        assert requests.get(again.url + "/faults", timeout=5).json() == [made]
        text = requests.get(again.url + "/metrics/training/node-0", timeout=5).text
        steps = [int(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("training_steps_total{")]
        assert max(steps) < 10
    finally:
        assert again.stop() == 0


def test_a_scraper_that_hangs_and_fifty_at_once_do_not_disturb_the_engine(simulator):
    """It keeps its pace, and answers everybody."""
    host, port = "127.0.0.1", int(simulator.url.rpartition(":")[2])
    hanging = socket.create_connection((host, port))
    hanging.sendall(b"GET /metrics/training/node-0 HTTP/1.1\r\nHost: x\r\n\r\n")
    scrapers = [
        subprocess.Popen([sys.executable, "-c", f"""
import urllib.request
for _ in range(4): assert b"training_steps_total" in urllib.request.urlopen("{simulator.url}/metrics/training/node-0").read()
"""])
        for _ in range(50)
    ]  # fmt: skip
    assert [scraper.wait(60) for scraper in scrapers] == [0] * 50
    hanging.close()
    truth = requests.get(simulator.url + "/metrics/truth", timeout=5).text
    speed = next(float(line.rpartition(" ")[2]) for line in truth.splitlines() if line.startswith("lab_speed_ratio"))
    assert speed > 0.9


def events(url, count):
    """The first so many server-sent events: name and content."""
    read = []
    with requests.get(f"{url}/events", stream=True, timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines(decode_unicode=True):
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                read.append((name, json.loads(line.removeprefix("data: "))))
                if len(read) == count:
                    return read
    return read


def test_whoever_watches_gets_laps_and_states(simulator):
    """First all that was missed; then every lap once, in order, and a state about each second. Two viewers see the same."""
    (opening, *following), other = events(simulator.url, 14), events(simulator.url, 3)
    assert (opening[0], other[0][0]) == ("opening", "opening")
    assert opening[1]["lap"]["rows"] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert {name for name, _ in following} == {"lap", "state"}
    steps = [content["step"] for name, content in following if name == "lap"]
    assert steps == sorted(set(steps))
    for name, content in following:
        if name == "lap":
            lap = [sum(phase[row] for phase in content["milliseconds"]) for row in range(4)]
            assert lap == pytest.approx([lap[0]] * 4, abs=0.1)


def test_a_viewer_does_not_keep_the_simulator_from_ending():
    """It stops within seconds, with an open connection."""
    made = Simulator(free_port(), "--preset", "laptop")
    with requests.get(f"{made.url}/events", stream=True, timeout=20) as answer:
        assert next(answer.iter_lines()) == b"event: opening"
        assert made.stop() == 0
