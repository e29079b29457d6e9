"""Random incidents: what is drawn, how often, and how it comes onto the board."""

import importlib.util
import logging
import os
import subprocess
import sys
from collections import Counter
from itertools import islice, takewhile
from math import sqrt
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import yaml

from stepsim.board import FaultBoard
from stepsim.engine import Engine
from stepsim.faults import FAULTS
from stepsim.incidents import (
    MOST_AT_ONCE,
    PACES,
    RATES,
    Incident,
    Incidents,
    UnknownPace,
    draw,
    incident_rng,
    log_incident,
    pace_named,
    possible,
)
from stepsim.job import load_job
from stepsim.lab_jobs import SimulatedLab
from stepsim.live import LiveJob

ROOT = Path(__file__).parents[2]
HOUR, EPOCH = 3600.0, 1_700_000_000.0
REALISTIC, ACCELERATED = PACES["realistic"], PACES["accelerated"]
ROWS = {row.fault: row for row in RATES}


def drawn(job, pace, seed=0, attempt=0):
    return draw(job, pace, incident_rng(seed, attempt))


def within(hours, incidents):
    return list(takewhile(lambda incident: incident.begins_seconds < hours * HOUR, incidents))


def an_incident(begins, fault="straggler", target=None, lasts=600.0):
    return Incident(begins_seconds=begins, fault=fault, target=target or {"rank": 3}, severity=FAULTS[fault].severity.plain,
                    duration_seconds=lasts)  # fmt: skip


FAR = an_incident(1e12)


def planned(*incidents, **options):
    return Incidents(iter((*incidents, FAR)), begin=EPOCH, **options)


class Log:
    """A board that remembers what was started on it."""

    def __init__(self, job):
        self.board, self.started = FaultBoard(job), []

    def hear(self, fault):
        self.started.append((fault.started, fault.fault, fault.target, fault.severity, fault.duration_seconds))


def test_every_fault_has_one_row():
    """A new fault needs one; a row without a source is none."""
    assert Counter(row.fault for row in RATES) == Counter(list(FAULTS))
    assert all(row.per_hour > 0 and row.mean_seconds > 0 and row.source for row in RATES)
    assert {row.fault for row in RATES if "no published rate: assumed" in row.source} == {
        "memory_bound", "small_batch", "jitter", "data_starvation", "storage_node_slow", "storage_outage",
        "pcie_downgrade", "checkpoint_stall", "gc_pause", "loss_plateau",
    }  # fmt: skip


def test_the_same_seed_gives_the_same_sequence(cluster):
    """Another seed and another attempt give others; and a sequence is in order of time."""
    first = list(islice(drawn(cluster, REALISTIC, seed=4), 200))
    assert first == list(islice(drawn(cluster, REALISTIC, seed=4), 200))
    for seed, attempt in ((5, 0), (4, 1)):
        assert first[0] != next(drawn(cluster, REALISTIC, seed=seed, attempt=attempt))
    times = [incident.begins_seconds for incident in first]
    assert times == sorted(times)
    assert times[0] > 0


def test_what_is_started_does_not_depend_on_how_often_it_is_asked_for(cluster):
    """Every second, every ten minutes, or once in ten hours; each begins at its own time."""
    said = []
    for step in (1.0, 600.0, 10 * HOUR):
        log = Log(cluster)
        incidents = Incidents(drawn(cluster, ACCELERATED), begin=EPOCH, told=log.hear)
        for moment in np.arange(EPOCH, EPOCH + 10 * HOUR + 1, step):
            incidents.start_due(log.board, float(moment))
            log.board.expire(float(moment))
        said.append(log.started)
    assert 30 < len(said[0]) < 90
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("preset", ["cluster", "large"])
def test_as_many_strike_as_the_table_says(preset):
    """Each fault, and all together, within three standard deviations; they grow with the job as their row says."""
    job, hours = load_job(preset), 20_000
    counts = Counter(incident.fault for incident in within(hours, drawn(job, REALISTIC)))
    size = {"GPU": job.ranks, "node": job.nodes, "job": 1}
    expected = {row.fault: hours * row.per_hour * size[row.of] for row in RATES}
    assert abs(counts.total() - sum(expected.values())) < 3 * sqrt(sum(expected.values()))
    for fault, mean in expected.items():
        assert abs(counts[fault] - mean) <= max(3 * sqrt(mean), 3), fault


