"""7: alert practice: what the rules said, the lab's and your own, beside what was true; and what the last blind drill came to."""

from __future__ import annotations

from board import dashboard, to, to_console
from meaning import BAD, FAULT, GOOD, PLAIN, WARN, Json, mapped, steps
from panels import bars, fixed, named, rows, stat, states, target
from tables import gauge, table

FIRING = 'ALERTS{alertstate="firing",run="$run",exhibit="",practice=""}'
OWN_FIRING = 'ALERTS{practice="yes",alertstate="firing"}'
"""Of one's own rules, which may lack the run's label: a lab has one job."""
LOADED = "lab_practice_rules"
PARTS = ("recall", "precision", "delay", "culprit", "reset")
TRUE_BY_CAUSE = (
    'max by (cause) (label_replace(lab_fault_active > 0 and on () group(up), "cause", "$1", "fault", "(.+)"))'
)
"""While the rules ran: nothing is scraped in a preloaded past, and nothing alerts there."""
FIRED_BY_CAUSE = f"(max by (cause) ({FIRING}) unless on () lab_practice_running == 1)"
"""Without the times of blind drills, of which the truth is not published."""
RESOLUTION_SECONDS = 15


def minutes(expr: str) -> str:
    """For how many minutes of the range the expression had a value."""
    return f"count_over_time(({expr})[$__range:{RESOLUTION_SECONDS}s]) * {RESOLUTION_SECONDS} / 60"


FAULTY = minutes(TRUE_BY_CAUSE)
CAUGHT = minutes(f"{TRUE_BY_CAUSE} and on (cause) {FIRED_BY_CAUSE}")
FALSE = minutes(f"{FIRED_BY_CAUSE} unless on (cause) {TRUE_BY_CAUSE}")
FIRED = minutes(FIRED_BY_CAUSE)
SHARE_STEPS = steps((None, PLAIN), (0, BAD), (0.5, WARN), (0.75, GOOD))
NO_FAULT, NO_ALERT = "no fault was known to be on", "no alert fired"
NOT_TOLD = "not told"
NO_DRILL = "none was graded yet"
STATES = mapped({1: ("pending", WARN), 2: ("firing", BAD), 3: ("on", FAULT)})


def practice() -> Json:
    return dashboard(
        "practice",
        "7 · Alert practice",
        "Your rules beside the truth: what was caught, how late, and what fired for nothing.",
        (
            (4, ((4, _faults_on()), (4, _firing()), (4, _caught()), (4, _right()), (4, _own_firing()), (4, _last_drill()))),
            (7, ((24, _timeline()),)),
            (5, ((24, _own_timeline()),)),
            (9, ((9, _by_cause()), (5, _parts()), (10, _incidents()))),
        ),
        [],
        onward=to("mirage"),
        since="15m",
    )  # fmt: skip


def _timeline() -> Json:
    return states(
        "The truth, and below it what the rules say",
        "Faults that are on, from the lab's own endpoint, which blind mode and blind drills hide; then every alert of the "
        "lab's rules, pending while its `for` runs. A good rule begins within a minute of its fault, names one cause, and ends "
        "a minute after it.",
        target("3 * max by (fault, target) (lab_fault_active > 0)", "{{fault}} {{target}}"),
        target('max by (alertname) (2 * ALERTS{run="$run",alertstate="firing",practice=""} '
               'or ALERTS{run="$run",alertstate="pending",practice=""})', "{{alertname}}"),
        mappings=STATES, empty=f"{NO_FAULT}, and {NO_ALERT}",
    )  # fmt: skip


def _own_timeline() -> Json:
    return states(
        "Your rules",
        "Every alert of the rules that stepscope practice live has put into Prometheus, pending while its `for` runs.",
        target('max by (alertname) (2 * ALERTS{practice="yes",alertstate="firing"} '
               'or ALERTS{practice="yes",alertstate="pending"})', "{{alertname}}"),
        mappings=STATES, empty="no alert of yours fired: see the number above for whether rules are loaded",
    )  # fmt: skip


def _caught() -> Json:
    return stat(
        "Fault minutes that were caught",
        "Minutes in which a fault was on and an alert of the lab's rules with its cause fired, by all minutes with a fault. A "
        "minute's delay at each start is in the missing part.",
        target(f"(sum({CAUGHT}) or vector(0)) / sum({FAULTY})", "caught", instant=True), unit="percentunit", decimals=0,
        min=0, max=1, noValue=NO_FAULT, color={"mode": "thresholds"}, size=32, thresholds=SHARE_STEPS,
    )  # fmt: skip


