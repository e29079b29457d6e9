"""The lab's HTTP API."""

import json

import jsonschema
import pytest
from starlette.testclient import TestClient

from reports import HEALTHY, TWO, diagnosed
from stepscope.diagnosis import Prometheus
from stepsim.api import create_app
from stepsim.diagnoser import Diagnoser
from stepsim.live import LiveJob
from stepsim.pages import Pages

ORIGIN = "http://127.0.0.1:3000"
ACTION = {"X-Stepscope-Action": "test"}
NOW = 1_700_000_100.0


@pytest.fixture
def live(cluster):
    job = LiveJob(cluster, clock=lambda: NOW - 100)
    for second in range(100):
        job.engine.advance(NOW - 100 + second)
        job.recent.sample()
    return job


@pytest.fixture
def client(live):
    return TestClient(app(live), base_url="http://lab:8000")


def app(live, *, blind=False, diagnoser=None):
    pages = Pages(live.engine, lambda: NOW, blind=blind, diagnoser=diagnoser)
    return create_app(live, pages, origins=[ORIGIN], clock=lambda: NOW, blind=blind, diagnoser=diagnoser)


def start(client, **request):
    return client.post("/faults", json=request, headers=ACTION)


def test_a_fault_is_started_listed_and_stopped(client):
    """201 with its id, then 204."""
    answer = start(client, fault="straggler", target={"rank": 7}, severity=2, ramp="10s", duration="10m")
    assert answer.status_code == 201
    fault = answer.json()
    assert answer.headers["location"] == f"/faults/{fault['id']}"
    assert (fault["target"], fault["severity"], fault["ramp_seconds"], fault["duration_seconds"]) == (
        {"rank": 7},
        2,
        10,
        600,
    )
    assert client.get("/faults").json() == [fault]
    assert client.delete(f"/faults/{fault['id']}", headers=ACTION).status_code == 204
    assert client.get("/faults").json() == []


def test_all_faults_are_stopped_at_once(client):
    """DELETE /faults."""
    start(client, fault="straggler")
    start(client, fault="data_starvation")
    assert client.delete("/faults", headers=ACTION).status_code == 204
    assert client.get("/faults").json() == []


def test_defaults_come_from_the_catalogue(client):
    """Only the fault's name is needed."""
    fault = start(client, fault="straggler").json()
    assert (fault["target"], fault["severity"], fault["duration_seconds"]) == ({"rank": 5}, 1.43, None)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"fault": "straggler", "target": {"rank": 99}}', 422, "allowed: 0 to 31"),
        (b'{"fault": "straggler", "severity": "fast"}', 422, "number from 1 to 20"),
        (b'{"fault": "straggler", "severity": NaN}', 400, "NaN is not a number"),
        (b'{"fault": "straggler", "duration": ' + b"9" * 400 + b"}", 422, "up to 365d"),
        (b'{"fault": "straggler", "ramp": "' + b"9" * 400 + b's"}', 422, "up to 365d"),
        (b'{"\\ud800": 1}', 400, "not JSON"),
        (b'{"fault": "straggler", "duration": -1}', 422, "seconds from 0 on"),
        (b'{"fault": "nothing"}', 422, "there are straggler"),
        (b'{"fault": ', 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[]", 400, "must be a JSON object"),
        (b"", 400, "not JSON"),
        (b'"' + b"x" * (2 << 20) + b'"', 400, "larger than"),
    ],
)
def test_a_bad_request_is_explained_and_changes_nothing(client, body, status, said):
    """4xx with what was wrong and what would be right."""
    answer = client.post("/faults", content=body, headers=ACTION)
    assert answer.status_code == status
    assert said in answer.json()["error"]
    assert client.get("/faults").json() == []


def test_an_unknown_id_is_404(client):
    """It says which there are."""
    answer = client.delete("/faults/nope", headers=ACTION)
    assert answer.status_code == 404
    assert answer.json()["error"] == "no active fault has the id 'nope'; no fault is active"
    fault = start(client, fault="straggler").json()
    said = client.delete("/faults/straggler", headers=ACTION).json()["error"]
    assert said.endswith(f"; active are {fault['id']} (straggler on rank 5)")


