"""What the panels show, on a real Prometheus: data in health, within limits, and movement with each fault."""

import math
import re

import pytest

from dashboard_files import ALTERNATIVES, BY_NAME, EMPTY_IN_HEALTH
from past import prometheus_with
from queries import shown
from stepsim.job import load_job

pytestmark = pytest.mark.prometheus

LINES, ROWS = 50, 256
"""At most, in a graph and in any other panel."""
ALL_RANKS_AND_PHASES = 256 * 10
"""Parts of stacked bars: rows of a table that becomes one."""

MINUTES, HEALTHY_AT = 64, 13.0
INCIDENTS = [
    ("straggler", 14, 6), ("data_starvation", 24, 6), ("storage_node_slow", 34, 6), ("storage_outage", 44, 6),
    ("gradient_explosion", 54, 3),
]  # fmt: skip
AT = {fault: begins + lasts - 0.5 for fault, begins, lasts in INCIDENTS}


MOVED_AT = 30
"""The minute at which a rank of the sick run goes on in another process."""


def trouble():
    """What the simulator never does: a run with two GPUs, of which one fails in every way that a panel knows, and whose
    process moves; and a run on CPUs, without UUIDs and without a referee. And what a diagnosis said of each: nobody asks for
    one in a generated past."""
    sick = 'run="broken",node="sick",rank="0"'
    for second in range(15, MINUTES * 60, 15):
        process = f'instance="{"a" if second < 60 * MOVED_AT else "b"}"'
        lines = [
            f'training_rank_info{{{sick},UUID="GPU-0",{process}}} 1',
            'training_rank_info{run="broken",node="sick",rank="1",UUID="GPU-1"} 1',
            f"training_steps_total{{{sick},{process}}} {second}",
            f"stepscope_step_overhead_seconds_total{{{sick},{process}}} {20e-6 * second:g}",
            f'stepscope_errors_total{{{sick},{process},part="referee"}} {second // 60}',
            f'training_loss{{run="broken",{process}}} 3',
            f'training_gradient_norm{{run="broken",{process}}} 0.3',
            f'training_learning_rate{{run="broken",{process}}} 0.001',
            f'training_gradient_clipped_total{{run="broken",{process}}} {second // 30}',
            'stepscope_collector_duration_seconds{instance="sick",collector="nvml"} 0.02',
            'stepscope_collector_success{instance="sick",collector="nvml"} 0',
            'up{job="dcgm",instance="sick"} 0',
            'up{job="truth",instance="lab"} 1',
            'scrape_duration_seconds{job="dcgm",instance="well"} 0.01',
            'scrape_samples_scraped{job="dcgm",instance="well"} 200',
            'prometheus_tsdb_head_series{job="prometheus"} 5000',
            'prometheus_rule_group_last_duration_seconds{rule_group="recording.yml;training"} 0.03',
            'DCGM_FI_DEV_XID_ERRORS{UUID="GPU-0"} 79',
            'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{UUID="GPU-0"} 64',
            'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{UUID="GPU-1"} 4',
            'DCGM_FI_DEV_PCIE_LINK_WIDTH{UUID="GPU-0"} 8',
            'DCGM_FI_DEV_PCIE_LINK_WIDTH{UUID="GPU-1"} 16',
            'DCGM_FI_DEV_PCIE_LINK_GEN{UUID="GPU-0"} 3',
            'DCGM_FI_DEV_PCIE_LINK_GEN{UUID="GPU-1"} 5',
        ]
        finding = 'run="broken",fault="straggler",target="rank 0",runbook="TrainingRankStraggling"'
        lines += [
            'stepscope_diagnosis_healthy{run="cluster"} 1',
            f"stepscope_diagnosis_lost_gpus{{{finding}}} 0.3",
            f"stepscope_diagnosis_confidence_ratio{{{finding}}} 0.9",
            'stepscope_diagnosis_healthy{run="broken"} 0',
            *(f'stepscope_diagnosis_timestamp_seconds{{run="{run}"}} {second}' for run in ("cluster", "broken", "cpu")),
        ]
        for rank in ("0", "1"):
            on_cpu = f'run="cpu",node="c",rank="{rank}"'
            lines += [
                f'training_rank_info{{{on_cpu},backend="gloo"}} 1',
                f"training_steps_total{{{on_cpu}}} {second}",
                *(f'training_phase_seconds_total{{{on_cpu},phase="{phase}"}} {second * share:g}'
                  for phase, share in (("forward", 0.3), ("backward", 0.5), ("allreduce", 0.2))),
                f"training_allreduce_floor_seconds{{{on_cpu}}} 0.05",
            ]  # fmt: skip
        lines += [] if second < PRACTISED_FROM * 60 else practised()
        yield from (f"{line} {second}" for line in lines)


