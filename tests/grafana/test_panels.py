"""What the panels show, on a real Prometheus: data in health, within limits, and movement with each fault."""

import math
import re
from contextlib import contextmanager

import pytest

from dashboard_files import ALTERNATIVES, BY_NAME, DASHBOARDS, EMPTY_IN_HEALTH
from past import prometheus_with
from queries import shown
from stepsim.job import load_job

pytestmark = pytest.mark.prometheus

LINES, ROWS = 50, 256
"""At most, in a graph and in any other panel."""
ALL_RANKS_AND_PHASES = 256 * 10
"""Parts of stacked bars: rows of a table that becomes one."""

MINUTES = {"cluster": 64, "node": 42}
"""Of each job's past."""
INCIDENTS = {
    "cluster": [("straggler", 14, 6), ("data_starvation", 24, 6), ("storage_node_slow", 34, 6), ("storage_outage", 44, 6),
                ("gradient_explosion", 54, 3)],
    "node": [("power_cap", 6, 4), ("nccl_fallback", 14, 4), ("small_batch", 22, 3), ("hang", 29, 3), ("gpu_lost", 36, 4)],
}  # fmt: skip
"""The job's faults, in the order of time: those of a single GPU or node are as well seen in a job of eight ranks, which
costs a quarter."""
HEALTHY_AT = {"cluster": 13.0, "node": 5.0}
JOB_OF = {fault: job for job, incidents in INCIDENTS.items() for fault, _, _ in incidents}
AT = {fault: begins + lasts - 0.5 for incidents in INCIDENTS.values() for fault, begins, lasts in incidents}
ENDED_AT = MINUTES["cluster"] + 10
"""All jobs have ended ten minutes ago."""


MOVED_AT = 30
"""The minute at which a rank of the sick run goes on in another process."""


def trouble():
    """What the simulator never does: a run with two GPUs, of which one fails in every way that a panel knows, and whose
    process moves; a run on CPUs, without UUIDs and without a referee, whose loop tells nothing; a run that has put both its
    ranks on one GPU. What a diagnosis said of each: nobody asks for one in a generated past. And scrapes: nobody scrapes
    one."""
    sick = 'run="broken",node="sick",rank="0"'
    for second in range(15, MINUTES["cluster"] * 60, 15):
        process = f'instance="{"a" if second < 60 * MOVED_AT else "b"}"'
        lines = [
            f'training_rank_info{{{sick},UUID="GPU-0",strategy="fsdp",{process}}} 1',
            'training_rank_info{run="broken",node="sick",rank="1",UUID="GPU-1",strategy="fsdp"} 1',
            f'training_memory_bytes{{{sick},kind="gradients"}} 1000000',
            'stepscope_build_info{run="broken",node="sick",job="stepscope",instance="sick"} 1',
            f"training_steps_total{{{sick},{process}}} {second}",
            f"stepscope_step_overhead_seconds_total{{{sick},{process}}} {20e-6 * second:g}",
            f'stepscope_errors_total{{{sick},{process},part="referee"}} {second // 60}',
            f'training_loss{{run="broken",{process}}} 3',
            f'training_gradient_norm{{run="broken",{process}}} 0.3',
            f'training_learning_rate{{run="broken",{process}}} 0.001',
            f'training_gradient_clipped_total{{run="broken",{process}}} {second // 30}',
            'stepscope_collector_duration_seconds{job="stepscope",instance="sick",collector="nvml"} 0.02',
            'stepscope_collector_success{job="stepscope",instance="sick",collector="nvml"} 0',
            'up{job="truth",instance="lab"} 1',
            *(f"up{{{target}}} {up}" for target, up in SCRAPED.items()),
            *(f"scrape_duration_seconds{{{target}}} 0.01" for target in SCRAPED),
            *(f"scrape_samples_scraped{{{target}}} 200" for target in SCRAPED),
            'prometheus_tsdb_head_series{job="prometheus"} 5000',
            'prometheus_rule_group_last_duration_seconds{rule_group="recording.yml;training"} 0.03',
            'prometheus_rule_group_last_duration_seconds{rule_group="kubelet.yml;kubelet"} 3',
            'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-0",job="dcgm",instance="sick"} 99',
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
                f"training_tokens_total{{{on_cpu}}} 0",
                *(f'training_phase_seconds_total{{{on_cpu},phase="{phase}"}} {second * share:g}'
                  for phase, share in (("forward", 0.3), ("backward", 0.5), ("allreduce", 0.2))),
                f"training_allreduce_floor_seconds{{{on_cpu}}} 0.05",
                # Not 1 of both: the rule that chooses would choose by chance, another one each time, and without staleness
                # markers both would be there.
                f'training_rank_info{{run="shared",node="s",rank="{rank}",UUID="GPU-S"}} {rank}',
                f'training_steps_total{{run="shared",node="s",rank="{rank}"}} {second}',
            ]  # fmt: skip
        lines += [
            *(f'training_{name}_total{{run="{run}"}} 0' for run in ("broken", "cpu") for name in
              ("nonfinite_steps", "gradient_out_of_band")),
            *(f'DCGM_FI_DEV_{name}{{UUID="GPU-S"}} {value}' for name, value in
              (("GPU_UTIL", 99), ("XID_ERRORS", 31), ("CLOCK_THROTTLE_REASONS", 64), ("PCIE_LINK_WIDTH", 8))),
        ]  # fmt: skip
        lines += [f'training_steps_total{{run="before-9",node="a",rank="0"}} {second}'] if second < 60 * BEFORE else []
        lines += [f'training_steps_total{{run="before-10",node="a",rank="0"}} {second}'] if second > 60 * BEFORE else []
        lines += [] if second < PRACTISED_FROM * 60 else practised()
        yield from (f"{line} {second}" for line in lines)