def test_a_blind_labs_unknown_id_gives_nothing_away(live):
    """Not even that a fault is active."""
    client = TestClient(app(live, blind=True))
    start(client, fault="straggler")
    said = client.delete("/faults/nope", headers=ACTION).json()["error"]
    assert said == "no active fault has the id 'nope'; this lab is blind, and tells nobody which faults are active"


@pytest.mark.parametrize("path", ["/nothing", "/metrics", "/metrics/training/node-0/more"])
def test_an_address_without_a_route_is_404_in_json(client, path):
    """It says where the routes are."""
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"] == f"there is no {path}; docs/http-api.md lists all routes"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/faults", "DELETE, GET, HEAD, POST"),
        ("DELETE", "/status", "GET, HEAD"),
        ("GET", "/faults/stop", "DELETE, POST"),
        ("POST", "/", "GET, HEAD"),
    ],
)
def test_another_method_is_405_in_json(client, method, path, allowed):
    """It names those that the address takes, as the header does."""
    answer = client.request(method, path, headers=ACTION)
    assert answer.status_code == 405
    assert answer.json()["error"] == f"{path} does not take {method}; it takes {allowed}"
    assert answer.headers["allow"] == allowed


def test_another_method_without_the_action_header_stays_refused(client):
    """The guard comes first."""
    assert client.put("/faults").status_code == 403


@pytest.mark.parametrize("headers", [{}, {"Origin": ORIGIN}, {"X-Other": "1"}])
def test_a_change_without_the_action_header_is_refused(client, headers):
    """A foreign page's form cannot send that header."""
    assert client.post("/faults", json={"fault": "straggler"}, headers=headers).status_code == 403
    assert client.delete("/faults", headers=headers).status_code == 403
    assert client.get("/faults").json() == []


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:3001", "http://127.0.0.1:3000.evil", "null",
                                    "http://lab:8000"])  # fmt: skip
def test_a_change_from_another_origin_is_refused(client, origin):
    """Exactly the listed origins, even with the header; not even the host that the request was sent to."""
    answer = client.post("/faults", json={"fault": "straggler"}, headers={**ACTION, "Origin": origin})
    assert answer.status_code == 403
    assert ORIGIN in answer.json()["error"]


