"""Every fault: injected, seen by its alert and no other that it does not explain, diagnosed with its culprit, resolved.

Alerts are evaluated by promtool at a 5 s scrape; the diagnosis asks a real Prometheus that holds all of it, each fault as
a run of its own. What takes hours in real time takes minutes here. The outcome is printed as a table, and kept in
build/fault-matrix.txt.
"""

import re
from dataclasses import dataclass, field
from statistics import median

import pytest

from past import EPOCH
from pasts import prometheus_of
from replays import MATRIX
from stepscope.diagnosis import Prometheus, diagnose
from stepscope.diagnosis.causes import CAUSES
from stepsim.faults import FAULTS
from stepsim.job import load_job

pytestmark = pytest.mark.prometheus


@dataclass(frozen=True, kw_only=True)
class Case:
    """``within``: seconds within which the alert must fire. ``explained``: alerts that are symptoms of the same cause."""

    alert: str
    within: int
    culprit: dict = field(default_factory=dict)
    explained: frozenset = frozenset()
    target: dict | None = None
    healthy: int = 120
    during: int = 180
    after: int = 180
    job: dict = field(default_factory=dict)


RANK, NODE = {"rank": "17", "node": "node-2"}, {"node": "node-3"}
STRUCK = {"target": {"rank": 17}, "culprit": RANK}
CASES = {
    "straggler": Case(alert="TrainingRankStraggling", within=60, **STRUCK),
    "thermal_throttle": Case(
        alert="TrainingGpuThermalThrottling", within=60, explained=frozenset({"TrainingRankStraggling"}), **STRUCK
    ),
    "power_cap": Case(alert="TrainingGpuPowerCapped", within=60, explained=frozenset({"TrainingRankStraggling"}), **STRUCK),
    "memory_bound": Case(alert="TrainingMemoryBound", within=90),
    "small_batch": Case(alert="TrainingBatchSmall", within=120),
    "sequence_imbalance": Case(alert="TrainingSequencesImbalanced", within=90),
    "jitter": Case(alert="TrainingComputeJitter", within=90),
    "data_starvation": Case(alert="TrainingDataStarved", within=75, after=330),  # it is kept for 3 min
    "storage_node_slow": Case(alert="TrainingNodeStorageSlow", within=75, culprit=NODE),
    "storage_outage": Case(alert="TrainingStorageOutage", within=150, explained=frozenset({"GpuUtilizationLow"})),
    "cpu_starvation": Case(alert="TrainingCpuStarved", within=90, culprit=NODE),
    "pcie_downgrade": Case(
        alert="TrainingGpuLinkDowngraded", within=60, job={"preset": "vision"}, target={"rank": 3},
        culprit={"rank": "3", "node": "node-0"},
    ),
    "network_degradation": Case(alert="TrainingNetworkDegraded", within=90, after=300),  # for 2
    "nccl_fallback": Case(alert="TrainingNcclFallback", within=90),
    # A fault of checkpoints is not there before the next one, here every three minutes and a half.
    "checkpoint_stall": Case(
        alert="TrainingCheckpointStalled", within=300, job={"schedule": {"checkpoint_every_steps": 600}},
        healthy=420, during=320, after=840,
    ),
    "gc_pause": Case(alert="TrainingHostPauses", within=120),
    "hang": Case(alert="TrainingHung", within=90, **STRUCK),
    "gpu_lost": Case(alert="TrainingRankLost", within=60, explained=frozenset({"TrainingHung"}), **STRUCK),
    "gradient_explosion": Case(alert="TrainingGradientExploding", within=15),
    # The loss is compared with what it was five and ten minutes ago.
    "loss_plateau": Case(alert="TrainingLossPlateau", within=480, healthy=900, during=700, after=240),
    "silent_corruption": Case(alert="TrainingGradientCorrupt", within=60, **STRUCK),
}  # fmt: skip


LOOK_ALIKES = {
    "straggler": {"sequence_imbalance", "jitter", "thermal_throttle", "power_cap", "network_degradation"},
    "sequence_imbalance": {"straggler", "jitter"},
    "jitter": {"straggler", "sequence_imbalance"},
    "data_starvation": {"cpu_starvation", "storage_node_slow"},
    "cpu_starvation": {"storage_node_slow", "data_starvation"},
    "network_degradation": {"straggler", "nccl_fallback"},
    "hang": {"gpu_lost", "checkpoint_stall"},
    "checkpoint_stall": {"hang", "storage_outage"},
    "thermal_throttle": {"power_cap"},
    "power_cap": {"thermal_throttle"},
}
"""Told apart by a number each."""


@dataclass(kw_only=True)
class Row:
    """What came of one fault."""

    fault: str
    detected: int | None = None
    culprit: bool = False
    others: str = ""
    resolved: bool = False
    diagnosed: str = ""


@pytest.fixture(scope="module")
def rows():
    """Filled by the tests, in their order."""
    return {name: Row(fault=name) for name in CASES}


@pytest.fixture(scope="module")
def replays(replay):
    """Every fault's job, from its healthy beginning to its healthy end."""
    return {name: _played(replay, name, case) for name, case in CASES.items()}


