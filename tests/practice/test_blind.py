"""Blind drills on the running job: nobody is told what strikes, the commitment holds, and the alerts are graded exactly."""

import hashlib
import json
import logging
import re
from datetime import UTC, datetime

import pytest
from starlette.testclient import TestClient

from reports import HEALTHY, diagnosed
from stepsim.api import create_app
from stepsim.faults import FAULTS
from stepsim.incidents import PACES
from stepsim.job import load_job
from stepsim.live import LiveJob
from stepsim.pages import Pages
from stepsim.practice.drill import Incident as Wanted
from stepsim.practice.drill import read_drill
from stepsim.practice.live import blind
from stepsim.practice.live.plan import GAP_SECONDS, LONGEST_SECONDS, SHORTEST_SECONDS, WARM_UP_SECONDS, draw_plan, room
from stepsim.practice.scenario import Struck
from stepsim.real import RealJob, RealPages

ACTION = {"X-Stepscope-Action": "test"}
NOW = 1_700_000_000.0
SEED = "0123456789abcdef0123456789abcdef"
NOBODY = "0001-01-01T00:00:00Z"

DRILL = """
id: tickets
title: Two kinds
goal: Tell a page from a ticket
incidents:
  - {fault: straggler, severity: 1.4, ramp: 10s, expect: page, detect_within: 100s, reset_within: 100s}
  - {fault: loss_plateau, expect: ticket, detect_within: 200s, reset_within: 100s}
debrief: There is none.
reference: [{alert: A, expr: up == 0}]
tempting: [{why: it does not tell, rules: [{alert: B, expr: up == 1}]}]
"""


class Lab:
    """A small simulated job under a clock that is set by hand, its API, and an Alertmanager that says what it is told to say."""

    def __init__(self, tmp_path, **options):
        self.now = NOW
        self.state = tmp_path / "state.json"
        self.live = LiveJob(load_job("laptop"), clock=lambda: self.now, state_file=self.state, **options)
        self.diagnoser = diagnosed(HEALTHY)
        self.diagnoser.largest = lambda query: None
        pages = Pages(self.live.engine, lambda: self.now, diagnoser=self.diagnoser)
        app = create_app(self.live, pages, origins=[], clock=lambda: self.now, diagnoser=self.diagnoser)
        self.client = TestClient(app, base_url="http://lab:8000")

    def post(self, path, body=None, headers=ACTION):
        return self.client.post(path, headers=headers, **({} if body is None else {"json": body}))

    def get(self, path):
        return self.client.get(path).json()

    def wait(self, seconds):
        """Time passes; the job does what it does."""
        self.now += seconds
        self.live.engine.advance(self.now)

    def sleep(self, seconds):
        """Time passes for the clock alone: the incidents strike, no step is simulated."""
        self.now += seconds
        self.live.engine.incidents.start_due(self.live.board, self.now)
        self.live.board.expire(self.now)

    def send(self, name, begins, ends=None, **labels):
        """Alertmanager's word on one alert, in seconds after the drill's beginning."""
        told = {"status": "resolved" if ends is not None else "firing", "labels": {"alertname": name, "run": "laptop", **labels},
                "startsAt": zulu(begins), "endsAt": NOBODY if ends is None else zulu(ends)}  # fmt: skip
        assert self.client.post("/alerts", json={"alerts": [told]}).status_code == 200

    def active(self):
        return self.live.board.active()


def zulu(seconds):
    return datetime.fromtimestamp(NOW + seconds, UTC).isoformat().replace("+00:00", "Z")


@pytest.fixture
def lab(tmp_path, monkeypatch):
    drill = read_drill(DRILL, "tickets.yml")
    monkeypatch.setattr(blind, "drills", lambda: {drill.id: drill})
    return Lab(tmp_path)


def planned(monkeypatch, *incidents):
    """What strikes, by hand: fault, target, beginning, end, and what a drill asks of it."""
    plan = tuple(
        Struck(fault=fault, target=target, severity=FAULTS[fault].severity.plain, ramp_seconds=0.0, begins=begins, ends=ends,
               flaps=None, **{"expect": "page", "detect_within": 100.0, "reset_within": 100.0, **more})
        for fault, target, begins, ends, more in incidents
    )  # fmt: skip
    monkeypatch.setattr(blind, "draw_plan", lambda *arguments, **options: plan)