PRACTISED_FROM = 58
"""The minute from which on there was a blind drill, and rules of one's own."""


def practised():
    """Of every run: a lab has one job."""
    yield 'ALERTS{alertname="Mine",alertstate="firing",practice="yes"} 1'
    yield 'lab_practice_rules{version="1"} 2'
    yield "lab_practice_running 0"
    yield "lab_practice_score 61.5"
    yield "lab_practice_false_alarms 1"
    for part, share in (("recall", 0.5), ("precision", 0.5), ("delay", 0.4), ("culprit", 0.3), ("reset", 0.2)):
        yield f'lab_practice_part_ratio{{part="{part}"}} {share}'
    for number, told in (("1", 'alert="Mine",delay_seconds="30",culprit="1",verdict="told"'),
                         ("2", 'alert="",delay_seconds="",culprit="0",verdict="missed"')):  # fmt: skip
        yield f'lab_practice_incident_info{{number="{number}",fault="straggler",target="rank 3",{told}}} 1'


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    """An hour of the default job with every fault, one after the other: URL, and the time of a minute."""
    with pytest.MonkeyPatch.context() as patch, prometheus_with(
        load_job("cluster"), tmp_path_factory.mktemp("past"), minutes=MINUTES, incidents=INCIDENTS,
        further="\n".join(trouble()), monkeypatch=patch,
    ) as (url, began):  # fmt: skip
        yield url, lambda minute: began + 60 * minute


every_panel = pytest.mark.parametrize("name", BY_NAME)


@every_panel
def test_a_panel_has_data_in_health(past, name):
    """Every query returns series with names, finite, and no more than can be read; what is empty by nature says so."""
    url, minute = past
    panel = BY_NAME[name]
    found = shown(url, panel, minute(HEALTHY_AT), rank="17")
    if name in EMPTY_IN_HEALTH:
        assert panel["fieldConfig"]["defaults"]["noValue"]
        return
    assert any(found) if name in ALTERNATIVES else all(found)
    for series in (series for query in found for series in query):
        assert series.legend == "__auto" or series.legend.strip(), series.labels
        assert all(map(math.isfinite, series.values)), series


@pytest.mark.parametrize("name", EMPTY_IN_HEALTH)
def test_a_panel_that_is_empty_in_health_shows_its_trouble(past, name):
    """Empty when all is well; with the fault that it is there for, not."""
    url, minute = past
    cause = EMPTY_IN_HEALTH[name]
    run = "broken" if cause == "trouble" else "cluster"
    assert any(shown(url, BY_NAME[name], minute(AT.get(cause, 60)), run=run, rank="0"))
    if not name.startswith("exporter"):  # where it is of all runs
        assert not any(shown(url, BY_NAME[name], minute(HEALTHY_AT), run="cluster"))


@every_panel
@pytest.mark.parametrize(("run", "at"), [("broken", MOVED_AT + 0.6), ("cpu", 60), ("nobody", 60)])
def test_no_query_fails_for_a_job_that_lacks_something(past, name, run, at):
    """A rank that moved to another process a moment ago, a job without GPUs and referee, a run that does not exist."""
    url, minute = past
    shown(url, BY_NAME[name], minute(at), run=run)


