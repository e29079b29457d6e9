"""The judge: when an alert's grounds count, who is accused, and what is left out."""

import re
from dataclasses import replace

import pytest

from stepscope.diagnosis import diagnose
from stepscope.diagnosis.source import AlertRule

AT = 1_700_000_000.0


def rule(cause, *, for_seconds=10.0, keep_seconds=0.0, interval=5.0, **labels):
    return AlertRule(name=f"Alert-{cause}", expr=f"grounds-{cause}", for_seconds=for_seconds, keep_seconds=keep_seconds,
                     interval=interval, labels={"cause": cause, "severity": "page", **labels})  # fmt: skip


class Told:
    """A source whose grounds held at given seconds before now."""

    def __init__(self, *held, numbers=None, silent=()):
        self.held = held
        """Rule, labels, seconds before now at which its expression gave this."""
        self.numbers, self.silent = numbers or {}, silent

    def rules(self):
        return list({one.name: one for one, _, _ in self.held}.values()) or [rule("straggler")]

    def query(self, expr, at):
        named = re.search(r"grounds-\w+", expr)
        if named:
            window = float((re.search(r"\[(\d+)s:", expr) or [0, 0])[1])
            return [(labels, 1.0) for one, labels, ago in self.held if one.expr == named[0] and min(ago) <= window]
        if any(text in expr for text in self.silent):
            return []
        return [({}, next((number for text, number in self.numbers.items() if text in expr), 1.0))]

    def query_range(self, expr, start, end, step):
        return [
            (labels, [(AT - seconds, 1.0) for seconds in sorted(ago, reverse=True) if AT - seconds >= start])
            for one, labels, ago in self.held
            if one.expr == expr
        ]


RANK_5 = {"run": "r", "rank": "5", "node": "node-0"}
LONG = range(0, 300, 5)


def found(source):
    return [(verdict.fault, verdict.target) for verdict in diagnose(source, "r", AT).verdicts]


@pytest.mark.parametrize(("held", "expected"), [((0, 5), []), ((0, 5, 10), ["straggler"]), ((5, 10, 15), [])])
def test_grounds_count_when_they_have_held_for_as_long_as_the_alert_asks(held, expected):
    """Ten seconds until now; one that held until a moment ago is over."""
    assert [fault for fault, _ in found(Told((rule("straggler"), RANK_5, held)))] == expected


@pytest.mark.parametrize(
    ("held", "seconds"), [((0,), 0.0), ((0, 5), 5.0), ((0, 10, 15), 0.0), ((5,), None), ((0, 5, 10), None)]
)
def test_grounds_that_have_not_held_for_long_enough_are_a_suspicion(held, seconds):
    """Without a gap until now; a run of which something is suspected is not called healthy."""
    report = diagnose(Told((rule("straggler"), RANK_5, held)), "r", AT)
    assert [(one.fault, one.target, one.held_seconds, one.needed_seconds) for one in report.suspicions] == (
        [] if seconds is None else [("straggler", {"rank": 5}, seconds, 10.0)]
    )
    assert report.healthy == (held == (5,))
    assert [step.suspected for step in report.steps if step.suspected] == [
        (one.fault,) for one in report.suspicions
    ]  # fmt: skip


def test_nothing_is_suspected_that_a_cause_explains_or_that_is_certain():
    """A hot GPU's lateness, be the heat certain or suspected; and the same of the same rank by a second alert."""
    hot, late = rule("thermal_throttle"), (rule("straggler"), RANK_5, (0,))
    for held in (LONG, (0, 5)):
        report = diagnose(Told((hot, RANK_5, held), late), "r", AT)
        assert [one.fault for one in (*report.verdicts, *report.suspicions)] == ["thermal_throttle"]
    second = rule("thermal_throttle", severity="ticket", for_seconds=600.0)
    again = replace(second, name="Again", expr="grounds-again")
    assert not diagnose(Told((hot, RANK_5, LONG), (again, RANK_5, LONG)), "r", AT).suspicions


@pytest.mark.parametrize(
    ("interval", "held", "expected"),
    [(60, (0,), []), (60, (0, 60), ["straggler"]), (10, (0, 10), []), (10, (0, 10, 20), ["straggler"])],
)
def test_an_alert_fires_at_the_first_evaluation_that_is_late_enough(interval, held, expected):
    """Fifteen seconds are two evaluations at 10 s, and one at 60 s."""
    source = Told((rule("straggler", for_seconds=15.0, interval=float(interval)), RANK_5, held))
    assert [fault for fault, _ in found(source)] == expected


@pytest.mark.parametrize(("ago", "expected"), [((50, 60, 70), ["straggler"]), ((60, 70, 80), [])])
def test_an_alert_keeps_firing_until_the_first_evaluation_that_is_too_late(ago, expected):
    """45 s after the first one that gave nothing."""
    source = Told((rule("straggler", for_seconds=15.0, keep_seconds=45.0, interval=10.0), RANK_5, ago))
    assert [fault for fault, _ in found(source)] == expected