# What is drawn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [6, 13, 20, 60, 240])
@pytest.mark.parametrize("seed", [SEED, "f" * 32, "0"])
def test_incidents_keep_their_distances(minutes, seed):
    """A warm-up, two to five minutes each, gaps in which alerts end, and all of it within the drill's time."""
    job = load_job("laptop")
    most = min(20, room(60 * minutes))
    for incidents in (1, most):
        plan = draw_plan(seed, job, [Wanted(fault="straggler")], seconds=60 * minutes, incidents=incidents)
        assert len(plan) == incidents
        assert plan[0].begins >= WARM_UP_SECONDS >= 60
        assert all(SHORTEST_SECONDS - 1e-6 <= one.ends - one.begins <= LONGEST_SECONDS for one in plan)
        ends = [*(one.begins for one in plan[1:]), 60 * minutes]
        assert all(following - one.ends >= GAP_SECONDS - 1e-6 for one, following in zip(plan, ends, strict=True))


def test_a_seed_gives_the_same_incidents_and_another_seed_others():
    """So that whoever has the seed afterwards can see that nothing was changed."""
    job, wanted = load_job("cluster"), [Wanted(fault=name) for name in FAULTS]
    one, again, other = (draw_plan(seed, job, wanted, seconds=3600, incidents=8) for seed in (SEED, SEED, "ff"))
    assert one == again != other
    assert len({struck.fault for struck in one}) == 8  # none twice while there are others
    for struck in one:
        scale = FAULTS[struck.fault].severity
        assert min(scale.plain, scale.severe) <= struck.severity <= max(scale.plain, scale.severe)


def test_a_drill_is_drawn_with_something_to_tell():
    """A distractor alone could not be graded."""
    wanted = [Wanted(fault="checkpoint_stall", expect="silence"), Wanted(fault="straggler")]
    for seed in range(20):
        [one] = draw_plan(f"{seed:x}", load_job("laptop"), wanted, seconds=600, incidents=1)
        assert one.fault == "straggler"


# Nothing leaks ------------------------------------------------------------------------------------------------------


def test_nothing_tells_which_faults_are_active(lab, caplog, monkeypatch):
    """No page, header, log line or file has a fault's name, from the beginning to the reveal; and yet the faults strike. The
    catalogue is no secret: it has them all, always."""
    caplog.set_level(logging.DEBUG)
    hard = [("straggler", {"rank": 2}), ("data_starvation", {"run": True}), ("cpu_starvation", {"node": "node-0"})]
    planned(monkeypatch, *((fault, target, 120 + 210 * n, 240 + 210 * n, {}) for n, (fault, target) in enumerate(hard)))
    begun = lab.post("/practice", {"minutes": 13, "incidents": 3})
    assert begun.status_code == 201
    said, struck = [begun.text, str(begun.headers)], set()
    for moment in range(0, 780, 30):
        said += everything(lab)
        struck |= {fault.fault for fault in lab.active()}
        lab.wait(30) if moment in (0, 120, 150) else lab.sleep(30)
    assert struck == {fault for fault, _ in hard}
    assert lab.get("/practice")["state"] == "over"
    said += [*everything(lab, changes=False), caplog.text]
    said = [one.replace('"/straggler"', "") for one in said]  # a page that is always there
    for name in FAULTS:
        assert not [one for one in said if re.search(rf"\b{name}\b", one)], name
    assert "lab_fault" not in "".join(said)


def everything(lab, *, changes=True):
    """Bodies and headers of all that the API answers, and the state file. ``changes``: of what is refused during a drill, too;
    after it, who asks for no fault is told, as ever, which there are."""
    paths = ["/", "/healthz", "/status", "/diagnosis", "/sd", "/faults", "/alerts", "/practice", "/practice/result",
             "/console/console.js", "/console/practice.js", "/console/console.css", "/metrics/nothing", "/nothing"]  # fmt: skip
    paths += [target["labels"]["__metrics_path__"] for target in lab.get("/sd")]
    answers = [lab.client.get(path) for path in paths]
    if changes:
        answers += [lab.post("/faults", {}), lab.client.delete("/faults", headers=ACTION), lab.post("/faults/stop")]
        answers += [lab.client.delete(f"/faults/{fault.id}", headers=ACTION) for fault in lab.active()]
    answers += [lab.post("/practice", {}), lab.client.options("/practice")]
    return [part for answer in answers for part in (answer.text, str(answer.headers))] + [lab.state.read_text()]


