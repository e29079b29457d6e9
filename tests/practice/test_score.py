"""The score, held against cases whose numbers are worked out by hand."""

from math import exp

import pytest

from stepsim.practice.alarms import Alarm, Episode, alarms
from stepsim.practice.scenario import Struck
from stepsim.practice.score import false_alarm_bound, judge, total

EVERY = 30.0
DAY = 86_400.0


def struck(begins, lasts=1200.0, **changes):
    """A straggler on rank 5 that pages, unless said otherwise."""
    told = {"fault": "straggler", "target": {"rank": 5}, "severity": 1.4, "ramp_seconds": 0.0, "flaps": None, "expect": "page",
            "detect_within": 300.0, "reset_within": 300.0, **changes}  # fmt: skip
    return Struck(begins=begins, ends=begins + lasts, **told)


def fires(begins, ends, name="Slow", **labels):
    """One alarm of one label set."""
    told = {"alertname": name, "run": "practice", "severity": "page", **labels}
    episode = Episode(labels=frozenset(told.items()), begins=begins, ends=ends)
    return Alarm(name=name, kind="page" if told["severity"] == "page" else "ticket", episodes=(episode,))


def scored(raised, incidents, *, visible=None, seconds=DAY):
    seen = visible or [incident.begins for incident in incidents]
    return total([judge(raised, incidents, seen, seed=1, every=EVERY, seconds=seconds)])


THREE = [struck(at) for at in (6_000.0, 30_000.0, 60_000.0)]


def test_an_oracle_scores_100():
    """At once, with the culprit, and gone at once."""
    score = scored([fires(one.begins, one.ends, rank="5") for one in THREE], THREE)
    assert score.score == pytest.approx(100)
    assert (score.recall, score.precision, score.delay, score.culprit, score.reset, score.noise) == (1, 1, 1, 1, 1, 0)


def test_rules_that_never_fire_score_0():
    """However few false alarms they make."""
    assert scored([], THREE).score == 0


def test_rules_that_always_fire_score_0():
    """An alarm that was there before the incident earns nothing, though it names everyone."""
    assert scored([fires(0.0, None, rank="5")], THREE).score == 0
    assert scored([fires(600.0, None, rank="5")], THREE).score == 0


def test_what_begins_while_rates_fill_does_not_count():
    """In the first two minutes of a seed: neither as a false alarm nor as healthy time."""
    score = scored([fires(90.0, 150.0), fires(120.0, 180.0)], [struck(6_000.0)])
    assert score.false_alarms == 1
    assert score.healthy_hours == pytest.approx((DAY - 1500 - 120) / 3600)


def test_spam_scores_almost_nothing():
    """It catches all, and its pages are worth nothing: one every ten minutes."""
    score = scored([fires(at, at + 60, rank="5") for at in range(600, int(DAY), 600)], THREE)
    assert score.told == 3
    assert score.score < 5


def test_a_careful_rule_scores_73_and_60_without_the_culprit():
    """Two minutes late, a minute too long, and a false alarm in four healthy days: 0.25 a day, so P is 0.8."""
    seconds = 4 * DAY + 3 * 1500 + 120  # beside the incidents, with five minutes each to end, and what does not count
    for labels, culprit, expected in (({"rank": "5"}, 1, 76.9), ({}, 0, 60.9)):
        raised = [fires(one.begins + 120, one.ends + 60, **labels) for one in THREE] + [fires(80_010.0, 80_100.0)]
        score = scored(raised, THREE, seconds=seconds)
        assert score.precision == pytest.approx(0.8)
        assert score.score == pytest.approx(
            100 * (0.5 * 1.6 / 1.8 + 0.4 * (0.4 * 0.6 + 0.4 * culprit + 0.2 * 0.8)), abs=0.01
        )
        assert score.score == pytest.approx(expected, abs=0.6)


def test_a_miss_is_0_in_every_part():
    """One of three: recall and quality fall to two thirds."""
    score = scored([fires(one.begins, one.ends, rank="5") for one in THREE[:2]], THREE)
    assert score.recall == pytest.approx(2 / 3)
    assert score.delay == score.culprit == score.reset == pytest.approx(2 / 3)
    assert score.score == pytest.approx(100 * (0.5 * 0.8 + 0.5 * 2 / 3))


def test_the_delay_counts_from_the_first_evaluation_at_which_the_fault_shows():
    """It begins at 6,000 s, shows at 6,110 s, and could have been told at 6,120 s: 60 s of 300 are lost."""
    score = scored([fires(6_180.0, 7_200.0, rank="5")], [struck(6_000.0)], visible=[6_110.0])
    assert score.delay == pytest.approx(0.8)


def test_an_alarm_that_ends_while_the_fault_lasts_has_no_reset():
    """A flapping page is no page."""
    score = scored([fires(6_000.0, 6_500.0, rank="5")], [struck(6_000.0)])
    assert score.reset == 0