def test_the_published_numbers_come_out():
    """Llama 3's 256 lost GPUs on its own cluster in its own 54 days; Greyhound's share of four-node jobs."""
    llama = load_job("cluster", nodes=2048)
    assert ROWS["gpu_lost"].job_per_hour(llama) * 54 * 24 == pytest.approx(256)
    four_nodes = load_job("cluster")
    assert 1 - np.exp(-24 * ROWS["network_degradation"].job_per_hour(four_nodes)) == pytest.approx(43 / 107)
    assert ROWS["network_degradation"].job_mean_seconds(load_job("cluster", nodes=64)) == 72 * 60
    assert ROWS["network_degradation"].job_mean_seconds(four_nodes) == 24 * 60
    assert ROWS["straggler"].job_mean_seconds(load_job("large")) == 10 * 60


@pytest.mark.parametrize("preset", ["laptop", "cluster", "pod", "large"])
def test_accelerated_shows_about_six_an_hour(preset):
    """Drawn, and started on the board, where some find no room; the proportions stay those of the table."""
    job, log = load_job(preset), Log(load_job(preset))
    many = within(300, drawn(job, ACCELERATED))
    assert 5.5 < len(many) / 300 < 6.5
    Incidents(drawn(job, ACCELERATED), begin=EPOCH, told=log.hear).start_due(log.board, EPOCH + 300 * HOUR)
    assert 4 < len(log.started) / 300 < 8
    factor, counts = ACCELERATED.factor(job), Counter(incident.fault for incident in many)
    for row in possible(job):
        mean = 300 * factor * row.job_per_hour(job)
        assert abs(counts[row.fault] - mean) <= max(4 * sqrt(mean), 3), row.fault


@pytest.mark.parametrize("preset", ["laptop", "node", "vision", "cluster"])
def test_a_job_gets_only_faults_that_it_can_have(preset):
    """A single machine has no network, and the laptop nothing to fall back from; every other fault comes."""
    job = load_job(preset)
    board = FaultBoard(job)
    many = within(3000, drawn(job, ACCELERATED))
    assert {incident.fault for incident in many} <= board.faults.keys()
    assert len({incident.fault for incident in many} ^ board.faults.keys()) <= 3  # the rarest need not have come
    assert "network_degradation" in board.faults or job.nodes == 1
    for incident in many[:500]:
        board.check(incident.request(), now=0.0)


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
def test_severities_and_durations_stay_within_their_bounds(cluster, pace):
    """And fill them: both ends of a range are come near to, and the mean duration is its row's, where it is not cut."""
    many = list(islice(drawn(cluster, pace), 4000))
    for fault, row in ROWS.items():
        low, high = sorted(row.range())
        severities = [incident.severity for incident in many if incident.fault == fault]
        assert all(low <= severity <= high for severity in severities), fault
        if len(severities) > 100 and high > low:
            assert min(severities) < low + 0.1 * (high - low), fault
            assert max(severities) > high - 0.25 * (high - low), fault
    durations = [incident.duration_seconds for incident in many]
    assert min(durations) >= pace.shortest_seconds
    assert max(durations) <= pace.longest_seconds
    networks = [incident.duration_seconds for incident in many if incident.fault == "network_degradation"]
    mean = ROWS["network_degradation"].mean_seconds
    assert (np.mean(networks) == pytest.approx(mean, rel=0.1)) == (pace is REALISTIC)