def _played(replay, name, case):
    job = replay(load_job(**{"preset": "cluster", **case.job, "run": "cluster"}), step=5, everything=True).run(
        case.healthy
    )
    request = {"fault": name} | ({"target": case.target} if case.target else {})
    fault = job.engine.board.start(request, now=job.engine.now)
    job.run(case.during)
    job.engine.board.stop(fault.id)
    return job.run(case.after)


@pytest.mark.parametrize("name", CASES)
def test_a_fault_fires_its_alert_and_no_other(tmp_path, replays, rows, name):
    """In time, with its culprit; and it ends after the fault has ended."""
    case, row = CASES[name], rows[name]
    firings = replays[name].firings(tmp_path)
    row.others = ", ".join(sorted({alert for alert, _ in firings} - {case.alert}))
    own = {labels: seconds for (alert, labels), seconds in firings.items() if alert == case.alert}
    assert len(own) == 1, firings.keys()
    ((labels, seconds),) = own.items()
    row.detected = seconds[0] - case.healthy
    row.culprit = dict(labels).items() >= {**case.culprit, "cause": name, "run": "cluster"}.items()
    row.resolved = seconds[-1] < 5 * (replays[name].scrapes - 1)
    assert row.culprit, dict(labels)
    assert ("rank" in dict(labels)) == ("rank" in case.culprit)
    assert 0 <= row.detected <= case.within
    assert {alert for alert, _ in firings} - case.explained == {case.alert}
    assert row.resolved


@pytest.fixture(scope="module", params=[False, True], ids=["short", "long"])
def prometheus(request, replays, tmp_path_factory):
    """One with all short ones, one with the two long ones: the source, and the runs that it holds."""
    held = {name: one for name, one in replays.items() if (one.scrapes > 150) == request.param}
    with prometheus_of(held, tmp_path_factory.mktemp("runs")) as url:
        yield Prometheus(url), held


def test_each_fault_is_diagnosed_and_nothing_else(prometheus, rows):
    """Class and culprit, with evidence, while it lasts; healthy before it and after it. Its look-alikes are ruled out."""
    source, held = prometheus
    disproven = []
    for name, replay in held.items():
        case, row = CASES[name], rows[name]
        reports = [diagnose(source, name, EPOCH + at) for at in _moments(case, replay)]
        row.diagnosed = "; ".join(f"{one.fault} {one.target}" for one in reports[1].verdicts) or "nothing"
        assert [report.healthy for report in reports] == [True, False, True], row.diagnosed
        (verdict,) = reports[1].verdicts
        assert (verdict.fault, verdict.target) == (name, _target(name, case))
        assert verdict.runbook == case.alert
        assert verdict.confidence >= 0.8
        assert 0 < verdict.lost_gpus <= 32
        assert len(verdict.evidence) > 1
        assert {other.fault for other in verdict.ruled_out} >= LOOK_ALIKES.get(name, set())
        assert {step.wrong for step in reports[1].steps} == {(), (name,)}
        assert not reports[1].suspicions
        own = CAUSES[name].told_from.keys()
        disproven += [(name, one) for one in verdict.ruled_out if one.fault not in own and out_of_band(one.evidence)]
        row.diagnosed = "right"
    assert not disproven


def out_of_band(evidence):
    """Whether a number is on the wrong side of a bound that its band names, such as ``below 15 %``."""
    said = re.match(r"(below|above) (\d+) %", evidence.healthy)
    if not said:
        return False
    beyond = evidence.value - int(said[2]) / 100
    return beyond > 0 if said[1] == "below" else beyond < 0


def _moments(case, replay):
    """Before the fault, late in it, and at the end."""
    return case.healthy - 20, case.healthy + case.during - 10, (replay.scrapes - 1) * replay.step - 10


def _target(name, case):
    if "rank" in case.culprit:
        return {"rank": int(case.culprit["rank"])}
    return {"node": f"{name}.{case.culprit['node']}"} if case.culprit else {"run": True}


def test_the_matrix(rows):
    """All of the catalogue, half of it within a minute; the table is kept, and printed at the end."""
    MATRIX.parent.mkdir(exist_ok=True)
    MATRIX.write_text(_table(rows.values()), encoding="utf-8")
    assert rows.keys() == FAULTS.keys()
    known = [row.detected for row in rows.values() if row.detected is not None]
    if len(known) == len(rows):  # where only some were asked for, there is no median
        assert median(known) < 60


def _table(rows):
    lines = [f"{'fault':<20} {'detected in':>11}  {'culprit':<7}  {'diagnosis':<9}  {'resolved':<8}  other alerts"]
    for row in rows:
        seen = "–" if row.detected is None else f"{row.detected} s"
        lines.append(
            f"{row.fault:<20} {seen:>11}  {_said(row.culprit):<7}  {row.diagnosed:<9}  {_said(row.resolved):<8}  {row.others}"
        )
    return "\n".join(lines) + "\n"


def _said(right):
    return "right" if right else "–"