def test_the_truths_page_is_silent_during_a_drill_and_back_after_it(lab, monkeypatch):
    """It stays a target: one that came and went would tell when."""
    planned(monkeypatch, ("straggler", {"rank": 2}, 120.0, 300.0, {}))
    lab.post("/practice", {"minutes": 6, "incidents": 1})
    lab.sleep(200)
    assert [fault.fault for fault in lab.active()] == ["straggler"]
    assert lab.client.get("/metrics/truth").status_code == 200
    assert "lab_fault" not in lab.client.get("/metrics/truth").text
    assert "lab_practice_running 1" in lab.client.get("/metrics/practice").text
    lab.sleep(160)
    assert lab.post("/faults", {"fault": "jitter"}).status_code == 201  # the time is over: faults are free again
    assert 'lab_fault_active{fault="jitter"' in lab.client.get("/metrics/truth").text
    lab.post("/practice/reveal")
    assert [fault.fault for fault in lab.active()] == ["jitter"]


def test_what_may_be_known_is_little(lab, monkeypatch):
    """Whether, how long still, the commitment and how many alerts came; before and after, that there is none."""
    assert lab.get("/practice").keys() == {"state", "running", "revealed", "note"}
    assert "peek" in lab.get("/practice")["note"]
    lab.post("/practice", {"minutes": 20, "incidents": 3})
    lab.sleep(80)
    lab.send("Slow", 70)
    lab.send("Slow", 70)  # repeated
    lab.send("Other", 70, run="another")
    known = lab.get("/practice")
    assert known.keys() == {
        "state",
        "running",
        "revealed",
        "note",
        "seconds_left",
        "minutes",
        "commitment",
        "alerts_received",
    }
    assert (known["state"], known["running"], known["minutes"]) == ("running", True, 20)
    assert (known["seconds_left"], known["alerts_received"]) == (1120, 1)
    assert lab.get("/status")["practice"] == known
    assert lab.client.get("/practice/result").status_code == 404


# The commitment -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drill", [None, "tickets"])
def test_the_commitment_is_told_first_and_verified_after(lab, drill):
    """From the seed and the salt anybody computes the hash; from the seed, the incidents."""
    begun = lab.post("/practice", {"drill": drill, "minutes": 20, "incidents": 2}).json()
    lab.sleep(1200)
    told = lab.post("/practice/reveal").json()
    assert (
        hashlib.sha256((told["salt"] + told["seed"]).encode()).hexdigest() == begun["commitment"] == told["commitment"]
    )
    assert len(told["seed"]) == len(told["salt"]) == 32
    wanted = blind.drills()[drill].incidents if drill else [Wanted(fault=name) for name in lab.live.board.faults]
    again = draw_plan(told["seed"], load_job("laptop"), wanted, seconds=1200, incidents=2)
    assert [(one["fault"], one["target"], one["severity"]) for one in told["incidents"]] == [
        (one.fault, one.target, one.severity) for one in again
    ]
    assert [one["begins_seconds"] for one in told["incidents"]] == [round(one.begins, 1) for one in again]


def test_two_drills_have_two_seeds(lab):
    """Nothing of the first tells anything of the second."""
    seeds = set()
    for _ in range(2):
        lab.post("/practice", {})
        seeds.add(lab.post("/practice/reveal").json()["seed"])
    assert len(seeds) == 2


# The grade ----------------------------------------------------------------------------------------------------------


def test_alerts_that_alertmanager_sent_are_graded_exactly(lab, monkeypatch):
    """One of two told, half a minute late, third to name the culprit, ended 20 s after; one false alarm; two exhibits that
    count for nothing; one that had begun, and ended, before."""
    planned(monkeypatch, ("straggler", {"rank": 2}, 200.0, 400.0, {}), ("hang", {"rank": 1}, 500.0, 700.0, {}))
    lab.post("/practice", {"minutes": 15, "incidents": 2})
    lab.send("Before", -40, 50)
    lab.sleep(450)
    lab.send("Slow", 230, rank="1")
    lab.send("Slow", 230, 420, rank="1")
    lab.send("Slow", 235, 420, rank="3")
    lab.send("Slow", 240, 420, rank="2")
    lab.send("Naive", 300, exhibit="yes")
    lab.send("Wolf", 470, 480)
    lab.sleep(450)
    told = lab.post("/practice/reveal").json()
    first, second = told["incidents"]
    assert (first["verdict"], first["alert"], first["delay_seconds"], first["reset_seconds"]) == (
        "told",
        "Slow",
        30,
        20,
    )
    assert first["culprit"] == pytest.approx(1 / 3)
    assert (second["verdict"], second["alert"], second["delay_seconds"], second["culprit"]) == ("missed", None, None, 0)
    assert [(one["alert"], one["begins_seconds"], one["ends_seconds"]) for one in told["false_alarms"]] == [
        ("Wolf", 470, 480)
    ]
    quality = (0.4 * 0.7 + 0.4 / 3 + 0.2 * 0.8) / 2
    recall = precision = 0.5
    assert told["grade"] == pytest.approx({
        "score": 100 * (0.5 * 0.5 + 0.5 * precision * quality), "recall": recall, "precision": precision, "delay": 0.35,
        "culprit": 1 / 6, "reset": 0.4, "noise": 0, "told": 1, "incidents": 2, "false_alarms": 1,
    })  # fmt: skip
    assert (told["rules"], told["ungraded"], told["early"]) == ("the lab's", None, False)
    assert lab.get("/practice/result") == told
    assert lab.get("/practice").keys() == {"state", "running", "revealed", "note"}