def test_targets_are_drawn_from_all_that_there_are(cluster):
    """Each rank about as often as another; a fault that strikes several kinds of target strikes each."""
    many = within(20_000, drawn(cluster, ACCELERATED))
    ranks = Counter(incident.target["rank"] for incident in many if "rank" in incident.target)
    assert set(ranks) == set(range(32))
    assert max(ranks.values()) < 1.5 * min(ranks.values())
    kinds = {(incident.fault, *incident.target) for incident in many}
    assert kinds >= {("thermal_throttle", "rank"), ("thermal_throttle", "node"), ("network_degradation", "run")}
    assert {incident.target["node"] for incident in many if "node" in incident.target} == {
        f"node-{n}" for n in range(4)
    }


def test_what_is_active_is_neither_replaced_nor_doubled(cluster):
    """An incident that meets its like is left out, and so is one that would be one too many; later ones come."""
    log = Log(cluster)
    mine = log.board.start({"fault": "straggler", "target": {"rank": 3}, "severity": 2}, now=EPOCH)
    ranks = [an_incident(20.0 + rank, target={"rank": rank}) for rank in range(10, 15)]
    planned(an_incident(10.0), *ranks, an_incident(700.0, "jitter", {"run": True}), told=log.hear).start_due(
        log.board, EPOCH + 800
    )
    assert mine in log.board.active()
    assert [began - EPOCH for began, *_ in log.started] == [30.0, 31.0, 700.0]
    assert MOST_AT_ONCE == 3


def test_an_hour_with_the_engine_starts_and_ends_several(cluster):
    """Never too many at once, each at the time that was drawn; and the job goes on training."""
    log = Log(cluster)
    engine = Engine(cluster, log.board, seed=1, now=EPOCH,
                    incidents=Incidents(drawn(cluster, ACCELERATED), begin=EPOCH, told=log.hear))  # fmt: skip
    most = 0
    for moment in np.arange(EPOCH + 20, EPOCH + HOUR + 1, 20):
        engine.advance(float(moment))
        most = max(most, len(log.board.active()))
    ended = [began for began, *_, lasts in log.started if began + lasts < EPOCH + HOUR]
    assert len(log.started) >= 3
    assert len(ended) >= 2
    assert 1 <= most <= MOST_AT_ONCE
    assert {fault.started for fault in log.board.active()} == {began for began, *_ in log.started} - set(ended)
    assert engine.totals.steps > 2000


def test_an_incident_strikes_the_engine_as_any_fault_does(cluster):
    """Also one that stops the training, which goes on once it is over."""
    engine = Engine(cluster, FaultBoard(cluster), seed=1, now=EPOCH,
                    incidents=planned(an_incident(30.0, "hang", lasts=120.0)))  # fmt: skip
    engine.advance(EPOCH + 35)
    (hang,) = engine.board.active()
    assert hang.started == EPOCH + 30
    steps = engine.totals.steps
    engine.advance(EPOCH + 149)
    assert engine.totals.steps == steps
    engine.advance(EPOCH + 180)
    assert engine.totals.steps > steps + 50
    assert engine.board.active() == []


@pytest.mark.parametrize("jump", [3 * HOUR, -3 * HOUR])
def test_a_clock_that_jumped_makes_no_heap_of_incidents(cluster, jump):
    """Those to come move with the job's time: none is lost, and none is made up."""
    now = [EPOCH]
    live = LiveJob(cluster, clock=lambda: now[0], incidents=ACCELERATED)
    live.engine.incidents = planned(an_incident(50.0), an_incident(200.0, "jitter", {"run": True}))
    for moment in (EPOCH + 60, EPOCH + jump + 60, EPOCH + jump + 150, EPOCH + jump + 210):
        now[0] = moment
        live._keep_up()
    begun = {fault.fault: fault.started for fault in live.board.active()}
    assert begun["jitter"] == pytest.approx(EPOCH + jump + 200)


def test_a_fault_left_in_the_future_by_a_clock_that_was_set_back_is_in_nobodys_way(cluster):
    """Its like may strike now."""
    log = Log(cluster)
    log.board.start({"fault": "straggler", "target": {"rank": 3}, "duration": 600}, now=EPOCH + HOUR)
    planned(an_incident(10.0), told=log.hear).start_due(log.board, EPOCH + 20)
    assert [began for began, *_ in log.started] == [EPOCH + 10]


