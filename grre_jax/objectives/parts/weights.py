"""Importance weights W: factors of the gradient.

Weights are constants, never differentiated through. Exponentials are bounded as `ratios` documents;
each weight returns its values and where such a bound acted.
"""

import jax.numpy as jnp

from grre_jax.objectives.inputs import Gate, LossInputs, Scalar, Tokens
from grre_jax.objectives.objective import RATIO, Order, non_negative, positive, weight
from grre_jax.objectives.parts.advantages import TAU
from grre_jax.objectives.parts.ratios import (
    CLIP_RANGE,
    OUTER_RANGE,
    bounds,
    level_log_ratio,
    level_ratio,
    limited_exp,
)


def _unlimited(weight: Tokens) -> tuple[Tokens, Gate]:
    return weight, jnp.zeros(weight.shape, bool)


def _clipped_ratio(x: LossInputs, low: Scalar, high: Scalar) -> tuple[Tokens, Gate]:
    return _unlimited(jnp.clip(level_ratio(x), low, high))


@weight
def one(x: LossInputs) -> tuple[Tokens, Gate]:
    """1."""
    return _unlimited(jnp.ones_like(x.logprobs))


@weight(data=(RATIO,))
def ratio(x: LossInputs) -> tuple[Tokens, Gate]:
    """The gradient is multiplied by the ratio.

    rho.
    """
    return _unlimited(level_ratio(x))


@weight(hyperparameters=(TAU,))
def exponential(x: LossInputs) -> tuple[Tokens, Gate]:
    """exp(A / tau).

    RED-Weight (https://arxiv.org/abs/2509.24203), limited so that neither w nor w |A| exceeds
    exp(`LOG_WEIGHT_LIMIT`).
    """
    return limited_exp(x.advantages / x.hyperparameters["tau"], x.advantages)


@weight(hyperparameters=(TAU,))
def inverse_temperature(x: LossInputs) -> tuple[Tokens, Gate]:
    """1 / (1 + tau)."""
    return _unlimited(jnp.ones_like(x.logprobs) / (1 + x.hyperparameters["tau"]))


CLIP_LOW = non_negative("clip_low", "smallest importance weight", 0.0)
CLIP_HIGH = non_negative(
    "clip_high",
    "largest importance weight: the ratio itself, not 1 + epsilon",
    5.0,
    infinite=True,
)


@weight(
    hyperparameters=(CLIP_LOW, CLIP_HIGH), order=(Order("clip_low", "clip_high"),), data=(RATIO,)
)
def clipped(x: LossInputs) -> tuple[Tokens, Gate]:
    """The gradient is multiplied by the clipped ratio.

    CISPO (https://arxiv.org/abs/2506.13585) with absolute bounds; truncated importance sampling
    has [0, 1].
    """
    return _clipped_ratio(x, *bounds(x, "clip"))


@weight(hyperparameters=CLIP_RANGE, data=(RATIO,))
def clipped_around_one(x: LossInputs) -> tuple[Tokens, Gate]:
    """The gradient is multiplied by the clipped ratio.

    CISPO with bounds around 1.
    """
    low, high = bounds(x, "epsilon")
    return _clipped_ratio(x, 1 - low, 1 + high)


@weight(hyperparameters=OUTER_RANGE, data=(RATIO,))
def clipped_to_ring(x: LossInputs) -> tuple[Tokens, Gate]:
    """The gradient is multiplied by the ratio clipped to the outer ring.

    rho, clipped to the outer range of the ring mask.
    """
    low, high = x.hyperparameters["epsilon_low_prime"], x.hyperparameters["epsilon_high_prime"]
    return _clipped_ratio(x, 1 - low, 1 + high)


RATIO_CAP = positive("ratio_cap", "largest importance weight", 3.0, infinite=True)


@weight(hyperparameters=(RATIO_CAP,), data=(RATIO,))
def capped(x: LossInputs) -> tuple[Tokens, Gate]:
    """The gradient is multiplied by the capped ratio.

    min(rho, ratio_cap).
    """
    return _unlimited(jnp.minimum(level_ratio(x), x.hyperparameters["ratio_cap"]))


@weight(data=(RATIO,))
def tapered(x: LossInputs) -> tuple[Tokens, Gate]:
    """The gradient of negatives is multiplied by the ratio, at most 1.

    TOPR (https://arxiv.org/abs/2503.14286), whose ratio is that of the whole response, and whose A
    are rewards of +1 and -1.
    """
    truncated = jnp.exp(jnp.minimum(level_log_ratio(x), 0))
    return _unlimited(jnp.where(x.advantages > 0, 1, truncated))


GAMMA = (
    non_negative("k_positive", "power of the ratio where A >= 0", 2.0),
    non_negative("lambda_positive", "decay with the ratio where A >= 0", 3.0),
    non_negative("k_negative", "power of the ratio where A < 0", 3.0),
    non_negative("lambda_negative", "decay with the ratio where A < 0", 2.0),
)


@weight(hyperparameters=GAMMA, data=(RATIO,))
def gamma(x: LossInputs) -> tuple[Tokens, Gate]:
    """The gradient is multiplied by a weight that falls as the ratio leaves 1.

    VESPO (https://arxiv.org/abs/2602.10693): phi(W) = exp(lambda + k log W - lambda W), 1 at W = 1
    and falling on both sides.
    """
    n, log_ratio, rewarded = x.hyperparameters, level_log_ratio(x), x.advantages >= 0
    k = jnp.where(rewarded, n["k_positive"], n["k_negative"])
    rate = jnp.where(rewarded, n["lambda_positive"], n["lambda_negative"])
    # Where the ratio is limited, e^(-lambda W) is 0 either way.
    whole, _ = limited_exp(log_ratio, jnp.ones_like(log_ratio))
    return limited_exp(rate + k * log_ratio - rate * whole, x.advantages)


WEIGHT_CAP = positive(
    "weight_cap", "largest weight, of the ratio or its reciprocal", 3.0, infinite=True
)


@weight(hyperparameters=(WEIGHT_CAP,), data=(RATIO,))
def reciprocal(x: LossInputs) -> tuple[Tokens, Gate]:
    """The gradient is multiplied by the capped ratio, or its reciprocal where A > 0.

    ASPO (https://arxiv.org/abs/2510.06062): min(1/rho, cap) where A > 0, else min(rho, cap), so
    that tokens that have become unlikely are pushed up most.
    """
    ratio = level_ratio(x)
    inverted = jnp.where(x.advantages > 0, 1 / ratio, ratio)
    return _unlimited(jnp.minimum(inverted, x.hyperparameters["weight_cap"]))