BEFORE = 50
"""The minute at which a run ended, and another one began."""
SCRAPED = {
    **{f'job="{job}",instance="{instance}"': 1 for job, instance in
       (("training", "node-0"), ("dcgm", "node-0"), ("node", "node-0"), ("referee", "referee"), ("stepscope", "sick"))},
    'job="dcgm",instance="sick"': 0,
    'job="dcgm",instance="of somebody else"': 0,
    'job="kubelet",instance="node-0"': 0,
}  # fmt: skip
"""Targets, as a generated past labels them, and those of others; whether each is up."""
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


@contextmanager
def playing(job, folder, further=""):
    with pytest.MonkeyPatch.context() as patch, prometheus_with(
        load_job(job), folder, minutes=MINUTES[job], incidents=INCIDENTS[job], further=further, monkeypatch=patch
    ) as (url, began):  # fmt: skip
        yield url, lambda minute: began + 60 * minute


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    """An hour of the default job with its faults, one after the other, and trouble: URL, and the time of a minute."""
    with playing("cluster", tmp_path_factory.mktemp("past"), "\n".join(trouble())) as made:
        yield made


@pytest.fixture(scope="module")
def past_of_node(tmp_path_factory):
    """The same of a job of one node, without trouble."""
    with playing("node", tmp_path_factory.mktemp("node")) as made:
        yield made


@pytest.fixture
def played(request):
    """Of a fault: URL, the time of a minute, and the job that it strikes."""

    def find(fault):
        job = JOB_OF[fault]
        return *request.getfixturevalue({"cluster": "past", "node": "past_of_node"}[job]), job

    return find


every_panel = pytest.mark.parametrize("name", BY_NAME)


@every_panel
def test_a_panel_has_data_in_health(past, name):
    """Every query returns series with names, finite, and no more than can be read; what is empty by nature says so."""
    url, minute = past
    panel = BY_NAME[name]
    found = shown(url, panel, minute(HEALTHY_AT["cluster"]), rank="17")
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
    assert not any(shown(url, BY_NAME[name], minute(HEALTHY_AT["cluster"]), run="cluster"))