def test_an_alarm_that_never_ends_has_no_reset():
    """Not even late."""
    assert scored([fires(6_000.0, None, rank="5")], [struck(6_000.0)]).reset == 0


def test_the_culprit_is_shared_by_those_who_are_named_at_once():
    """Four ranks in one alarm, the true one among them: a quarter."""
    episodes = tuple(
        Episode(labels=frozenset({("alertname", "Slow"), ("rank", str(rank))}), begins=6_000.0, ends=7_200.0)
        for rank in range(3, 7)
    )
    score = scored([Alarm(name="Slow", kind="page", episodes=episodes)], [struck(6_000.0)])
    assert score.culprit == pytest.approx(1 / 4)


def test_the_culprit_that_is_named_third_earns_a_third():
    """Two victims were named before it."""
    raised = [
        fires(6_000.0, 7_200.0, rank="1"),
        fires(6_030.0, 7_200.0, "B", rank="2"),
        fires(6_060.0, 7_200.0, "C", rank="5"),
    ]
    score = scored(raised, [struck(6_000.0)])
    assert score.culprit == pytest.approx(1 / 3)
    assert score.noise == 2


def test_without_a_culprit_the_rest_counts_for_all():
    """Delay 1 and reset a half: 0.4 and 0.1 of 0.6."""
    incident = struck(6_000.0, target={"run": True})
    score = scored([fires(6_000.0, incident.ends + 150)], [incident])
    assert score.culprit is None
    assert score.score == pytest.approx(100 * (0.5 + 0.5 * 0.5 / 0.6))


def test_a_page_where_a_ticket_would_do_is_a_false_page():
    """And the incident is missed."""
    score = scored([fires(6_000.0, 7_200.0, rank="5")], [struck(6_000.0, expect="ticket")])
    assert (score.told, score.false_alarms) == (0, 1)


def test_a_ticket_where_a_page_is_due_is_a_miss_and_no_false_alarm():
    """It says the right thing to nobody."""
    score = scored([fires(6_000.0, 7_200.0, rank="5", severity="ticket")], [struck(6_000.0)])
    assert (score.told, score.false_alarms) == (0, 0)


def test_what_fires_on_a_distractor_is_a_false_alarm():
    """A fault that is worth no alarm."""
    score = scored([fires(30_000.0, 30_300.0)], [struck(6_000.0), struck(30_000.0, expect="silence")])
    assert (score.incidents, score.false_alarms) == (1, 1)


def test_an_alarm_up_to_a_minute_after_the_end_is_still_of_the_incident():
    """After that it is false."""
    incident = struck(6_000.0)
    assert scored([fires(incident.ends + 60, incident.ends + 300)], [incident]).told == 1
    late = scored([fires(incident.ends + 90, incident.ends + 300)], [incident])
    assert (late.told, late.false_alarms) == (0, 1)


def test_two_at_once_are_told_by_the_alarms_that_name_them():
    """Not in the order in which they come."""
    both = [struck(6_000.0), struck(6_300.0, target={"rank": 9})]
    score = scored([fires(6_360.0, 7_500.0, "A", rank="9"), fires(6_390.0, 7_200.0, "B", rank="5")], both)
    assert (score.told, score.culprit) == (2, 1)


def test_64_ranks_make_one_page():
    """Their episodes overlap, or follow without a gap."""
    firing = {
        frozenset({("alertname", "A"), ("run", "r"), ("rank", str(rank))}): [30.0 * rank, 30.0 * rank + 30]
        for rank in range(64)
    }
    (page,) = alarms(firing, every=30.0, last=10_000.0)
    assert (page.begins, page.ends, len(page.episodes)) == (0, 64 * 30 + 30, 64)


def test_a_gap_makes_two_pages():
    """One evaluation without it is enough."""
    firing = {frozenset({("alertname", "A")}): [0.0, 30.0, 90.0]}
    assert [(one.begins, one.ends) for one in alarms(firing, every=30.0, last=900.0)] == [(0, 60), (90, 120)]


def test_what_fires_at_the_last_evaluation_has_not_ended():
    """Nobody knows how long it goes on."""
    (alarm,) = alarms({frozenset({("alertname", "A")}): [870.0, 900.0]}, every=30.0, last=900.0)
    assert alarm.ends is None


@pytest.mark.parametrize("false", [0, 1, 5])
def test_the_bound_is_the_rate_that_makes_so_few_with_a_chance_of_one_in_twenty(false):
    """Of a Poisson process, over the hours that were watched."""
    mean = false_alarm_bound(false, 72.0) * 3
    chance, term = 0.0, exp(-mean)
    for number in range(false + 1):
        chance += term
        term *= mean / (number + 1)
    assert chance == pytest.approx(0.05, rel=1e-6)


def test_without_any_the_bound_is_72_by_hours():
    """The rule of three."""
    assert false_alarm_bound(0, 24.0) == pytest.approx(3.0, rel=0.002)