@pytest.mark.parametrize("path", ["/faults", "/faults/stop"])
def test_grafanas_button_passes_the_preflight(client, path):
    """OPTIONS with the exact origin, the method and the headers that Grafana's pages send; then the request itself."""
    preflight = client.options(path, headers={
        "Origin": ORIGIN, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,x-grafana-action,x-grafana-device-id"})  # fmt: skip
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "x-grafana-action" in preflight.headers["access-control-allow-headers"]
    headers = {"X-Grafana-Action": "1", "X-Grafana-Device-Id": "d1", "Origin": ORIGIN}
    answer = client.post(path, json={"fault": "straggler"}, headers=headers)
    assert answer.status_code == {"/faults": 201, "/faults/stop": 204}[path]
    assert answer.headers["access-control-allow-origin"] == ORIGIN


def test_a_device_id_alone_changes_nothing(client):
    """Only the action headers say that somebody meant it."""
    assert client.post("/faults", json={"fault": "straggler"}, headers={"X-Grafana-Device-Id": "d1"}).status_code == 403


def test_a_dashboards_button_stops_all_faults(client):
    """By POST: its buttons know no DELETE."""
    client.post("/faults", json={"fault": "straggler"}, headers=ACTION)
    assert client.post("/faults/stop", json={}, headers={"X-Grafana-Action": "1", "Origin": ORIGIN}).status_code == 204
    assert client.get("/faults").json() == []


def test_a_foreign_preflight_fails(client):
    """So a browser never sends what would follow."""
    preflight = client.options(
        "/faults", headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert preflight.status_code == 400
    assert "access-control-allow-origin" not in preflight.headers


def test_the_catalogues_schema_accepts_what_the_api_accepts(client):
    """And refuses what it refuses."""
    catalogue = client.get("/faults/catalogue").json()
    check = jsonschema.Draft202012Validator(catalogue["request_schema"])
    for fault in catalogue["faults"]:
        request = {"fault": fault["name"], "target": fault["default_target"], "severity": fault["severity"]["severe"]}
        check.validate(request)
        assert start(client, **request).status_code == 201
    for bad in (
        {"fault": "straggler", "target": {"rank": 32}},
        {"fault": "straggler", "severity": "fast"},
        {"fault": "x"},
    ):
        assert not check.is_valid(bad)
        assert start(client, **bad).status_code == 422


def test_discovery_lists_one_target_per_node_and_source(client):
    """With the caller's address, and the node label only where the series lack it."""
    targets = client.get("/sd").json()
    assert {target["targets"][0] for target in targets} == {"lab:8000"}
    jobs = [target["labels"]["job"] for target in targets]
    assert {job: jobs.count(job) for job in jobs} == {
        "training": 4,
        "dcgm": 4,
        "node": 4,
        "referee": 1,
        "truth": 1,
        "practice": 1,
    }
    for target in targets:
        labels = target["labels"]
        assert ("node" in labels) == (labels["job"] in ("dcgm", "node"))
        page = client.get(labels["__metrics_path__"])
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_unknown_pages_say_what_there_is(client):
    """404, in plain text."""
    for path in ("/metrics/training/node-9", "/metrics/nothing", "/runbooks/Nothing"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "there are:" in answer.text


def test_the_truth_has_its_own_page(client):
    """And only there do the lab's names appear."""
    start(client, fault="straggler", target={"rank": 7})
    assert 'lab_fault_active{fault="straggler",target="rank 7",severity="1.43"} 1' in client.get("/metrics/truth").text
    for path in ("/metrics/training/node-0", "/metrics/dcgm/node-0", "/metrics/node/node-0", "/metrics/referee"):
        assert "lab_" not in client.get(path).text


def test_blind_mode_tells_nobody(live):
    """No truth page, no fault listed."""
    client = TestClient(app(live, blind=True))
    assert start(client, fault="straggler").status_code == 201
    assert client.get("/faults").json() == []
    assert client.get("/status").json()["faults"] == []
    assert client.get("/metrics/truth").status_code == 404
    assert not any(target["labels"]["job"] == "truth" for target in client.get("/sd").json())


NOTIFICATION = {"alerts": [{"status": "firing", "labels": {"alertname": "A", "run": "demo"}, "annotations": {"summary": "s"},
                            "startsAt": "2026-01-01T00:00:00Z", "endsAt": "0001-01-01T00:00:00Z"}]}  # fmt: skip


def test_alertmanagers_notifications_are_shown(client):
    """Firing until it is resolved."""
    assert client.post("/alerts", json=NOTIFICATION).json() == {"alerts": 1}
    assert [alert["labels"]["alertname"] for alert in client.get("/alerts").json()["firing"]] == ["A"]
    assert client.get("/status").json()["alerts"][0]["annotations"]["summary"] == "s"
    client.post("/alerts", json={"alerts": [{**NOTIFICATION["alerts"][0], "status": "resolved"}]})
    listed = client.get("/alerts").json()
    assert listed["firing"] == []
    assert [alert["status"] for alert in listed["received"]] == ["firing", "resolved"]


@pytest.mark.parametrize(
    "body", [{}, {"alerts": 1}, {"alerts": [{}]}, {"alerts": [{"status": "firing", "labels": {"a": 1}}]}]
)
def test_what_is_no_notification_is_refused(client, body):
    """With its form."""
    answer = client.post("/alerts", json=body)
    assert answer.status_code == 422
    assert "Alertmanager notification" in answer.json()["error"]


def test_the_webhook_takes_json_alone(client):
    """A foreign page's form cannot post that."""
    answer = client.post("/alerts", content=json.dumps(NOTIFICATION), headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    assert answer.json()["error"] == "the content type must be application/json; it was 'text/plain'"
    untyped = client.post("/alerts", content=json.dumps(NOTIFICATION))
    assert untyped.json()["error"] == "the content type must be application/json; there was none"


def test_the_status_reads_like_the_dashboard(client, live):
    """Healthy first; then the straggler is named with its phase."""
    healthy = client.get("/status").json()
    assert 0.36 < healthy["mfu"] < 0.48
    assert healthy["utilization"] > 0.95
    assert healthy["culprit"] is None
    assert sum(healthy["critical_path"].values()) == pytest.approx(1.0)
    live.board.start({"fault": "straggler", "target": {"rank": 17}}, now=NOW)
    for second in range(60):
        live.engine.advance(NOW + second)
        live.recent.sample()
    ill = client.get("/status").json()
    assert ill["mfu"] < 0.8 * healthy["mfu"]
    assert (ill["culprit"]["rank"], ill["culprit"]["phase"]) == (17, "backward")
    live.board.stop_all()
    live.board.start({"fault": "storage_node_slow", "target": {"node": "node-1"}}, now=NOW + 60)
    for second in range(60, 180):
        live.engine.advance(NOW + second)
        live.recent.sample()
    assert client.get("/status").json()["culprit"]["node"] == "node-1"


@pytest.mark.parametrize("blind", [False, True])
def test_the_diagnosis_is_served_listed_and_scraped(live, blind):
    """As JSON, in the status, and as metrics; in blind mode too, for it reads nothing that is hidden there."""
    client = TestClient(app(live, blind=blind, diagnoser=diagnosed(TWO)))
    report = client.get("/diagnosis").json()
    assert [verdict["fault"] for verdict in report["verdicts"]] == ["straggler", "gradient_explosion"]
    assert report["verdicts"][0]["evidence"][0]["shown"] == "27.3 %"
    assert report["verdicts"][1]["evidence"][0]["value"] == "NaN"
    status = client.get("/status").json()
    assert (status["diagnosis"], status["undiagnosed"]) == (report, None)
    [target] = [one for one in client.get("/sd").json() if one["labels"]["job"] == "diagnosis"]
    assert 'target="rank 5"' in client.get(target["labels"]["__metrics_path__"]).text


def test_a_healthy_run_is_said_to_be_healthy(live):
    """With no verdict."""
    report = TestClient(app(live, diagnoser=diagnosed(HEALTHY))).get("/diagnosis").json()
    assert (report["healthy"], report["verdicts"]) == (True, [])


def test_without_a_prometheus_nothing_is_diagnosed(client):
    """404 that says what to give, no diagnosis in the status, and no page."""
    answer = client.get("/diagnosis")
    assert answer.status_code == 404
    assert "--prometheus" in answer.json()["error"]
    status = client.get("/status").json()
    assert (status["diagnosis"], status["undiagnosed"]) == (None, answer.json()["error"])
    assert client.get("/metrics/diagnosis").status_code == 404


def test_a_prometheus_that_does_not_answer_yet_is_no_error_of_the_job(live):
    """503 that says why, an empty page, and a healthy job."""
    source = Prometheus("http://127.0.0.1:1")
    diagnoser = Diagnoser(source, lambda: "cluster", judge=lambda source, run, at: source.query("up", at))
    diagnoser.look()
    client = TestClient(app(live, diagnoser=diagnoser))
    answer = client.get("/diagnosis")
    assert answer.status_code == 503
    assert "no Prometheus answers at http://127.0.0.1:1" in answer.json()["error"]
    assert client.get("/metrics/diagnosis").text == ""
    assert client.get("/healthz").status_code == 200


def test_a_scenario_is_started_whole(client):
    """201 with all its faults; a name that there is not is refused, and during a drill every name is."""
    offered = client.get("/scenarios").json()
    answer = client.post("/scenarios", json={"scenario": "many_small_ones"}, headers=ACTION)
    assert answer.status_code == 201
    wanted = next(one for one in offered if one["name"] == "many_small_ones")["faults"]
    assert [fault["fault"] for fault in client.get("/faults").json()] == [fault["fault"] for fault in wanted]
    refused = client.post("/scenarios", json={"scenario": "rain"}, headers=ACTION)
    assert (refused.status_code, "there are thermal_night" in refused.json()["error"]) == (422, True)
    assert refused.json()["field"] == "scenario"
    assert client.post("/scenarios", json={"scenario": "peak_hours"}).status_code == 403
    client.post("/practice", json={}, headers=ACTION)
    assert client.post("/scenarios", json={"scenario": "peak_hours"}, headers=ACTION).status_code == 409


def test_the_state_tells_what_has_ended(client):
    """For the marks on the console's charts; in blind mode it does not."""
    start(client, fault="straggler")
    client.delete("/faults", headers=ACTION)
    assert [fault["fault"] for fault in client.get("/status").json()["ended_faults"]] == ["straggler"]


def test_runbooks_are_served(client):
    """The alerts' links lead here."""
    assert client.get("/runbooks/TrainingDataStarved").text.startswith("# TrainingDataStarved")


def test_health_tells_when_the_simulation_died(client, live):
    """503 then."""
    assert client.get("/healthz").json() == {"status": "ok"}
    live.failed.set()
    assert client.get("/healthz").status_code == 503