@pytest.mark.parametrize(("ago", "expected"), [(range(30, 60, 5), ["straggler"]), (range(35, 60, 5), [])])
def test_an_alert_that_keeps_firing_counts_for_as_long(ago, expected):
    """Its grounds may have been gone for 30 s."""
    source = Told((rule("straggler", keep_seconds=30.0), RANK_5, ago))
    assert [fault for fault, _ in found(source)] == expected


def test_the_accused_is_the_one_that_the_alert_names():
    """A rank, a node, or the run; other runs' are left alone."""
    source = Told(
        (rule("hang"), {"run": "other", "rank": "3"}, LONG),
        (rule("straggler"), RANK_5, LONG),
        (rule("storage_node_slow"), {"run": "r", "node": "node-3"}, LONG),
        (rule("small_batch"), {"run": "r"}, LONG),
    )
    assert sorted(found(source), key=str) == [
        ("small_batch", {"run": True}), ("storage_node_slow", {"node": "node-3"}), ("straggler", {"rank": 5}),
    ]  # fmt: skip


def test_a_cause_explains_its_symptoms_where_they_are_its_own():
    """A hot GPU's lateness is no second fault; that of another node's rank is."""
    hot, other = (rule("thermal_throttle"), RANK_5, LONG), {"run": "r", "rank": "20", "node": "node-2"}
    assert found(Told(hot, (rule("straggler"), RANK_5, LONG))) == [("thermal_throttle", {"rank": 5})]
    assert sorted(found(Told(hot, (rule("straggler"), other, LONG)))) == [
        ("straggler", {"rank": 20}), ("thermal_throttle", {"rank": 5}),
    ]  # fmt: skip


@pytest.mark.parametrize(("ago", "expected"), [(45, True), (50, False)])
def test_a_verdict_does_not_outlive_its_grounds_as_an_alert_may(ago, expected):
    """The alert is kept for ten minutes, so that it rings once; what is wrong is told for 45 seconds more."""
    source = Told((rule("straggler", keep_seconds=600.0), RANK_5, range(ago, ago + 60, 5)))
    assert bool(diagnose(source, "r", AT).verdicts) == expected


def test_an_exhibit_and_an_alert_of_somebody_elses_are_no_grounds():
    """What is kept to show what it misses; and what has no cause of ours."""
    exhibit = rule("storage_outage", exhibit="naive")
    assert (
        found(
            Told(
                (exhibit, {"run": "r"}, LONG),
                (rule("disk_full"), {"run": "r"}, LONG),
                (rule("hang"), {"run": "q"}, LONG),
            )
        )
        == []
    )


def test_what_is_costliest_comes_first():
    """By the GPUs that it costs: the share of its query, times the run's ranks."""
    numbers = {"training_ranks:count": 32.0, "rank:training_late_share": 0.25, "fixed_cost": 0.5}
    source = Told((rule("straggler"), RANK_5, LONG), (rule("small_batch"), {"run": "r"}, LONG), numbers=numbers)
    verdicts = diagnose(source, "r", AT).verdicts
    assert [(one.fault, one.lost_gpus) for one in verdicts] == [("small_batch", 16.0), ("straggler", 8.0)]


def test_a_look_alike_whose_metrics_are_missing_is_not_ruled_out_and_costs_confidence():
    """Without GPU metrics heat and power limits cannot be excluded; the report says what it could not look at."""
    blind = Told((rule("straggler"), RANK_5, LONG), silent=("gpu_thermally", "gpu_power_limit", "count(rank:gpu_"))
    report = diagnose(blind, "r", AT)
    (verdict,) = report.verdicts
    assert verdict.confidence == pytest.approx(0.8**2)
    assert not {"thermal_throttle", "power_cap"} & {one.fault for one in verdict.ruled_out}
    assert "no GPU metrics" in report.missing
    assert diagnose(Told((rule("straggler"), RANK_5, LONG)), "r", AT).verdicts[0].confidence == 1.0


def test_a_run_that_compiles_its_first_step_is_judged_and_one_without_the_rules_is_not():
    """What is recorded of a run without any step tells the one from the other."""
    assert diagnose(Told(silent=("training_last_step",)), "r", AT).enough_data
    (why,) = diagnose(Told(silent=("run:training_ranks:count",)), "r", AT).missing
    assert "does not evaluate" in why


def test_grounds_that_come_and_go_are_less_sure():
    """Half of the last half minute is half."""
    source = Told((rule("straggler", keep_seconds=45.0), RANK_5, range(15, 60, 5)))
    assert diagnose(source, "r", AT).verdicts[0].confidence == pytest.approx(0.5, abs=0.01)


def test_a_name_with_quotes_is_asked_about_and_not_executed():
    """Labels come from whoever is scraped."""
    asked = []

    class Listening(Told):
        def query(self, expr, at):
            asked.append(expr)
            return super().query(expr, at)

    name = 'a"} or vector(1) #\\'
    diagnose(Listening((rule("straggler"), {**RANK_5, "run": name}, LONG)), name, AT)
    assert all('run="a"}' not in expr for expr in asked)
    assert any(r'run="a\"} or vector(1) #\\"' in expr for expr in asked)