def test_a_job_without_gpus_leaves_those_of_others_alone(past):
    """Its ranks have no UUID, all the same one: they must match nothing."""
    url, minute = past
    for run, utilization in (("cluster", 0.99), ("cpu", None)):
        found = last_values(url, BY_NAME[UTILIZATION], minute(HEALTHY_AT), run=run)
        assert found.get("GPU utilization") == (utilization and pytest.approx(utilization, abs=0.02))


def test_nobody_is_acquitted_without_a_referee(past):
    """In place of "no single culprit" the panel says that nobody looked; what is known of the step is all there."""
    url, minute = past
    assert last_values(url, BY_NAME["mirage: Who holds everyone up"], minute(60), run="cpu") == {}
    step = last_values(url, BY_NAME[MEAN_RANK], minute(60), run="cpu")
    assert step.keys() == {"forward", "backward", "allreduce"}
    assert sum(step.values()) == pytest.approx(1.0, rel=0.02)  # seconds per step


def test_a_fault_that_nobody_noticed_scores_nothing(past):
    """Right after its start: 0 of the fault's minutes were caught, which is not the same as that no fault was on."""
    url, minute = past
    begins = next(begins for fault, begins, _ in INCIDENTS if fault == "straggler")
    caught = last_values(url, BY_NAME["practice: Fault minutes that were caught"], minute(begins + 0.4))
    assert caught == {"caught": 0}


def limit(panel):
    if panel["type"] == "timeseries":
        return LINES
    return ALL_RANKS_AND_PHASES if panel["type"] == "barchart" else ROWS


def drawn(panel, queries):
    """Lines, bars or rows: a table's queries are its columns."""
    return (max if panel["type"] == "table" else sum)(map(len, queries))


@every_panel
@pytest.mark.parametrize("fault", AT)
def test_a_panel_stays_readable_with_a_fault(past, name, fault):
    """No more lines, rows or bars than the limits."""
    url, minute = past
    panel = BY_NAME[name]
    assert drawn(panel, shown(url, panel, minute(AT[fault]), rank="17")) <= limit(panel)


def struck(past, fault):
    """The number of the rank or node that the lab chose, from its own truth."""
    url, minute = past
    [[truth]] = shown(url, TRUTH, minute(AT[fault]))
    return truth.legend.split()[-1].removeprefix("node-")


TRUTH = {"targets": [{"expr": "lab_fault_active > 0", "instant": True, "legendFormat": "{{target}}"}]}


def last_values(url, panel, at, **variables):
    """Legend → last value, of all of the panel's queries together."""
    return {one.legend: one.values[-1] for query in shown(url, panel, at, **variables) for one in query}


def moments(fault):
    """Minutes at which to look. Storage that stands still 10 s of every 30 shows by turns in windows of a minute."""
    return [AT[fault] - before for before in ((0, 0.25, 0.5, 0.75) if fault == "storage_outage" else (0,))]


def falls(to):
    return lambda healthy, faulty: faulty < to * healthy


def rises(to):
    return lambda healthy, faulty: faulty > to * healthy


def stays(within):
    return lambda healthy, faulty: abs(faulty - healthy) < within * abs(healthy)


def reaches(value):
    return lambda healthy, faulty: healthy < value / 2 and faulty > value