def test_one_that_fired_all_along_earns_nothing(lab, monkeypatch):
    """Notified before the drill began, and never again: it tells nothing of what comes."""
    planned(monkeypatch, ("straggler", {"rank": 2}, 200.0, 400.0, {}))
    lab.send("Always", -3000)
    lab.post("/practice", {"minutes": 10, "incidents": 1})
    lab.sleep(600)
    told = lab.post("/practice/reveal").json()
    assert [one["verdict"] for one in told["incidents"]] == ["missed"]
    assert told["grade"]["score"] == 0


def test_with_rules_of_ones_own_they_alone_are_graded(lab, monkeypatch):
    """The lab's rules would tell every fault; own ones may lack the label run."""
    planned(monkeypatch, ("straggler", {"rank": 2}, 200.0, 400.0, {}))
    lab.post("/practice", {"minutes": 10, "incidents": 1})
    lab.send("TrainingRankStraggling", 210, 410, rank="2")
    lab.client.post("/alerts", json={"alerts": [{"status": "resolved", "labels": {"alertname": "Mine", "practice": "yes"},
                                                 "startsAt": zulu(250), "endsAt": zulu(430)}]})  # fmt: skip
    lab.sleep(600)
    told = lab.post("/practice/reveal").json()
    assert told["rules"] == "yours"
    assert (told["incidents"][0]["alert"], told["incidents"][0]["delay_seconds"]) == ("Mine", 50)


def test_own_rules_that_stay_silent_get_nothing_from_the_labs(lab, monkeypatch):
    """That they were loaded is asked of Prometheus, over the time of the drill."""
    asked = []
    monkeypatch.setattr(lab.diagnoser, "largest", lambda query: asked.append(query) or 3.0)
    planned(monkeypatch, ("straggler", {"rank": 2}, 200.0, 400.0, {}))
    lab.post("/practice", {"minutes": 10, "incidents": 1})
    lab.send("TrainingRankStraggling", 210, 410, rank="2")
    lab.sleep(600)
    told = lab.post("/practice/reveal").json()
    assert (told["rules"], told["incidents"][0]["verdict"], told["grade"]["score"]) == ("yours", "missed", 0)
    assert asked == ["max_over_time(lab_practice_rules[600s])"]


@pytest.mark.parametrize(("drill", "verdicts"), [(None, ["told", "told"]), ("tickets", ["told", "missed"])])
def test_severities_count_where_a_drill_says_which_it_wants(lab, monkeypatch, drill, verdicts):
    """A page for what wants a ticket is a false alarm; of random faults nobody says what they want."""
    planned(monkeypatch, ("straggler", {"rank": 2}, 200.0, 350.0, {}),
            ("loss_plateau", {"run": True}, 500.0, 650.0, {"expect": "ticket"} if drill else {}))  # fmt: skip
    lab.post("/practice", {"drill": drill, "minutes": 15, "incidents": 2})
    lab.send("A", 210, 360, severity="page" if drill else "ticket")
    lab.send("B", 510, 660, severity="page")
    lab.sleep(900)
    told = lab.post("/practice/reveal").json()
    assert [one["verdict"] for one in told["incidents"]] == verdicts
    assert len(told["false_alarms"]) == verdicts.count("missed")


