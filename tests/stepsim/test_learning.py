"""The catapult table: which learning rates spike, recover and overflow. Medians over seeds."""

from dataclasses import replace
from statistics import median

import pytest

from stepsim.draws import Draws
from stepsim.learning import Learner, Weights, bulk_loss
from stepsim.params import Params

SEEDS = range(31)
HEALTHY_STEPS = 100
NEVER = 10_000


def explode(cluster, factor, *, clip, seed, steps=200):
    """Records of a run whose learning rate is multiplied after a while."""
    healthy = Params.healthy(cluster)
    changed = replace(healthy, learning_rate_scale=factor, clip=clip)
    learner, random = Learner.start(), Draws(seed, 1).learning
    for _ in range(HEALTHY_STEPS):
        learner.step(healthy, random)
    return [learner.step(changed, random) for _ in range(steps)]


def first(records, holds):
    """Number of the first step for which it holds."""
    return next((number for number, record in enumerate(records, 1) if holds(record)), NEVER)


def overflow(records):
    return first(records, lambda record: record.nonfinite)


def loss_band(cluster):
    """Above it the loss is visibly out of its band."""
    return bulk_loss(1000 + HEALTHY_STEPS, cluster.model.vocabulary) + 0.5


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_moderate_learning_rates_stay_quiet(cluster, factor):
    """No step leaves the gradient norm's band, with or without clipping."""
    for seed in SEEDS:
        assert not any(record.out_of_band for record in explode(cluster, factor, clip=None, seed=seed))


@pytest.mark.parametrize(("factor", "spike"), [(2.0, 6), (3.0, 4)])
def test_the_catapult_spikes_and_recovers(cluster, factor, spike):
    """Between 2/λ and 4/λ the curvature falls until training is stable again."""
    lengths = []
    for seed in SEEDS:
        records = explode(cluster, factor, clip=None, seed=seed)
        assert overflow(records) == NEVER
        assert not any(record.out_of_band for record in records[100:])
        lengths.append(sum(record.out_of_band for record in records))
    assert median(lengths) == pytest.approx(spike, abs=2)


@pytest.mark.parametrize(("factor", "steps"), [(4.0, 10), (6.0, 8), (10.0, 6), (20.0, 5)])
def test_higher_learning_rates_overflow_without_clipping(cluster, factor, steps):
    """About two seconds after the change: less than a scrape."""
    assert median(overflow(explode(cluster, factor, clip=None, seed=seed)) for seed in SEEDS) == pytest.approx(
        steps, abs=2
    )


@pytest.mark.parametrize(("factor", "peak"), [(4.0, 7.6), (6.0, 9.5), (10.0, 11.0)])
def test_clipping_turns_the_overflow_into_a_spike(cluster, factor, peak):
    """The loss peaks, and comes back."""
    peaks = []
    for seed in SEEDS:
        records = explode(cluster, factor, clip=1.0, seed=seed)
        assert overflow(records) == NEVER
        peaks.append(max(record.loss for record in records))
        assert records[-1].loss < loss_band(cluster)
        assert any(record.clipped for record in records)
    assert median(peaks) == pytest.approx(peak, rel=0.07)


@pytest.mark.parametrize("factor", [2.0, 3.0, 4.0, 10.0, 20.0])
def test_the_gradient_norm_leaves_its_band_no_later_than_the_loss(cluster, factor):
    """For every seed; then, where it diverges, come the steps that are not finite."""
    for seed in SEEDS:
        records = explode(cluster, factor, clip=None, seed=seed)
        norm = first(records, lambda record: record.out_of_band)
        loss = first(records, lambda record: not record.loss < loss_band(cluster))
        assert norm <= loss <= overflow(records)


def test_a_slow_ramp_defuses_the_explosion(cluster):
    """Over minutes the curvature adapts to the rising learning rate."""
    healthy = Params.healthy(cluster)
    learner, random = Learner.start(), Draws(3, 1).learning
    for step in range(3000):
        record = learner.step(replace(healthy, learning_rate_scale=1 + 9 * step / 3000, clip=None), random)
        assert not record.nonfinite


def test_only_a_finite_checkpoint_is_kept(cluster):
    """Reloading it after an overflow goes on from there, with the step counter going on."""
    learner, random = Learner.start(), Draws(0, 1).learning
    for _ in range(10):
        learner.step(Params.healthy(cluster), random)
    learner.save()
    for _ in range(30):
        learner.step(replace(Params.healthy(cluster), learning_rate_scale=10.0, clip=None), random)
    assert not learner.weights.finite
    learner.save()
    learner.reload()
    assert learner.weights.finite
    assert learner.weights.step == 40
    assert not learner.step(Params.healthy(cluster), random).nonfinite


def test_a_healthy_loss_falls(cluster):
    """As a power of the learning rate spent."""
    assert bulk_loss(0, 50_368) == pytest.approx(10.83, abs=0.01)
    assert bulk_loss(1000, 50_368) > bulk_loss(10_000, 50_368) > 1.8
    assert Weights().finite