def test_a_restart_keeps_what_is_active_and_draws_anew(tmp_path, cluster):
    """The incident ends when it would have; another attempt has another sequence."""
    file, now = tmp_path / "state.json", [EPOCH]
    options = {"state_file": file, "clock": lambda: now[0], "incidents": ACCELERATED, "seed": 3}
    first = LiveJob(cluster, **options)
    first._save()
    drawn_first, first.engine.incidents = first.engine.incidents.usual._next, planned(an_incident(50.0))
    now[0] = EPOCH + 60
    first._keep_up()
    (kept,) = first.board.active()
    again = LiveJob(cluster, **options)
    assert again.board.active() == [kept]
    assert again.engine.attempt == 1
    assert again.engine.incidents.usual._next != drawn_first
    assert again.engine.incidents.usual._next == next(drawn(cluster, ACCELERATED, seed=3, attempt=1))
    again.engine.incidents = planned(an_incident(5.0), FAR)
    now[0] = EPOCH + 90
    again._keep_up()
    assert again.board.active() == [kept]


@pytest.mark.parametrize("blind", [False, True])
def test_the_log_names_an_incident_unless_the_lab_is_blind(cluster, caplog, blind):
    """At INFO, when it starts."""
    caplog.set_level(logging.DEBUG)
    now = [EPOCH]
    live = LiveJob(cluster, clock=lambda: now[0], incidents=ACCELERATED, blind=blind)
    while not live.board.active():
        now[0] += 60
        live._keep_up()
    (fault, *_) = live.board.active()
    assert (fault.fault in caplog.text) == (not blind)


def test_the_log_line_says_what_strikes_how_hard_and_for_how_long(cluster, caplog):
    """One line, at INFO."""
    caplog.set_level(logging.DEBUG)
    log_incident(FaultBoard(cluster).start(an_incident(0.0).request(), EPOCH))
    assert caplog.records[-1].getMessage() == "an incident: straggler on rank 3, severity 1.43, for 10.0 min"
    assert caplog.records[-1].levelno == logging.INFO


def test_without_a_pace_nothing_strikes(cluster):
    """Nor with an empty word, as compose passes it; any other word is refused with those that there are."""
    assert (pace_named(None), pace_named("")) == (None, None)
    assert LiveJob(cluster, clock=lambda: EPOCH).engine.incidents.usual is None
    assert pace_named("accelerated") is ACCELERATED
    with pytest.raises(UnknownPace, match="unknown incidents 'often'; there are realistic and accelerated"):
        pace_named("often")


@pytest.mark.parametrize("command", ["simulate", "lab"])
def test_another_word_is_refused_by_both_commands(command):
    """With exit status 2, before anything is started; from the environment, too."""
    for arguments, environment in ((["--incidents", "often"], {}), ([], {"INCIDENTS": "often"})):
        done = subprocess.run(
            [sys.executable, "-m", "stepsim", command, *arguments], env={**os.environ, "COLUMNS": "300", **environment},
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert "unknown incidents 'often'; there are realistic and accelerated" in done.stderr


@pytest.mark.parametrize("pace", ["accelerated", None])
def test_the_lab_passes_the_pace_on(tmp_path, pace):
    """To the simulator that it starts; compose does so by the environment."""
    lab = Mock(ports={"simulator": 8000, "prometheus": 9090, "alertmanager": 9093}, folder=tmp_path)
    SimulatedLab(preset="node", job_file=None, seed=0, grafana_port=3000, with_history=False, incidents=pace).start(lab)
    words = [str(word) for word in lab.start.call_args.args[1]]
    assert ("--incidents" in words) == bool(pace)
    assert pace is None or words[words.index("--incidents") + 1] == pace
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert compose["services"]["simulator"]["environment"]["INCIDENTS"] == "${INCIDENTS:-}"


def test_the_documentation_has_the_table_that_is_drawn_from():
    """``make generate`` changes nothing."""
    script = ROOT / "docs/incidents.py"
    spec = importlib.util.spec_from_file_location("incidents_script", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert script.with_suffix(".md").read_text(encoding="utf-8") == module.page()