@every_panel
@pytest.mark.parametrize(("run", "at"), [("broken", MOVED_AT + 0.6), ("cpu", 60), ("shared", 60), ("nobody", 60)])
def test_no_query_fails_for_a_job_that_lacks_something(past, name, run, at):
    """A rank that moved to another process a moment ago, a job without GPUs and referee, two ranks on one GPU, a run that
    does not exist."""
    url, minute = past
    shown(url, BY_NAME[name], minute(at), run=run)


@every_panel
@pytest.mark.parametrize(("run", "at"), [("cpu", 60), ("cluster", ENDED_AT)])
def test_a_panel_without_data_says_why(past, name, run, at):
    """Of a job whose loop and machines tell little, and of one that has ended: never a bare "No data"."""
    url, minute = past
    if not any(shown(url, BY_NAME[name], minute(at), run=run)):
        assert BY_NAME[name]["fieldConfig"]["defaults"]["noValue"]


@pytest.mark.parametrize(("name", "said"), [
    ("gpus: Throttled, unlike the other GPUs", "no GPU is known to be held back more than the others"),
    ("gpus: PCIe links below the others", "no link is known to be below the others"),
    ("gpus: XID errors", "no XID was read"), ("mirage: Who is late, and why", "nobody is known to be late"),
    ("mirage: MFU", "no step ends, or no peak is known"), ("mirage: Cost of the loss per day", "not priced"),
    ("cost: Money lost in this range", "not priced"),
    ("exporter: What failed", "nothing is known to have failed"), ("exporter: Targets down", "no target is known to be down"),
])  # fmt: skip
def test_nobody_is_acquitted_where_nobody_looked(past, name, said):
    """What an empty panel says is as true of a job without GPUs, referee and peak as of a healthy one."""
    url, minute = past
    assert not any(shown(url, BY_NAME[name], minute(60), run="cpu"))
    assert BY_NAME[name]["fieldConfig"]["defaults"]["noValue"] == said


OF_THE_RANGE = {
    "learning: Loss", "learning: Tokens in this range", "cost: GPU-hours lost in this range",
    "cost: Money lost in this range", "exporter: Series",
}  # fmt: skip
"""Numbers that a job which has ended keeps, or that are none of a job's."""


@pytest.mark.parametrize("name", [
    name for name, panel in BY_NAME.items()
    if panel["type"] == "stat" and not name.startswith("practice") and name not in OF_THE_RANGE
])  # fmt: skip
def test_a_job_that_has_ended_does_not_look_alive(past, name):
    """Ten minutes after its end no number claims to be of now."""
    url, minute = past
    value, *_ = shown(url, BY_NAME[name], minute(ENDED_AT))
    assert value == []


def test_the_pictures_of_a_job_that_has_ended_show_all_its_ranks(past):
    """It had 32, which is not too many to be drawn."""
    url, minute = past
    [rows] = shown(url, BY_NAME["ranks: Lag: arriving later than the median"], minute(ENDED_AT))
    assert len(rows) == 32


def choices(url, name, at):
    """What a variable of the home dashboard offers for the last half hour, in order; the first one is chosen."""
    [variable] = (one for one in DASHBOARDS["mirage"]["templating"]["list"] if one["name"] == name)
    assert variable["sort"] == 0
    [expr] = re.findall(r"^query_result\((.*)\)$", variable["query"]["query"])
    for one in shown(url, {"targets": [{"expr": expr, "instant": True, "legendFormat": ""}]}, at)[0]:
        labels = ", ".join(f'{key}="{value}"' for key, value in one.labels.items())
        yield re.search(variable["regex"].strip("/"), f"{{{labels}}} {one.values[0]:.0f} {at * 1000:.0f}")[1]


