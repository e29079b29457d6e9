"""Writes docs/incidents.md: how often each fault strikes by itself, generated from the code. Run: make generate."""

from __future__ import annotations

from pathlib import Path

from stepsim.incidents import JOB_HOURS, LARGE_RANKS, MINUTE, MOST_AT_ONCE, PACES, RATES, Pace, Rate
from stepsim.job import PRESETS, load_job

FILE = Path(__file__).with_name("incidents.md")

HEAD = """\
# Random incidents

Generated from `simulator/stepsim/incidents.py` by `make generate`: edit that, not this page.

Faults can strike by themselves, while the job runs:

```
make lab INCIDENTS=accelerated
stepscope simulate --incidents realistic --seed 7 --blind
```

With compose, `INCIDENTS=accelerated docker compose up`, or set it in `.env`. An incident is a fault like one that you
start yourself: console and dashboards show it, the log names it, you can stop it, and it ends when its time is over. With
`--blind` nothing of that tells: find out what is wrong from the metrics alone.

- `realistic`: at the rates of the table. A duration is {realistic}.
- `accelerated`: all rates are multiplied by one factor, so that {accelerated_rate:g} incidents an hour are drawn on average,
  whatever the job's size. A duration is {accelerated}, so that each alert has time to fire.

Each row is a Poisson process; a duration is exponentially distributed, within those bounds. A severity is drawn
log-uniformly from its range (uniformly where an end is 0), and a target uniformly. The same seed gives the same incidents;
after a restart with `--state` others follow. An incident is left out while the same fault is active on the same target, or
while {most} faults are active, yours among them. A job never gets a fault that it cannot have.

| preset | GPUs | realistic: one incident in | accelerated: factor |
|---|---|---|---|
{presets}

## The table

Sources: Llama 3 (arXiv 2407.21783), Greyhound (USENIX ATC 2025), MegaScale (NSDI 2024), ByteDance's what-if analysis
(arXiv 2505.05713), PaLM (arXiv 2204.02311). Where a paper tells which share of jobs was struck, but no length of those jobs
that we know of, {job_hours:.0f} hours are assumed: a share s then means −ln(1 − s) / {job_hours:.0f} incidents per job-hour,
divided by the job's GPUs or nodes. Where no rate was published, the row says so. A duration is assumed where the row names
no source for it.

| fault | one in | severity | lasts on average | source |
|---|---|---|---|---|
{rows}
"""


def minutes(seconds: float) -> str:
    return f"{seconds / MINUTE:g} min"


def bounds(pace: Pace) -> str:
    return f"at least {minutes(pace.shortest_seconds)} and at most {minutes(pace.longest_seconds)}"


def row(rate: Rate) -> str:
    mild, severe = rate.range()
    severity = f"{mild:g}" if mild == severe else f"{mild:g} to {severe:g}"
    lasts = minutes(rate.mean_seconds)
    if rate.large_mean_seconds:
        lasts += f"; from {LARGE_RANKS} GPUs on {minutes(rate.large_mean_seconds)}"
    hours = float(f"{1 / rate.per_hour:.3g}")
    return f"| `{rate.fault}` | {hours:,.0f} {rate.of}-hours | {severity} | {lasts} | {rate.source} |"


def preset(name: str) -> str:
    job = load_job(name)
    factor = PACES["accelerated"].factor(job)
    return f"| `{name}` | {job.ranks:,} | {factor / (PACES['accelerated'].per_hour or 1):.2g} h | {factor:.2g} |"


def page() -> str:
    return HEAD.format(
        realistic=bounds(PACES["realistic"]),
        accelerated=bounds(PACES["accelerated"]),
        accelerated_rate=PACES["accelerated"].per_hour,
        most=MOST_AT_ONCE,
        presets="\n".join(map(preset, PRESETS)),
        job_hours=JOB_HOURS,
        rows="\n".join(map(row, RATES)),
    )


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