def _right() -> Json:
    return stat(
        "Alert minutes that were right",
        "Minutes in which an alert of the lab's rules fired while the fault that it names was on, by all minutes in which it "
        "fired. Rates still hold a minute of fault when it ends.",
        target(f"(sum({CAUGHT}) or vector(0)) / sum({FIRED})", "right", instant=True), unit="percentunit", decimals=0, min=0, max=1,
        noValue=NO_ALERT, color={"mode": "thresholds"}, size=32, thresholds=SHARE_STEPS,
    )  # fmt: skip


def _faults_on() -> Json:
    return stat(
        "Faults on", "Right now; 0 in a healthy lab. Not told in blind mode, nor while a blind drill is on.",
        target('(count(lab_fault_active > 0) or on () 0 * max(up{job="truth"})) unless on () lab_practice_running == 1', "faults",
               instant=True),
        unit="none", decimals=0, color=fixed(PLAIN), noValue=NOT_TOLD, links=[to_console()],
    )  # fmt: skip


def _firing() -> Json:
    return stat(
        "Alerts firing now", "Of the lab's rules, exhibits aside.",
        target(f"count({FIRING}) or vector(0)", "alerts", instant=True),
        unit="none", decimals=0, color={"mode": "thresholds"}, thresholds=steps((None, PLAIN), (0, GOOD), (1, BAD)),
    )  # fmt: skip


def _own_firing() -> Json:
    return stat(
        "Your rules firing now",
        "Alerts of the rules that stepscope practice live has put into Prometheus; 0 if they are loaded and silent.",
        target(f"count({OWN_FIRING}) or on () 0 * max({LOADED})", "alerts", instant=True), unit="none", decimals=0,
        color={"mode": "thresholds"}, thresholds=steps((None, PLAIN), (0, GOOD), (1, BAD)), noValue="none loaded",
    )  # fmt: skip


def _last_drill() -> Json:
    return stat(
        "Last blind drill",
        "Points, 100 at most: half for telling every incident and nothing else, half for how fast, whose, and how soon over.",
        target("max(lab_practice_score)", "points", instant=True), unit="none", decimals=0, min=0, max=100,
        color={"mode": "thresholds"}, thresholds=steps((None, PLAIN), (0, BAD), (50, WARN), (80, GOOD)), noValue=NO_DRILL,
        links=[to_console()],
    )  # fmt: skip


def _parts() -> Json:
    return bars(
        "Its score, taken apart",
        "Recall: incidents told. Precision: few false alarms. Delay: told soon. Culprit: named first. Reset: over with the fault.",
        *(target(f'max(lab_practice_part_ratio{{part="{part}"}})', part, instant=True) for part in PARTS),
        unit="percentunit", decimals=0, min=0, max=1, color={"mode": "thresholds"}, thresholds=SHARE_STEPS, noValue=NO_DRILL,
    )  # fmt: skip


def _incidents() -> Json:
    return table(
        "Its incidents, and what told them",
        "In order of time, once the drill is revealed. Culprit: 1 if the alert named it first, less if others were named before or "
        "with it, 0 if it was not named.",
        rows("lab_practice_incident_info"), unit="none", noValue=NO_DRILL,
        columns={"number": "#", "fault": "Fault", "target": "Whose", "verdict": "Verdict", "alert": "Alert",
                 "delay_seconds": "After s", "culprit": "Culprit"},
        sort="#", ascending=True,
        overrides=[named("Alert", noValue="–"), *(named(name, custom__width=width, noValue="–") for name, width in
                   (("#", 35), ("Whose", 75), ("Verdict", 75), ("After s", 75), ("Culprit", 75)))],
    )  # fmt: skip


def _by_cause() -> Json:
    return table(
        "By cause, in minutes of this range",
        "Caught: the fault was on, and an alert of the lab's rules that names it fired. Fired without the fault: it fired, and "
        "the fault was not on. The preloaded past, in which no rules ran, and blind drills are left out.",
        rows(f"{FAULTY} or 0 * {FALSE}"), rows(f"{CAUGHT} or 0 * {FAULTY} or 0 * {FALSE}"), rows(f"{FALSE} or 0 * {FAULTY}"),
        unit="none", decimals=1, noValue=f"{NO_FAULT}, and {NO_ALERT}", sort="Fault on",
        columns={"cause": "Cause", "Value #A": "Fault on", "Value #B": "Caught", "Value #C": "Fired without the fault"},
        overrides=[gauge("Fault on", high=15, colour=FAULT, unit="none"), gauge("Caught", high=15, colour=GOOD, unit="none"),
                   gauge("Fired without the fault", high=15, unit="none")],
    )  # fmt: skip