def test_the_job_that_began_last_is_chosen_and_those_that_have_ended_come_last(past):
    """Whatever they are called."""
    url, minute = past
    first, *others, last = choices(url, "run", minute(60))
    assert (first, last) == ("before-10", "before-9")
    assert set(others) == {"cluster", "broken", "cpu", "shared"}


def test_a_title_still_knows_how_many_ranks_there_were(past):
    """Once the job has ended."""
    url, minute = past
    assert list(choices(url, "ranks", minute(ENDED_AT))) == ["32"]


def test_tokens_that_nobody_counts_are_not_zero(past):
    """A job that does not say its tokens has a counter that stands at 0."""
    url, minute = past
    names = [name for name in BY_NAME if ": Tokens" in name]
    assert len(names) == 7
    assert [name for name in names if any(shown(url, BY_NAME[name], minute(60), run="cpu"))] == []


@pytest.mark.parametrize("name", ["learning: Steps with NaN or infinite values", "learning: Steps out of band"])
def test_steps_are_not_acquitted_where_the_loop_tells_neither_loss_nor_gradient(past, name):
    """Their counters stand at 0, too."""
    url, minute = past
    assert shown(url, BY_NAME[name], minute(60), run="cpu") == [[]]
    assert shown(url, BY_NAME[name], minute(60), run="broken") != [[]]


def test_expected_traffic_is_that_of_an_all_reduce(past):
    """Under FSDP there is none, and each rank counts its shard of the gradients alone."""
    url, minute = past
    panel = BY_NAME["step: All-reduce traffic expected"]
    assert shown(url, panel, minute(60), run="broken") == [[]]
    [[expected]] = shown(url, panel, minute(60))
    assert expected.values[0] == pytest.approx(2 * 31 / 32 * 2 * 1_315_950_592)  # bf16


@pytest.mark.parametrize(("name", "label", "of_cluster", "of_broken"), [
    ("exporter: Scrape duration, by job", "job", {"training", "dcgm", "node", "referee"}, {"stepscope", "dcgm"}),
    ("exporter: Samples per scrape, by job", "job", {"training", "dcgm", "node", "referee"}, {"stepscope", "dcgm"}),
    ("exporter: Targets down", "instance", set(), {"sick"}),
    ("exporter: Rule evaluation, by group", "rule_group", {"training"}, {"training"}),
])  # fmt: skip
def test_what_is_said_of_scrapes_is_said_of_the_runs_own(past, name, label, of_cluster, of_broken):
    """A cluster's Prometheus scrapes more than this run, its GPUs and its hosts."""
    url, minute = past
    for run, expected in (("cluster", of_cluster), ("broken", of_broken)):
        [found] = shown(url, BY_NAME[name], minute(60), run=run)
        assert {one.labels[label] for one in found} == expected


@pytest.mark.parametrize(("run", "up"), [("cluster", 1), ("broken", 0.5)])
def test_targets_up_are_counted_among_the_runs_own(past, run, up):
    """Two of others are down."""
    url, minute = past
    assert last_values(url, BY_NAME["exporter: Targets up"], minute(60), run=run) == {"up": up}


def test_a_job_without_gpus_leaves_those_of_others_alone(past):
    """Its ranks have no UUID, all the same one: they must match nothing."""
    url, minute = past
    for run, utilization in (("cluster", 0.99), ("cpu", None)):
        found = last_values(url, BY_NAME[UTILIZATION], minute(HEALTHY_AT["cluster"]), run=run)
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
    begins = next(begins for fault, begins, _ in INCIDENTS["cluster"] if fault == "straggler")
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
@pytest.mark.parametrize("fault", [fault for fault, job in JOB_OF.items() if job == "cluster"])
def test_a_panel_stays_readable_with_a_fault(past, name, fault):
    """No more lines, rows or bars than the limits."""
    url, minute = past
    panel = BY_NAME[name]
    assert drawn(panel, shown(url, panel, minute(AT[fault]), rank="17")) <= limit(panel)


