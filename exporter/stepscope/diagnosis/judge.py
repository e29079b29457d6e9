"""The judge: which causes are at work in a run at a moment, by the alert rules of the Prometheus that is asked.

Alerts and diagnosis have the same grounds: the rules' own expressions, evaluated at the moment in question, which may
lie in the past. What is said about each cause is in ``causes``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, isfinite

from stepscope.diagnosis.causes import CAUSES, EXPLAINS, STEPS, Cause, Measure
from stepscope.diagnosis.report import Evidence, Report, RuledOut, Step, Suspicion, Target, Verdict
from stepscope.diagnosis.source import AlertRule, Source

SURE_SECONDS = 30.0
"""Grounds that have held for so long are as sure as they get."""
KEPT_SECONDS = 45.0
"""A verdict outlives its grounds for so long at most, however long the alert is kept lest it rings twice."""
UNTOLD = 0.8
"""What is left of the confidence for every look-alike whose metrics are missing."""
SOURCES = {
    "critical path (there is no referee, or no step in the last minute)": "run:training_critical_path_share:rate1m",
    "GPU metrics": "rank:gpu_utilization:ratio_avg1m",
    "DCGM's profiling metrics (tensor and DRAM activity)": "rank:gpu_tensor_active:ratio_avg1m",
    "CPU metrics of the nodes": "node:training_cpu_user:share_rate1m",
    "loss": "training_loss",
    "gradient norms of the single ranks": "training_local_gradient_norm",
}
"""What a diagnosis looks at, by a series of it."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An alert whose grounds hold, for one label set."""

    rule: AlertRule
    labels: Mapping[str, str]
    held: float
    """Share of the last ``SURE_SECONDS``."""
    held_seconds: float
    """Without a gap until this moment."""
    fires: bool
    """They have held for as long as the alert asks."""

    @property
    def target(self) -> Target:
        if "rank" in self.labels:
            return {"rank": int(self.labels["rank"])}
        return {"node": self.labels["node"]} if "node" in self.labels else {"run": True}

    def who(self) -> str:
        if "rank" in self.labels:
            return f"rank {self.labels['rank']} on {self.labels.get('node', '?')}"
        return self.labels.get("node", "the run")


def diagnose(source: Source, run: str, at: float | None = None) -> Report:
    """What is wrong with a run at a moment (default: now). Raises ``SourceError``."""
    at = time.time() if at is None else at
    reading = Reading(source, run, at)
    rules = [rule for rule in source.rules() if rule.cause in CAUSES and not rule.exhibit]
    absent = _unjudged(reading, rules)
    if absent:
        return Report(run=run, at=at, enough_data=False, missing=(absent,))
    found = [finding for rule in rules for finding in _findings(reading, rule)]
    fire = [finding for finding in found if finding.fires]
    causes = _without_symptoms(fire, fire)
    suspicions = tuple(_suspicions([finding for finding in found if not finding.fires], causes, found))
    there = {finding.rule.cause for finding in found}
    verdicts = sorted((_verdict(reading, finding, there) for finding in causes), key=lambda one: -one.lost_gpus)
    missing = tuple(f"no {what}" for what, series in SOURCES.items() if not reading.there(series))
    steps = _steps(reading, {one.fault for one in verdicts}, {one.fault for one in suspicions})
    return Report(run=run, at=at, enough_data=True, verdicts=tuple(verdicts), suspicions=suspicions, missing=missing,
                  steps=steps)  # fmt: skip


class Reading:
    """Queries about one run at one moment, each asked once."""

    def __init__(self, source: Source, run: str, at: float) -> None:
        self.source, self.run, self.at = source, run, at
        self._known: dict[str, float | None] = {}

    def value(self, query: str) -> float | None:
        """The first element's value; None where there is none."""
        if query not in self._known:
            found = self.source.query(query, self.at)
            self._known[query] = found[0][1] if found else None
        return self._known[query]

    def there(self, series: str) -> bool:
        return self.value(self.about(f"count({series}{{$run}})", {})) is not None

    def about(self, query: str, labels: Mapping[str, str]) -> str:
        """A measure's query with the labels of the run, and of the accused."""
        accused = {name: labels[name] for name in ("rank", "node") if name in labels}
        node = _matchers({"node": labels["node"]}) if "node" in labels else 'node=~".+"'
        run = _matchers({"run": self.run})
        target = _matchers({"run": self.run, **accused})
        return query.replace("$run", run).replace("$target", target).replace("$node", node)

    def evidence(self, measure: Measure, labels: Mapping[str, str] | None = None) -> Evidence | None:
        query = self.about(measure.query, labels or {})
        value = self.value(query)
        if value is None:
            return None
        return Evidence(what=measure.what, value=value, unit=measure.unit, healthy=measure.healthy, query=query)


