"""What a drill's job leaves behind, series by series."""

import dataclasses

import numpy as np
import pytest

from practice_drills import drill_of
from stepsim.practice.recording import STALE, is_stale, load, record
from stepsim.practice.scenario import DOWN_SECONDS, draw_scenario


def row(recording, name, *parts):
    """The one series of that name which has these labels."""
    ((_, values),) = [(key, v) for key, v in recording.of([name]) if all(part in key for part in parts)]
    return values


def at(recording, seconds):
    """The first scrape at or after a moment."""
    return int(np.ceil(seconds / recording.scrape_seconds))


def test_the_same_seed_gives_the_same_numbers_and_another_gives_others(played):
    """To the last bit."""
    scenario, recording = played
    again, other = record(scenario), record(draw_scenario(scenario.drill, seed=4))
    assert again.keys == recording.keys
    assert (again.values.view(np.uint64) == recording.values.view(np.uint64)).all()
    energy = row(recording, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 'gpu="3"')
    assert energy[200] != row(other, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 'gpu="3"')[200]


def test_a_straggler_shows_at_the_next_scrape(played):
    """A step later the counters differ from what they would have been."""
    scenario, recording = played
    (visible,) = recording.visible
    assert 0 <= visible - scenario.incidents[0].begins <= 2 * recording.scrape_seconds


def test_a_slow_checkpoint_shows_when_the_next_one_is_written():
    """Until then nothing in the data is other than in a job without the fault."""
    drill = drill_of(
        incidents=[{"fault": "checkpoint_stall", "lasts": "20m"}], distractors=["checkpoint"],
        job={"schedule": {"checkpoint_every_steps": 700}},
    )  # fmt: skip
    scenario = draw_scenario(drill, seed=2)
    recording = record(scenario)
    checkpoint = row(recording, "training_phase_seconds_total", 'rank="0"', 'phase="checkpoint"')
    grew = np.flatnonzero(np.diff(checkpoint) > 0) + 1
    first = grew[grew * recording.scrape_seconds >= scenario.incidents[0].begins][0] * recording.scrape_seconds
    (visible,) = recording.visible
    assert visible > scenario.incidents[0].begins + 60
    assert abs(visible - first) <= 60  # it is longer than a healthy one once it has taken longer


def test_a_fault_that_changes_nothing_never_shows():
    """A straggler of factor 1."""
    recording = record(
        draw_scenario(drill_of(incidents=[{"fault": "straggler", "severity": 1.0, "lasts": "5m"}]), seed=1)
    )
    assert recording.visible == (float("inf"),)


def test_a_restart_takes_the_job_away_and_leaves_the_machines(played):
    """Its series are absent and its targets down; GPUs idle, and their energy counter goes on; steps count from 0."""
    scenario, recording = played
    begins = scenario.restarts[0]
    before, down = at(recording, begins) - 1, slice(at(recording, begins), at(recording, begins + DOWN_SECONDS) - 1)
    steps = row(recording, "training_steps_total", 'rank="3"')
    assert is_stale(steps[down]).all()
    assert row(recording, "up", 'job="training"')[down].tolist() == [0.0] * (down.stop - down.start)
    assert row(recording, "up", 'job="dcgm"').min() == 1
    assert row(recording, "DCGM_FI_DEV_GPU_UTIL", 'gpu="3"')[down].max() == 0
    energy = row(recording, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 'gpu="3"')
    assert (np.diff(energy) >= 0).all()
    assert 0 < steps[down.stop + 3] < steps[before]


def test_a_gpu_that_is_lost_after_a_restart_is_absent_like_any_other():
    """Its counters, too."""
    drill = drill_of(incidents=[{"fault": "gpu_lost", "lasts": "5m"}], distractors=["job_restart"])
    scenario = next(
        one for one in (draw_scenario(drill, seed) for seed in range(20)) if one.restarts[0] < one.incidents[0].begins
    )
    recording, (incident,) = record(scenario), scenario.incidents
    energy = row(recording, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", f'gpu="{incident.target["rank"]}"')
    assert is_stale(energy[at(recording, incident.begins + 15) : at(recording, incident.ends)]).all()
    assert not np.isnan(energy[: at(recording, incident.begins) - 1]).any()


def test_the_culprit_computes_for_longer_while_the_incident_lasts(played):
    """By the factor of the fault."""
    scenario, recording = played
    incident = scenario.incidents[0]
    forward = row(recording, "training_phase_seconds_total", f'rank="{incident.target["rank"]}"', 'phase="forward"')
    steps = row(recording, "training_steps_total", f'rank="{incident.target["rank"]}"')

    def per_step(begin, end):
        first, last = at(recording, begin), at(recording, end)
        return (forward[last] - forward[first]) / (steps[last] - steps[first])

    slow = per_step(incident.begins + 60, incident.ends - 60) / per_step(incident.begins - 300, incident.begins - 30)
    assert slow == pytest.approx(incident.severity, rel=0.03)


def test_what_is_kept_is_what_was_recorded(played, tmp_path):
    """Absence and NaN stay two things."""
    _, recording = played
    values = recording.values.copy()
    values[0, :2] = [STALE, np.nan]
    kept = dataclasses.replace(recording, values=values)
    kept.save(tmp_path / "r.npz")
    back = load(tmp_path / "r.npz")
    assert is_stale(back.values[0, :2]).tolist() == [True, False]
    assert (back.values.view(np.uint64) == values.view(np.uint64)).all()
    assert (back.keys, back.visible, back.scrape_seconds) == (kept.keys, kept.visible, kept.scrape_seconds)
    assert [file.name for file in tmp_path.iterdir()] == ["r.npz"]


def test_a_series_is_kept_once_for_all_that_are_alike(played):
    """32 CPUs of a node read the same."""
    _, recording = played
    assert len(recording.values) < 0.6 * len(recording.keys)
    assert recording.rows.max() == len(recording.values) - 1