def struck(played, fault):
    """The number of the rank or node that the lab chose, from its own truth."""
    url, minute, _ = played(fault)
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
LATE, WIRES = "ranks: Time lost to lateness", "step: Bytes sent, per GPU and step"
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
    "power_cap": [
        *MASKED, (MFU, "MFU", falls(0.9)), ("ranks: The spread of compute", "highest", rises(1.1)),
        ("gpus: Power", "limit", falls(0.6)), ("gpus: SM clock", "rank {rank}", falls(0.9)),
    ],
    "nccl_fallback": [
        *MASKED, (MFU, "MFU", falls(0.5)), (PATH, "allreduce", reaches(0.5)), (WIRES, "PCIe", reaches(4e9)),
        (WIRES, "NVLink", falls(0.01)),
    ],
    "small_batch": [(MFU, "MFU", falls(0.6)), (STEP, "step", falls(0.3))],
    "hang": [(MFU, "MFU", falls(0.05)), ("learning: Tokens per second", "tokens per second", falls(0.05))],
    "gpu_lost": [*MASKED, (MFU, "MFU", falls(0.05)), ("ranks: Ranks", "ranks", falls(0.9))],
}  # fmt: skip
NAMED = {
    "straggler": r"rank {} on node-\d: backward", "data_starvation": "no single culprit",
    "storage_node_slow": "node-{}: data_wait", "gradient_explosion": "no single culprit",
    "hang": "rank {} on node-0 does not arrive", "gpu_lost": "rank {} on node-0 has vanished",
}  # fmt: skip
ALERT = {
    "straggler": "TrainingRankStraggling", "data_starvation": "TrainingDataStarved",
    "storage_node_slow": "TrainingNodeStorageSlow", "storage_outage": "TrainingStorageOutage",
    "gradient_explosion": "TrainingGradientExploding", "power_cap": "TrainingGpuPowerCapped",
    "nccl_fallback": "TrainingNcclFallback", "small_batch": "TrainingBatchSmall", "hang": "TrainingHung",
    "gpu_lost": "TrainingRankLost",
}  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "name", "legend", "moved"), [(f, *move) for f, moves in MOVES.items() for move in moves]
)
def test_a_panel_moves_with_the_fault_or_stays_where_it_hides_it(played, fault, name, legend, moved):
    """Against its value in health, by as much as the physics says, with room."""
    url, minute, run = played(fault)
    rank = struck(played, fault)
    legend = legend.format(rank=rank)
    [healthy, *faulty] = (
        last_values(url, BY_NAME[name], minute(at), run=run, rank=rank)[legend]
        for at in (HEALTHY_AT[run], *moments(fault))
    )
    assert any(moved(healthy, value) for value in faulty), (healthy, faulty)


@pytest.mark.parametrize(("fault", "name"), [
    (fault, name) for fault in ("hang", "gpu_lost")
    for name in (STEP, "step: Step, mean", "step: Step, p99")
])  # fmt: skip
def test_no_step_has_a_duration_while_none_ends(played, fault, name):
    """The last one that ended took its time long ago."""
    url, minute, run = played(fault)
    assert shown(url, BY_NAME[name], minute(AT[fault]), run=run) == [[]]


@pytest.mark.parametrize("fault", ["hang", "gpu_lost"])
@pytest.mark.parametrize(("name", "says"), [
    ("mirage: Useful share of the step", {"useful": 0}), ("step: Useful", {"useful": 0}),
    ("mirage: GPUs lost, by phase", {"stalled": 8}), ("mirage: GPUs lost (of $ranks)", {"GPUs lost": 8, "all": 8}),
    ("cost: Share lost now", {"lost": 1}),
])  # fmt: skip
def test_while_no_step_ends_everything_is_lost(played, fault, name, says):
    """The job's last good minute is not shown as its present one."""
    url, minute, run = played(fault)
    gone = fault == "gpu_lost"
    found = last_values(url, BY_NAME[name], minute(AT[fault]), run=run)
    assert found == {key: value - 1 if gone and value == 8 else value for key, value in says.items()}


