"""How the loss and the gradient norm move: the catapult model, so that an explosion follows from the learning rate.

A two-layer linear model of width n trained on one example (Lewkowycz et al., arXiv 2003.02218): the error f and the
curvature λ move together. With learning rate η it is stable for ηλ < 2, spikes and recovers between 2 and 4, and
diverges above 4. It rides on a bulk loss that falls as a power of the learning rate spent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log, nan, sqrt

import numpy as np

from stepscope.record import Learning
from stepsim.draws import FloatArray, Scalars
from stepsim.params import Params

WIDTH = 100
CURVATURE = 1.2
"""Equilibrium of λ in units of the inverse of the configured learning rate: healthy, well below the edge at 2."""
RELAXATION = 2e-3
NOISE = 0.02
"""Of a step at the configured learning rate: it comes with the batch, and the step takes it over in proportion."""
BULK_GRADIENT, BULK_SIGMA = 0.30, 0.12
"""Norm of the bulk loss's gradient, and the standard deviation of its logarithm."""
LOSS_FLOOR, LOSS_EXPONENT, LOSS_SCALE = 1.8, 0.35, 60.0
SPIKE_LIMIT = 8.0
"""The loss saturates: a network that has forgotten everything predicts uniformly."""
OVERFLOW = 3.4e38
"""Largest number of bf16 and fp32."""
WARMED_UP = 1000.0
NOISE_SCALE = 4.0
"""Variance of one rank's gradient by the square of the true one's norm: the simple noise scale by the rank's batch
(McCandlish et al., arXiv 1812.06162, E|g_B|² = |G|² + tr(Σ)/B). A round number for a job whose batch is well chosen."""
LOCAL_SIGMA = 0.03
"""Of the logarithm of a local gradient's norm: a norm over a billion parameters hardly varies."""


@dataclass(kw_only=True, slots=True)
class Weights:
    """All that a checkpoint holds. ``spent`` is the sum of learning rates in units of the configured one."""

    step: int = 0
    """Steps done: a restarted job goes on from here."""
    error: float = 0.0
    curvature: float = CURVATURE
    spent: float = WARMED_UP

    @property
    def finite(self) -> bool:
        return isfinite(self.error) and isfinite(self.curvature) and 0.5 * self.error**2 <= OVERFLOW


@dataclass(kw_only=True, slots=True)
class Learner:
    """Trains ``weights``; keeps the last finite checkpoint."""

    weights: Weights
    checkpoint: Weights
    troubled: bool = False
    """Whether a step since the last checkpoint was out of band."""
    calm: bool = True
    """Whether the last step was in band."""
    _seen: tuple[Params | None, float] = (None, 1.0)
    """The last step's parameters, and what they make of the reduced gradient."""

    @classmethod
    def start(cls, checkpoint: Weights | None = None) -> Learner:
        saved = checkpoint or Weights()
        return cls(weights=replace(saved), checkpoint=saved)

    def save(self) -> None:
        """Write a checkpoint, unless training is out of band at this moment: a good one is never overwritten."""
        if self.calm:
            self.checkpoint, self.troubled = replace(self.weights), False

    def reload(self) -> None:
        """Go back to the last checkpoint; the step counter goes on."""
        self.weights = replace(self.checkpoint, step=self.weights.step)
        self.troubled, self.calm = False, True

    def step(self, params: Params, random: Scalars) -> Learning:
        """One optimizer step, seen as a training loop logs it: loss and norm of the gradient that was applied."""
        seen = self._step(params, random)
        self.calm = not seen.out_of_band
        self.troubled |= seen.out_of_band
        return seen

    def _gradient_factor(self, params: Params) -> float:
        if self._seen[0] is not params:
            self._seen = params, reduced_gradient_factor(params.gradient_scale)
        return self._seen[1]

    def _step(self, params: Params, random: Scalars) -> Learning:
        job, weights = params.job, self.weights
        rate = params.learning_rate_scale * job.optimization.learning_rate_share(weights.step)
        bulk = BULK_GRADIENT * exp(BULK_SIGMA * random.normal())
        noise = NOISE * random.normal()
        learning_rate = job.optimization.learning_rate * rate
        if not weights.finite:
            weights.step += 1
            return Learning(loss=nan, gradient_norm=nan, learning_rate=learning_rate, out_of_band=True)

        square = weights.error**2
        norm = sqrt(bulk**2 + weights.curvature * square) * self._gradient_factor(params)
        clipped = params.clip is not None and norm > params.clip
        applied = rate * params.clip / norm if clipped and params.clip is not None else rate
        loss = bulk_loss(weights.spent, job.model.vocabulary) + SPIKE_LIMIT * 0.5 * square / (
            SPIKE_LIMIT + 0.5 * square
        )
        share = params.update_share
        self.weights = _updated(weights, applied * share, rate * share, noise * share * min(1.0, rate))
        return Learning(
            loss=loss,
            gradient_norm=norm,
            learning_rate=learning_rate,
            clipped=clipped,
            out_of_band=norm > job.optimization.band,
        )


def reduced_gradient_factor(scale: FloatArray) -> float:
    """Norm of the mean of all ranks' gradients by what it is when nobody's is scaled. ``scale`` has shape (ranks,)."""
    ranks = len(scale)
    return sqrt((scale.mean() ** 2 + NOISE_SCALE * (scale**2).mean() / ranks) / (1 + NOISE_SCALE / ranks))


def local_gradient_norms(norm: float, scale: FloatArray, normal: FloatArray) -> FloatArray:
    """Norm of each rank's own gradient, shape (ranks,), where the mean of all has that norm; normal: standard normal."""
    own: FloatArray = norm * sqrt(1 + NOISE_SCALE) * np.exp(LOCAL_SIGMA * normal) * scale
    return own


def bulk_loss(spent: float, vocabulary: int) -> float:
    """Falls from the uniform prediction's ln V towards the floor."""
    return LOSS_FLOOR + (log(vocabulary) - LOSS_FLOOR) * (1 + spent / LOSS_SCALE) ** -LOSS_EXPONENT


def _updated(weights: Weights, applied: float, rate: float, noise: float) -> Weights:
    """Equations 4 and 5 of the paper, with noise, and with λ drawn back to its equilibrium.

    λ never falls below 2|f|/√n: it is the sum of two squares whose product is f.
    """
    error, curvature = weights.error, weights.curvature
    try:
        square = error**2 / WIDTH
        moved = error * (1 - applied * curvature + applied**2 * square) + noise
        bent = curvature + applied * square * (applied * curvature - 4) + RELAXATION * (CURVATURE - curvature)
    except OverflowError:
        moved = bent = inf
    return Weights(
        step=weights.step + 1,
        error=moved,
        curvature=max(bent, 2 * abs(moved) / sqrt(WIDTH)),
        spent=weights.spent + rate,
    )