def test_an_early_reveal_ends_the_drill_and_grades_what_had_begun(lab, monkeypatch):
    """The fault that is on stops; the one to come never comes. Reset counts nothing: no alert had the time to end."""
    planned(monkeypatch, ("straggler", {"rank": 2}, 200.0, 400.0, {}), ("hang", {"rank": 1}, 500.0, 700.0, {}))
    lab.post("/practice", {"minutes": 15, "incidents": 2})
    lab.sleep(300)
    lab.send("Slow", 210, rank="2")
    told = lab.post("/practice/reveal").json()
    assert lab.active() == []
    assert (told["early"], told["seconds"]) == (True, 300)
    assert [one["verdict"] for one in told["incidents"]] == ["told", "not begun"]
    assert told["grade"] == pytest.approx({
        "score": 50 + 50 * (0.4 * 0.9 + 0.4), "recall": 1, "precision": 1, "delay": 0.9, "culprit": 1, "reset": 0, "noise": 0,
        "told": 1, "incidents": 1, "false_alarms": 0,
    })  # fmt: skip
    lab.sleep(300)
    assert lab.active() == []
    assert lab.post("/faults", {"fault": "straggler"}).status_code == 201


def test_before_anything_began_there_is_nothing_to_grade(lab):
    """The truth is told all the same, and why there is no score."""
    lab.post("/practice", {})
    lab.sleep(30)
    told = lab.post("/practice/reveal").json()
    assert told["grade"] is None
    assert "no incident" in told["ungraded"]
    assert {one["verdict"] for one in told["incidents"]} == {"not begun"}
    page = lab.client.get("/metrics/practice").text
    assert "lab_practice_running 0" in page
    assert "lab_practice_score" not in page


def test_a_machine_that_slept_gets_no_grade(lab):
    """Its faults moved with the job's time, the alerts' times did not."""
    lab.post("/practice", {})
    lab.sleep(100)
    lab.live.engine.shift(500)
    told = lab.post("/practice/reveal").json()
    assert told["grade"] is None
    assert "slept" in told["ungraded"]


def test_the_result_is_published_after_the_reveal_alone(lab, monkeypatch):
    """Score, parts, false alarms, and a series for each incident; of a new drill that is on, nothing but that it is."""
    assert lab.client.get("/metrics/practice").text == ""
    planned(
        monkeypatch, ("straggler", {"rank": 2}, 200.0, 400.0, {}), ("data_starvation", {"run": True}, 500.0, 700.0, {})
    )
    lab.post("/practice", {"minutes": 15, "incidents": 2})
    lab.send("Slow", 220, 420, rank="2")
    lab.sleep(900)
    assert lab.client.get("/metrics/practice").text.count("\nlab_") == 1
    lab.post("/practice/reveal")
    lines = lab.client.get("/metrics/practice").text.splitlines()
    assert "lab_practice_running 0" in lines
    assert "lab_practice_false_alarms 0" in lines
    assert 'lab_practice_part_ratio{part="recall"} 0.5' in lines
    assert 'lab_practice_incident_info{number="1",fault="straggler",target="rank 2",alert="Slow",delay_seconds="20",' \
        'culprit="1",verdict="told"} 1' in lines  # fmt: skip
    assert 'lab_practice_incident_info{number="2",fault="data_starvation",target="run",alert="",delay_seconds="",' \
        'culprit="",verdict="missed"} 1' in lines  # fmt: skip
    [score] = [float(line.split()[1]) for line in lines if line.startswith("lab_practice_score ")]
    assert score == pytest.approx(lab.get("/practice/result")["grade"]["score"])


# Requests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"minutes": 5}, "minutes", "from 6 to 240, not 5"),
        ({"minutes": "20"}, "minutes", "from 6 to 240, not '20'"),
        ({"minutes": True}, "minutes", "number from 6 to 240"),
        ({"minutes": 10**400}, "minutes", "number from 6 to 240"),
        ({"minutes": 10, "incidents": 3}, "incidents", "from 1 to 2, for which 10 minutes have room, not 3"),
        ({"incidents": 0}, "incidents", "from 1 to 5"),
        ({"incidents": 1.5}, "incidents", "whole number"),
        ({"drill": "nothing"}, "drill", "no drill 'nothing'; there are tickets; null draws any fault"),
        ({"drill": "../x.yml"}, "drill", "there are tickets"),
        ({"drill": ["tickets"]}, "drill", "there are tickets"),
        ({"hours": 1}, "hours", "there are drill, minutes, incidents"),
    ],
)
def test_a_bad_request_names_the_field_and_what_is_allowed(lab, body, field, said):
    """422, and nothing begins."""
    answer = lab.post("/practice", body)
    assert answer.status_code == 422
    assert answer.json()["field"] == field
    assert said in answer.json()["error"]
    assert lab.get("/practice")["state"] == "none"


