"""What is drawn from a seed."""

from itertools import pairwise

from practice_drills import drill_of
from stepsim.practice.scenario import BETWEEN_SECONDS, WARM_UP_SECONDS, draw_scenario, sealed_seeds

STRAGGLER = {"fault": "straggler", "lasts": "10m"}


def test_the_same_seed_draws_the_same_and_others_other_times_and_ranks():
    """Twenty seeds strike more than three ranks."""
    drill = drill_of()
    assert draw_scenario(drill, 5).incidents == draw_scenario(drill, 5).incidents
    drawn = [draw_scenario(drill, seed).incidents[0] for seed in range(20)]
    assert len({one.begins for one in drawn}) > 15
    assert len({one.target["rank"] for one in drawn}) > 3


def test_incidents_come_in_order_with_time_for_their_alerts_to_end():
    """And after the warm-up."""
    drill = drill_of(incidents=[STRAGGLER, {"fault": "data_starvation", "lasts": "5m"}, STRAGGLER], quiet_hours=3)
    for seed in range(10):
        scenario = draw_scenario(drill, seed)
        assert scenario.incidents[0].begins >= WARM_UP_SECONDS
        for one, following in pairwise(scenario.incidents):
            assert following.begins >= one.ends + one.reset_within + BETWEEN_SECONDS
        last = scenario.incidents[-1]
        assert scenario.seconds >= last.ends + last.reset_within
        assert [one.ends - one.begins for one in scenario.incidents] == [600, 300, 600]


def test_an_overlapping_incident_begins_in_the_middle_of_the_one_before_and_strikes_another_rank():
    """Two at once are two."""
    scenario = draw_scenario(drill_of(incidents=[STRAGGLER, {**STRAGGLER, "overlaps": True}]), 1)
    first, second = scenario.incidents
    assert second.begins == first.begins + 300
    assert first.target != second.target


def test_flaps_come_and_go_within_the_incident():
    """On for 40 s of every 120."""
    (incident,) = draw_scenario(
        drill_of(incidents=[{**STRAGGLER, "flaps": {"lasts": "40s", "pause": "80s"}}]), 1
    ).incidents
    requests = list(incident.requests())
    assert [at - incident.begins for at, _ in requests] == [0, 120, 240, 360, 480]
    assert {request["duration"] for _, request in requests} == {40}


def test_restarts_stay_away_from_incidents():
    """Before it, and after its alert had time to end."""
    for seed in range(10):
        scenario = draw_scenario(drill_of(distractors=["job_restart"], quiet_hours=2), seed)
        (incident,) = scenario.incidents
        assert scenario.restarts
        for at in scenario.restarts:
            assert at < incident.begins - 240 or at > incident.ends + incident.reset_within


def test_without_a_distractor_nothing_of_the_kind_happens():
    """No checkpoint, no evaluation, no restart."""
    scenario = draw_scenario(drill_of(distractors=[]), 1)
    assert scenario.job.schedule.checkpoint_every_steps == scenario.job.schedule.evaluation_every_steps == 0
    assert scenario.restarts == ()
    assert draw_scenario(drill_of(distractors=["checkpoint"]), 1).job.schedule.checkpoint_every_steps > 0


def test_sealed_seeds_are_the_same_for_everyone_and_differ_between_drills():
    """So that scores can be compared."""
    seeds = sealed_seeds(drill_of(seeds={"sealed": 3}))
    assert seeds == sealed_seeds(drill_of(seeds={"sealed": 3}))
    assert len({*seeds, *sealed_seeds(drill_of(id="other", seeds={"sealed": 3}))}) == 6