def _matchers(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unjudged(reading: Reading, rules: list[AlertRule]) -> str | None:
    """Why the run cannot be judged at that moment; None where it can."""
    if not rules:
        return "alert rules: this Prometheus has none with a cause; load prometheus/rules/recording.yml and alerts.yml"
    if reading.value(reading.about("max(training_steps_total{$run})", {})) is None:
        last = reading.value(reading.about("max(last_over_time(training_last_step_timestamp_seconds{$run}[6h]))", {}))
        if last is None:
            return "no series of this run within six hours"
        return f"its ranks are gone since their last step, {reading.at - last:,.0f} s before: it has ended, or is not scraped"
    if reading.value(reading.about("max(training_steps_total{$run} offset 1m)", {})) is None:
        return "it has been reporting for less than a minute"
    if not reading.there("run:training_ranks:count"):  # it needs no step: the first one may compile for long
        return "recorded series: this Prometheus does not evaluate prometheus/rules/recording.yml"
    return None


def _findings(reading: Reading, rule: AlertRule) -> Iterable[Finding]:
    """The label sets for which the alert fires at that moment, as Prometheus decides it, but for ``KEPT_SECONDS``; and those
    for which it is pending."""
    held, step = f"({rule.expr})", rule.interval
    needed, kept = ceil(rule.for_seconds / step), ceil(min(rule.keep_seconds, KEPT_SECONDS) / step)
    if kept:
        held = f"last_over_time({held}[{(kept + 1) * step:.0f}s:{step:.0f}s])"
    if not any(labels.get("run") == reading.run for labels, _ in reading.source.query(held, reading.at)):
        return
    recent = max(1, round(SURE_SECONDS / step))
    last = max(needed + kept, recent)
    start = reading.at - last * step
    for labels, moments in reading.source.query_range(rule.expr, start, reading.at, step):
        present = {round((moment - start) / step) for moment, _ in moments}
        fires = _fires(present, last, needed, kept)
        if labels.get("run") == reading.run and (fires or last in present):
            since = next(point for point in range(last, -2, -1) if point not in present)
            yield Finding(rule=rule, labels=labels, held=sum(point > last - recent for point in present) / recent,
                          held_seconds=max(0, last - since - 1) * step, fires=fires)  # fmt: skip


def _fires(present: set[int], last: int, needed: int, kept: int) -> bool:
    """Whether the alert fires at the last point: its grounds held at one, at most ``kept`` before, and the ``needed`` before it."""
    return any(present.issuperset(range(end - needed, end + 1)) for end in range(last - kept, last + 1))


def _without_symptoms(findings: list[Finding], by: list[Finding]) -> list[Finding]:
    """A cause that was found explains its symptoms."""
    return [one for one in findings if not any(_explained(one, cause) for cause in by)]


def _suspicions(pending: list[Finding], certain: list[Finding], found: list[Finding]) -> Iterable[Suspicion]:
    """What is pending of somebody who is not found guilty of it by another alert, and is nobody's symptom."""
    told = [(one.rule.cause, one.target) for one in certain]
    for one in _without_symptoms(pending, found):
        if (one.rule.cause, one.target) not in told:
            told.append((one.rule.cause, one.target))
            yield Suspicion(fault=one.rule.cause, target=one.target, held_seconds=one.held_seconds,
                            needed_seconds=one.rule.for_seconds)  # fmt: skip


def _explained(symptom: Finding, by: Finding) -> bool:
    return any(
        by.rule.cause in causes
        and symptom.rule.cause in symptoms
        and all(symptom.labels.get(name) == by.labels.get(name) for name in equal)
        for causes, symptoms, equal in EXPLAINS
    )


def _verdict(reading: Reading, finding: Finding, there: set[str]) -> Verdict:
    """``there``: the causes and symptoms that were found or are suspected, none of which is ruled out."""
    cause, who = CAUSES[finding.rule.cause], finding.who()
    others = [name for name in cause.look_alikes if name not in there]
    told = {name: _against(reading, cause, name) for name in others}
    measures = [reading.evidence(measure, finding.labels) for measure in cause.measures]
    share = reading.value(reading.about(cause.lost, finding.labels)) or 0.0
    ranks = reading.value(reading.about("max(run:training_ranks:count{$run})", {})) or 1.0
    untold = sum(evidence is None for evidence in told.values())
    return Verdict(
        fault=finding.rule.cause,
        target=finding.target,
        summary=cause.summary.format(who=who, Who=who[:1].upper() + who[1:]),
        confidence=round(finding.held * UNTOLD**untold, 2),
        lost_gpus=round(ranks * (share if isfinite(share) else 0.0), 2),
        evidence=tuple(evidence for evidence in measures if evidence),
        ruled_out=tuple(RuledOut(fault=name, evidence=evidence) for name, evidence in told.items() if evidence),
        runbook=finding.rule.name,
    )


def _against(reading: Reading, cause: Cause, look_alike: str) -> Evidence | None:
    """What rules a look-alike out; None where neither of the measures that do is known."""
    own = cause.told_from.get(look_alike)
    return (reading.evidence(own) if own else None) or reading.evidence(CAUSES[look_alike].telling)


def _steps(reading: Reading, wrong: set[str], suspected: set[str]) -> tuple[Step, ...]:
    """What was looked at, in the order in which one looks at a slow job."""
    return tuple(
        Step(
            question=question,
            wrong=tuple(name for name in causes if name in wrong),
            suspected=tuple(name for name in causes if name in suspected - wrong),
            evidence=tuple(found for name in causes if (found := reading.evidence(CAUSES[name].measures[0]))),
        )
        for question, causes in STEPS
    )