UTILIZATION, MFU = "mirage: GPU utilization", "mirage: MFU"
LOST, STEP = "mirage: GPUs lost (of $ranks)", "mirage: Step"
PATH, EATING = "mirage: What the step waits for: the critical path by phase", "mirage: GPUs lost, by phase"
MEAN_RANK = "step: What the average rank does"
BUSY = "gpus: Busy, on four scales (nodes: ${node:text})"
TENSOR, RESIDENT = "tensor cores active", "a kernel is resident (utilization)"
LATE = "ranks: Time lost to lateness"
COSTLY = [
    (MFU, "MFU", falls(0.8)), (STEP, "step", rises(1.2)), (LOST, "GPUs lost", reaches(5)),
    ("mirage: Useful share of the step", "useful", falls(0.8)), (BUSY, TENSOR, falls(0.8)),
    ("step: Useful", "useful", falls(0.8)), ("cost: Share lost now", "lost", reaches(0.15)),
    ("cost: Efficiency against the run's own best", "efficiency", falls(0.85)),
    ("cost: Tokens per GPU-hour", "tokens per GPU-hour", falls(0.8)),
    ("learning: Tokens per second", "tokens per second", falls(0.8)),
    ("gpus: Power", "median", falls(0.95)), ("learning: Learning rate", "learning rate", stays(0.01)),
]  # fmt: skip
MASKED = [(UTILIZATION, "GPU utilization", stays(0.03)), (BUSY, RESIDENT, stays(0.03))]
MOVES = {
    "straggler": [
        *COSTLY, *MASKED,
        (EATING, "backward", reaches(4)), (MEAN_RANK, "waiting", rises(3)), (MEAN_RANK, "backward", stays(0.05)),
        ("step: What the step waits for: the critical path", "backward", rises(1.3)),
        ("step: Waiting for others", "waiting", rises(3)), (LATE, "late", reaches(0.2)),
        ("ranks: Share of lateness held by one rank", "of all late seconds", reaches(0.9)),
        ("ranks: Compute, against the median rank", "{rank}", reaches(30)),
        ("ranks: Lag: arriving later than the median", "{rank}", reaches(20)),
        ("ranks: The spread of compute", "highest", rises(1.3)), ("ranks: The spread of compute", "median", stays(0.05)),
        ("ranks: The spread of compute", "rank {rank}", rises(1.3)), ("step: Step, mean", "step", rises(1.2)),
        ("gpus: The same: rank $rank", "SM active", stays(0.1)), (BUSY, "SM active", falls(0.9)),
        ("step: Transfer against its floor", "transfer", stays(0.2)),
    ],
    "data_starvation": [
        *COSTLY, *MASKED,
        (PATH, "data_wait", reaches(0.3)), (EATING, "data_wait", reaches(5)), (LATE, "late", reaches(0.2)),
        ("mirage: Busy is not useful: GPU utilization against MFU", "data wait on the critical path", reaches(0.3)),
        (MEAN_RANK, "waiting", rises(5)), ("gpus: Read latency", "worst node", rises(1.2)),
        ("gpus: CPU by mode", "user", falls(0.9)), ("step: Step, p99", "p99", rises(2)),
        ("cost: GPUs lost, by phase", "data_wait", reaches(5)),
    ],
    "storage_node_slow": [
        *COSTLY, *MASKED,
        (PATH, "data_wait", reaches(0.2)), (EATING, "data_wait", reaches(5)),
        ("gpus: Read latency", "worst node", rises(2)), ("gpus: Read latency", "median node", stays(0.2)),
    ],
    "storage_outage": [
        *COSTLY,
        (UTILIZATION, "GPU utilization", falls(0.9)), (BUSY, RESIDENT, falls(0.9)),
        (MEAN_RANK, "data_wait", reaches(0.05)), (PATH, "data_wait", reaches(0.1)),
    ],
    "gradient_explosion": [
        *MASKED, (MFU, "MFU", stays(0.12)), (STEP, "step", stays(0.12)),
        ("learning: Steps with NaN or infinite values", "steps", reaches(10)),
        ("learning: Steps in trouble", "not finite", reaches(0.5)),
    ],
}  # fmt: skip
NAMED = {
    "straggler": r"rank {} on node-\d: backward", "data_starvation": "no single culprit",
    "storage_node_slow": "node-{}: data_wait", "gradient_explosion": "no single culprit",
}  # fmt: skip
ALERT = {
    "straggler": "TrainingRankStraggling", "data_starvation": "TrainingDataStarved",
    "storage_node_slow": "TrainingNodeStorageSlow", "storage_outage": "TrainingStorageOutage",
    "gradient_explosion": "TrainingGradientExploding",
}  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "name", "legend", "moved"), [(f, *move) for f, moves in MOVES.items() for move in moves]
)
def test_a_panel_moves_with_the_fault_or_stays_where_it_hides_it(past, fault, name, legend, moved):
    """Against its value in health, by as much as the physics says, with room."""
    url, minute = past
    rank = struck(past, fault)
    legend = legend.format(rank=rank)
    [healthy, *faulty] = (
        last_values(url, BY_NAME[name], minute(at), rank=rank)[legend] for at in (HEALTHY_AT, *moments(fault))
    )
    assert any(moved(healthy, value) for value in faulty), (healthy, faulty)