def test_a_lost_gpu_is_listed_with_its_xid_though_its_rank_is_gone(played):
    """Which it is because of that."""
    url, minute, run = played("gpu_lost")
    [[lost]] = shown(url, BY_NAME["gpus: XID errors"], minute(AT["gpu_lost"]), run=run)
    assert (lost.labels["rank"], lost.values) == (struck(played, "gpu_lost"), [79])


def test_an_xid_is_listed_after_the_job_has_ended_of_it(past):
    """For as long as the range shown reaches back to it."""
    url, minute = past
    [[xid]] = shown(url, BY_NAME["gpus: XID errors"], minute(ENDED_AT), run="broken")
    assert (xid.labels["rank"], xid.values) == ("0", [79])


def test_a_lowered_power_limit_is_named_as_what_holds_a_gpu_back(played):
    """Its throttle reason is the power cap that healthy GPUs have, too; its limit is not theirs."""
    url, minute, run = played("power_cap")
    rank = struck(played, "power_cap")
    throttled, limited = shown(url, BY_NAME["gpus: Throttled, unlike the other GPUs"], minute(AT["power_cap"]), run=run)
    assert throttled == []
    assert [(one.legend, one.values[-1]) for one in limited] == [(f"rank {rank}, power limit", 0.55)]
    columns = shown(url, BY_NAME["ranks: All ranks, by their lag"], minute(AT["power_cap"]), run=run)
    limits = {row.labels["rank"]: row.values[0] for row in columns[POWER_LIMIT]}
    assert limits == {str(other): 0.55 if str(other) == rank else 1 for other in range(8)}


POWER_LIMIT = 9
"""The query of that column."""


@pytest.mark.parametrize("board", ["mirage", "ranks"])
@pytest.mark.parametrize("fault", NAMED)
def test_the_verdict_is_one_line(played, board, fault):
    """Rank, or node, and phase; or that there is no single culprit."""
    url, minute, run = played(fault)
    [said] = last_values(url, BY_NAME[f"{board}: Who holds everyone up"], minute(AT[fault]), run=run)
    assert re.fullmatch(NAMED[fault].format(struck(played, fault)), said)


@pytest.mark.parametrize("fault", ALERT)
def test_the_alert_is_listed_beside_the_truth(played, fault):
    """On the home dashboard, and on the timeline of the practice dashboard next to the fault."""
    url, minute, run = played(fault)
    firing, faults, timeline = set(), set(), set()
    for at in map(minute, moments(fault)):
        [rows] = shown(url, BY_NAME["mirage: Alerts firing"], at, run=run)
        truth, alerts = shown(url, BY_NAME["practice: The truth, and below it what the rules say"], at, run=run)
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


def test_a_large_healthy_job_is_not_coloured_as_one_that_loses_time(large):
    """Of 1,024 ranks somebody is always a little late."""
    url, at = large
    panel = BY_NAME[LATE]
    [_, _, warn, _] = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert 0.01 < last_values(url, panel, at, run="large")["late"] < 0.9 * warn["value"]


def test_ranks_are_drawn_in_numeric_order(past):
    """From 0 upwards: Prometheus alone would put 10 before 2."""
    url, minute = past
    [rows] = shown(url, BY_NAME["ranks: Compute, against the median rank"], minute(HEALTHY_AT["cluster"]))
    assert [row.legend for row in rows] == [str(rank) for rank in range(32)]


def test_the_price_is_multiplied_and_empty_without_one(past):
    """Money appears only where somebody typed a price."""
    url, minute = past
    panel, at = BY_NAME["mirage: Cost of the loss per day"], minute(AT["straggler"])
    lost = last_values(url, BY_NAME[LOST], at)["GPUs lost"]
    assert last_values(url, panel, at, price="2.5")["per day"] == pytest.approx(lost * 24 * 2.5)
    assert last_values(url, panel, at, price="") == {}
