"""The lab's own diagnosis: a thread that asks Prometheus, and what it publishes."""

import dataclasses
import logging

import pytest

from reports import AT, HEALTHY, STRAGGLER, TWO, UNKNOWN, diagnosed
from stepscope.diagnosis import SourceError
from stepscope.exposition import Page
from stepsim import diagnoser as module
from stepsim.diagnoser import DIAGNOSIS, STALE_SECONDS, Diagnoser
from stepsim.real import RealJob, RealPages


def text(report):
    return Page(DIAGNOSIS, {"run": [{}]}).text(report)


def lines(report):
    """The page's samples."""
    return [line for line in text(report).splitlines() if not line.startswith("#")]


def test_every_verdict_is_a_series_with_its_cost_and_confidence():
    """Named by run, fault, target and runbook; beside them that the run is not healthy, and when that was so."""
    assert lines(TWO) == [
        'stepscope_diagnosis_lost_gpus{run="cluster",fault="straggler",target="rank 5",'
        'runbook="TrainingRankStraggling"} 9.84',
        'stepscope_diagnosis_lost_gpus{run="cluster",fault="gradient_explosion",target="run",'
        'runbook="TrainingGradientExploding"} 1.0',
        'stepscope_diagnosis_confidence_ratio{run="cluster",fault="straggler",target="rank 5",'
        'runbook="TrainingRankStraggling"} 0.97',
        'stepscope_diagnosis_confidence_ratio{run="cluster",fault="gradient_explosion",target="run",'
        'runbook="TrainingGradientExploding"} 1.0',
        'stepscope_diagnosis_healthy{run="cluster"} 0',
        'stepscope_diagnosis_timestamp_seconds{run="cluster"} 1700000120.0',
    ]


@pytest.mark.parametrize(("report", "said"), [(HEALTHY, ["1"]), (UNKNOWN, [])])
def test_a_run_is_healthy_only_where_there_was_enough_data(report, said):
    """Without enough data the series is absent: it is neither 1 nor 0."""
    found = [line.split()[-1] for line in lines(report) if "_healthy" in line]
    assert found == said
    assert not any("_lost_gpus" in line for line in lines(report))


def test_nothing_is_published_of_no_report():
    """Before the first one, and after the last one has become stale."""
    assert text(None) == ""


def test_a_cost_that_is_no_number_is_absent_and_a_verdict_never_there_twice():
    """Prometheus would refuse the page; of two verdicts on the same target the costlier one counts."""
    cheaper = dataclasses.replace(STRAGGLER, lost_gpus=0.1)
    unknown = dataclasses.replace(STRAGGLER, target={"node": "node-2"}, lost_gpus=float("nan"))
    report = dataclasses.replace(TWO, verdicts=(STRAGGLER, cheaper, unknown))
    assert [line.split()[-1] for line in lines(report) if "_lost_gpus" in line] == ["9.84"]


def test_a_report_is_forgotten_when_it_cannot_be_renewed():
    """A verdict of an hour ago would accuse somebody who may be well."""
    now = [AT]
    answers = iter([TWO])

    def judge(source, run, at):
        try:
            return next(answers)
        except StopIteration:
            raise SourceError("no Prometheus answers") from None

    made = Diagnoser(None, lambda: "cluster", judge=judge, clock=lambda: now[0])
    for elapsed, known in ((0, TWO), (STALE_SECONDS, TWO), (STALE_SECONDS + 1, None)):
        now[0] = AT + elapsed
        made.look()
        assert made.report() is known
    assert made.trouble() == "no Prometheus answers"


def test_a_prometheus_that_comes_back_is_asked_again():
    """Away is no error: the next look finds it."""
    found = iter([SourceError("away"), HEALTHY])

    def judge(source, run, at):
        if isinstance(answer := next(found), Exception):
            raise answer
        return answer

    made = Diagnoser(None, lambda: "cluster", judge=judge, clock=lambda: AT)
    made.look()
    assert (made.report(), made.trouble()) == (None, "away")
    made.look()
    assert made.report() is HEALTHY


def test_a_judge_that_fails_is_logged_once_and_disturbs_nobody(caplog):
    """With its traceback; the same failure again says nothing new."""

    def judge(source, run, at):
        raise ZeroDivisionError("no steps")

    made = Diagnoser(None, lambda: "cluster", judge=judge, clock=lambda: AT)
    with caplog.at_level(logging.ERROR):
        made.look()
        made.look()
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]
    assert "no steps" in made.trouble()


def test_a_job_without_a_name_yet_is_not_asked_for():
    """A real one's ranks have to announce themselves first."""
    made = diagnosed(TWO, run=None)
    assert made.report() is None
    assert "announced" in made.trouble()


def test_the_thread_looks_again_and_again_until_it_is_closed(monkeypatch, poll_until):
    """At the moment at which it looks."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.01)
    asked = []

    def judge(source, run, at):
        asked.append((source, run, at))
        return HEALTHY

    made = Diagnoser("source", lambda: "cluster", judge=judge, clock=lambda: AT)
    made.start()
    poll_until(lambda: len(asked) > 3, "four looks", 5)
    made.close()
    seen = len(asked)
    assert set(asked) == {("source", "cluster", AT)}
    assert not made._thread.is_alive()
    assert len(asked) == seen


def test_a_diagnoser_that_never_started_can_be_closed():
    """The job may fail before."""
    diagnosed(TWO).close()


@pytest.mark.parametrize("url", [None, ""])
def test_without_a_url_there_is_no_diagnoser(url):
    """An empty variable in the environment is none."""
    assert Diagnoser.of(url, lambda: "cluster") is None


def test_a_wrong_url_is_refused_at_the_start():
    """And not every ten seconds."""
    with pytest.raises(SourceError, match="no address of a Prometheus"):
        Diagnoser.of("ftp://host", lambda: "cluster")


def test_a_real_jobs_page_is_listed_beside_its_referees(tmp_path):
    """The run is unknown until a rank has announced itself."""
    names = {"referee", "truth", "diagnosis"}
    job = RealJob(tmp_path, ranks=2)
    pages = RealPages(job, diagnoser=diagnosed(TWO))
    assert {source for source, _ in pages.names()} == names
    assert pages.text("diagnosis") == text(TWO)
    assert {target["labels"]["job"] for target in pages.targets("lab:8000")} == names
    assert job.run() is None
