"""7: alert practice: what the rules said, beside what was true."""

from __future__ import annotations

from board import dashboard, to, to_console
from meaning import BAD, FAULT, GOOD, PLAIN, WARN, Json, mapped, steps
from panels import fixed, rows, stat, states, target
from tables import gauge, table
from verdict import alerts_firing

FIRING = 'ALERTS{alertstate="firing",run="$run",exhibit=""}'
TRUE_BY_CAUSE = (
    'max by (cause) (label_replace(lab_fault_active > 0 and on () group(up), "cause", "$1", "fault", "(.+)"))'
)
"""While the rules ran: nothing is scraped in a preloaded past, and nothing alerts there."""
FIRED_BY_CAUSE = f"max by (cause) ({FIRING})"
RESOLUTION_SECONDS = 15


def minutes(expr: str) -> str:
    """For how many minutes of the range the expression had a value."""
    return f"count_over_time(({expr})[$__range:{RESOLUTION_SECONDS}s]) * {RESOLUTION_SECONDS} / 60"


FAULTY = minutes(TRUE_BY_CAUSE)
CAUGHT = minutes(f"{TRUE_BY_CAUSE} and on (cause) {FIRED_BY_CAUSE}")
FALSE = minutes(f"{FIRED_BY_CAUSE} unless on (cause) {TRUE_BY_CAUSE}")
FIRED = minutes(FIRED_BY_CAUSE)
SHARE_STEPS = steps((None, PLAIN), (0, BAD), (0.5, WARN), (0.75, GOOD))
NO_FAULT, NO_ALERT = "no fault was on", "no alert fired"


def practice() -> Json:
    timeline = states(
        "The truth, and below it what the rules say",
        "Faults that are on, from the lab's own endpoint, which blind mode leaves out; then every alert of this run, pending while "
        "its `for` runs. A good rule begins within a minute of its fault, names one cause, and ends a minute after it.",
        target("3 * max by (fault, target) (lab_fault_active > 0)", "{{fault}} {{target}}"),
        target('max by (alertname) (2 * ALERTS{run="$run",alertstate="firing"} or ALERTS{run="$run",alertstate="pending"})',
               "{{alertname}}"),
        mappings=mapped({1: ("pending", WARN), 2: ("firing", BAD), 3: ("on", FAULT)}),
        empty="no fault was on, and no alert fired",
    )  # fmt: skip
    found = stat(
        "Fault minutes that were caught",
        "Minutes in which a fault was on and an alert with its cause fired, by all minutes with a fault. A minute's delay at "
        "each start is in the missing part.",
        target(f"(sum({CAUGHT}) or vector(0)) / sum({FAULTY})", "caught", instant=True), unit="percentunit", decimals=0,
        min=0, max=1, noValue=NO_FAULT, color={"mode": "thresholds"}, size=40, thresholds=SHARE_STEPS,
    )  # fmt: skip
    right = stat(
        "Alert minutes that were right",
        "Minutes in which an alert fired while the fault that it names was on, by all minutes in which it fired. Rates still "
        "hold a minute of fault when it ends.",
        target(f"(sum({CAUGHT}) or vector(0)) / sum({FIRED})", "right", instant=True), unit="percentunit", decimals=0, min=0, max=1,
        noValue=NO_ALERT, color={"mode": "thresholds"}, size=40, thresholds=SHARE_STEPS,
    )  # fmt: skip
    now = stat(
        "Faults on", "Right now; 0 in a healthy lab. Absent in blind mode.",
        target("count(lab_fault_active > 0) or on () 0 * max(up{job=\"truth\"})", "faults", instant=True), unit="none",
        decimals=0, color=fixed(PLAIN), noValue="blind mode", links=[to_console()],
    )  # fmt: skip
    firing = stat(
        "Alerts firing now", "Exhibits aside.", target(f"count({FIRING}) or vector(0)", "alerts", instant=True),
        unit="none", decimals=0, color={"mode": "thresholds"}, thresholds=steps((None, GOOD), (1, BAD)),
    )  # fmt: skip
    score = table(
        "By cause, in minutes of this range",
        "Caught: the fault was on, and an alert that names it fired. Fired without the fault: it fired, and the fault "
        "was not on. The preloaded past, in which no rules ran, is left out.",
        rows(f"{FAULTY} or 0 * {FALSE}"), rows(f"{CAUGHT} or 0 * {FAULTY} or 0 * {FALSE}"), rows(f"{FALSE} or 0 * {FAULTY}"),
        unit="none", decimals=1, noValue="no fault was on, and no alert fired", sort="Fault on",
        columns={"cause": "Cause", "Value #A": "Fault on", "Value #B": "Caught", "Value #C": "Fired without the fault"},
        overrides=[gauge("Fault on", high=15, colour=FAULT, unit="none"), gauge("Caught", high=15, colour=GOOD, unit="none"),
                   gauge("Fired without the fault", high=15, unit="none")],
    )  # fmt: skip
    return dashboard(
        "practice",
        "7 · Alert practice",
        "Your rules beside the truth: what was caught, how late, and what fired for nothing.",
        (
            (4, ((6, now), (6, firing), (6, found), (6, right))),
            (12, ((24, timeline),)),
            (9, ((12, score), (12, alerts_firing()))),
        ),
        [],
        onward=to("mirage"),
        since="15m",
    )  # fmt: skip