def test_a_drill_about_what_the_job_cannot_have_is_refused(lab, monkeypatch):
    """With the fault and the reason."""
    text = DRILL.replace("fault: straggler, severity: 1.4", "fault: network_degradation").replace(
        "goal", "ranks: 16\ngoal"
    )
    drill = read_drill(text, "x.yml")
    monkeypatch.setattr(blind, "drills", lambda: {drill.id: drill})
    answer = lab.post("/practice", {"drill": "tickets"})
    assert (answer.status_code, answer.json()["field"]) == (422, "drill")
    assert "network_degradation" in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/faults"), ("DELETE", "/faults"), ("POST", "/faults/stop"), ("DELETE", "/faults/abc"), ("POST", "/practice")],
)  # fmt: skip
def test_while_a_drill_is_on_faults_are_refused_in_words(lab, method, path):
    """409 that says how to end it; the plan goes on."""
    lab.post("/practice", {})
    answer = lab.client.request(method, path, headers=ACTION, json={"fault": "straggler"} if path == "/faults" else {})
    assert answer.status_code == 409
    assert "/practice/reveal" in answer.json()["error"]
    assert lab.get("/practice")["state"] == "running"


def test_a_drill_that_is_over_is_revealed_before_the_next(lab):
    """Its truth would be lost."""
    lab.post("/practice", {})
    lab.sleep(1200)
    answer = lab.post("/practice", {})
    assert answer.status_code == 409
    assert "over, but not revealed" in answer.json()["error"]
    lab.post("/practice/reveal")
    assert lab.post("/practice", {}).status_code == 201


@pytest.mark.parametrize("path", ["/practice", "/practice/reveal"])
def test_no_other_web_page_can_begin_or_end_a_drill(lab, path):
    """The action header is asked for, as with faults."""
    answer = lab.post(path, {}, headers={})
    assert answer.status_code == 403
    assert "X-Stepscope-Action" in answer.json()["error"]


def test_without_a_drill_there_is_nothing_to_reveal(lab):
    """409, with what begins one, and that a restart ends it."""
    answer = lab.post("/practice/reveal")
    assert answer.status_code == 409
    assert "POST /practice starts one" in answer.json()["error"]
    assert "restart" in answer.json()["error"]


# The lab around it --------------------------------------------------------------------------------------------------


def test_active_faults_end_when_a_drill_begins(lab):
    """What is on is what the drill brings."""
    lab.post("/faults", {"fault": "straggler"})
    lab.post("/practice", {})
    assert lab.active() == []


def test_nothing_of_a_drill_survives_a_restart(lab, tmp_path, monkeypatch):
    """Neither the drill nor its faults."""
    planned(monkeypatch, ("straggler", {"rank": 2}, 120.0, 300.0, {}))
    lab.post("/practice", {"minutes": 6, "incidents": 1})
    lab.sleep(200)
    lab.live._save()  # as at a checkpoint
    assert json.loads(lab.state.read_text())["faults"] == []
    again = Lab(tmp_path)
    assert again.get("/practice")["state"] == "none"
    assert again.active() == []


def test_random_incidents_wait_for_the_end_of_a_drill(tmp_path, caplog):
    """They strike as much later as the drill took."""
    caplog.set_level(logging.INFO)
    plain, postponed, early = (Lab(tmp_path, incidents=PACES["accelerated"]) for _ in range(3))

    def strikes(lab, seconds):
        found = {}
        for _ in range(int(seconds / 10)):
            lab.sleep(10)
            found |= {fault.id: (fault.fault, fault.started - NOW) for fault in lab.active()}
        return list(found.values())

    expected = strikes(plain, 5000)
    assert len(expected) >= 2
    for lab, ends in ((postponed, 1200), (early, 600)):
        lab.post("/practice", {"minutes": 20, "incidents": 1})
        strikes(lab, ends)
        lab.post("/practice/reveal")
        assert strikes(lab, 5000) == [(fault, pytest.approx(begins + ends)) for fault, begins in expected]


def test_a_real_job_has_no_blind_drills(tmp_path):
    """Its ranks ask for its faults: 409, and why; its page is not there either."""
    job = RealJob(tmp_path, 4)
    client = TestClient(create_app(job, RealPages(job), origins=[]))
    assert client.get("/practice").json()["state"] == "impossible"
    answer = client.post("/practice", json={}, headers=ACTION)
    assert answer.status_code == 409
    assert "simulator" in answer.json()["error"]
    assert client.get("/metrics/practice").status_code == 404
    assert client.get("/practice/result").status_code == 404