@pytest.mark.parametrize("board", ["mirage", "ranks"])
@pytest.mark.parametrize("fault", NAMED)
def test_the_verdict_is_one_line(past, board, fault):
    """Rank, or node, and phase; or that there is no single culprit."""
    url, minute = past
    [said] = last_values(url, BY_NAME[f"{board}: Who holds everyone up"], minute(AT[fault]))
    assert re.fullmatch(NAMED[fault].format(struck(past, fault)), said)


@pytest.mark.parametrize("fault", ALERT)
def test_the_alert_is_listed_beside_the_truth(past, fault):
    """On the home dashboard, and on the timeline of the practice dashboard next to the fault."""
    url, minute = past
    firing, faults, timeline = set(), set(), set()
    for at in map(minute, moments(fault)):
        [rows] = shown(url, BY_NAME["mirage: Alerts firing"], at)
        truth, alerts = shown(url, BY_NAME["practice: The truth, and below it what the rules say"], at)
        for found, label, series in (
            (firing, "alertname", rows),
            (faults, "fault", truth),
            (timeline, "alertname", alerts),
        ):
            found |= {one.labels[label] for one in series}
    assert ALERT[fault] in firing & timeline
    assert fault in faults


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("cluster", [{"nothing is wrong"}]),
        ("broken", [{"straggler"}, {"straggler"}]),
        ("cpu", [{"not enough data"}]),
        ("nobody", []),
    ],
)
def test_the_diagnosis_is_a_finding_or_says_why_there_is_none(past, run, said):
    """Nothing is wrong, something is, it cannot be told; and nobody is acquitted where nobody looked."""
    url, minute = past
    found = shown(url, BY_NAME["mirage: Diagnosis"], minute(60), run=run)
    assert [{row.labels["fault"] for row in rows} for rows in found if rows] == said


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Three minutes of 1,024 GPUs: URL, and when they end."""
    with pytest.MonkeyPatch.context() as patch, prometheus_with(
        load_job("large"), tmp_path_factory.mktemp("large"), minutes=3, monkeypatch=patch
    ) as (url, began):  # fmt: skip
        yield url, began + 180


@every_panel
def test_a_panel_stays_readable_with_1024_gpus(large, name):
    """Deviation and the worst ten in place of every rank."""
    url, at = large
    assert drawn(BY_NAME[name], shown(url, BY_NAME[name], at, run="large", rank="17")) <= limit(BY_NAME[name])


@pytest.mark.parametrize(
    "name", ["Compute, against the median rank", "Waiting for the others", "Lag: arriving later than the median"]
)
def test_a_large_job_shows_its_worst_ten(large, name):
    """The same ten in each picture."""
    url, at = large
    [rows] = shown(url, BY_NAME[f"ranks: {name}"], at, run="large")
    [lags] = shown(url, BY_NAME["ranks: Lag: arriving later than the median"], at, run="large")
    assert len(rows) == 10
    assert {row.legend for row in rows} == {row.legend for row in lags}


def test_ranks_are_drawn_in_numeric_order(past):
    """From 0 upwards: Prometheus alone would put 10 before 2."""
    url, minute = past
    [rows] = shown(url, BY_NAME["ranks: Compute, against the median rank"], minute(HEALTHY_AT))
    assert [row.legend for row in rows] == [str(rank) for rank in range(32)]


def test_the_price_is_multiplied_and_empty_without_one(past):
    """Money appears only where somebody typed a price."""
    url, minute = past
    panel, at = BY_NAME["mirage: Cost of the loss per day"], minute(AT["straggler"])
    lost = last_values(url, BY_NAME[LOST], at)["GPUs lost"]
    assert last_values(url, panel, at, price="2.5")["per day"] == pytest.approx(lost * 24 * 2.5)
    assert last_values(url, panel, at, price="") == {}
