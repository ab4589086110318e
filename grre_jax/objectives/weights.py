"""Gradient masks M and importance weights W of the REC and RED families.

The update is g = -(1/Z) sum m A W M grad(log pi), so a mask is a 0/1 gate on a token's gradient and a weight multiplies it; neither is
differentiated through. From "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm" (https://arxiv.org/abs/2509.24203); the
one-side mask is the gradient of PPO's clipped objective (https://arxiv.org/abs/1707.06347). Bounds are included in what passes, and a
zero advantage always passes (it contributes nothing).

Exponentials are formed in log space and bounded there, so that no loss or gradient overflows. Results are exact up to the bounds, and
`policy_loss` reports as `limited_fraction` the share of tokens where one acted:

| bound | float32 | float64 | what it limits |
|---|---|---|---|
| `LOG_RATIO_LIMIT` | 40 | 80 | the log-ratio d of a token, before exp: rho is within [e^-limit, e^limit] |
| `LOG_WEIGHT_LIMIT` | 75 | 600 | log(w |A|) of an exponential weight: w |A| is at most e^limit |
"""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

LOG_RATIO_LIMIT = {32: 40.0, 64: 80.0}  # by the bits of the dtype
LOG_WEIGHT_LIMIT = {32: 75.0, 64: 600.0}

Number = float | Float[Array, ""]
Tokens = Float[Array, " tokens"]
Gate = Bool[Array, " tokens"]


def limit_log_ratio(log_ratio: Tokens) -> tuple[Tokens, Gate]:
    """Bounds log-ratios by `LOG_RATIO_LIMIT`.

    Args:
      log_ratio: [tokens] d = log pi - log q.

    Returns:
      [tokens] the bounded log-ratios, [tokens] True where the bound acted.
    """
    limit = LOG_RATIO_LIMIT[jnp.finfo(log_ratio.dtype).bits]
    return jnp.clip(log_ratio, -limit, limit), jnp.abs(log_ratio) > limit


def one_side_mask(ratio: Tokens, advantages: Tokens, epsilon_low: Number, epsilon_high: Number) -> Gate:
    """REC-OneSide: stops a token that has already moved far enough in the direction its advantage pushes.

    M = 1[A >= 0 and rho <= 1 + epsilon_high] or 1[A <= 0 and rho >= 1 - epsilon_low].

    Args:
      ratio: [tokens] rho.
      advantages: [tokens] A of each token's response.
      epsilon_low: in [0, 1].
      epsilon_high: at least 0.

    Returns:
      [tokens] True where the gradient passes.
    """
    return ((advantages >= 0) & (ratio <= 1 + epsilon_high)) | ((advantages <= 0) & (ratio >= 1 - epsilon_low))


def two_side_mask(ratio: Tokens, advantages: Tokens, epsilon_low: Number, epsilon_high: Number) -> Gate:
    """REC-TwoSide: M = 1[1 - epsilon_low <= rho <= 1 + epsilon_high], whatever the sign of A. Arguments and result as `one_side_mask`."""
    return ((ratio >= 1 - epsilon_low) & (ratio <= 1 + epsilon_high)) | (advantages == 0)


def ring_mask(
    ratio: Tokens, advantages: Tokens, epsilon_low: Number, epsilon_high: Number, epsilon_low_prime: Number, epsilon_high_prime: Number
) -> Gate:
    """REC-Ring: the two-side mask, and beyond an outer ring the tokens whose advantage pulls them back.

    M = two-side or (A >= 0 and rho <= 1 - epsilon_low_prime) or (A <= 0 and rho >= 1 + epsilon_high_prime).

    Args:
      ratio: [tokens] rho.
      advantages: [tokens] A of each token's response.
      epsilon_low: in [0, 1], the inner bound below.
      epsilon_high: at least 0, the inner bound above.
      epsilon_low_prime: in [epsilon_low, 1], the outer bound below.
      epsilon_high_prime: at least epsilon_high, the outer bound above.

    Returns:
      [tokens] True where the gradient passes.
    """
    inner = two_side_mask(ratio, advantages, epsilon_low, epsilon_high)
    return inner | ((advantages >= 0) & (ratio <= 1 - epsilon_low_prime)) | ((advantages <= 0) & (ratio >= 1 + epsilon_high_prime))


def frozen_log_ratio(log_ratio: Tokens, passes: Gate, epsilon_low: Number, epsilon_high: Number) -> Tokens:
    """The log-ratio a loss's value is read at: d where the gradient passes, else the nearest of log(1 - epsilon_low), log(1 +
    epsilon_high) where it does not.

    With importance weights and the one-side mask, exp of it times -A is then exactly PPO's clipped objective.
    """
    return jnp.where(passes, log_ratio, jnp.clip(log_ratio, jnp.log1p(-epsilon_low), jnp.log1p(epsilon_high)))


def exponential_weight(advantages: Tokens, tau: Number) -> tuple[Tokens, Gate]:
    """RED-Weight: w = exp(A / tau), larger for better responses (https://arxiv.org/abs/2509.24203).

    Args:
      advantages: [tokens] or [responses] A = r - mean(r).
      tau: temperature, in units of reward.

    Returns:
      w, limited so that w |A| <= exp(`LOG_WEIGHT_LIMIT`) and w itself too; True where that limit acted.
    """
    limit = LOG_WEIGHT_LIMIT[jnp.finfo(advantages.dtype).bits] - jnp.log(jnp.maximum(jnp.abs(advantages), 1))
    exponent = advantages / tau
    return jnp.exp(jnp.minimum(exponent, limit)), exponent > limit


# name -> function of (ratio, advantages, numbers); ratio is None where the batch has no behaviour log-probs, and only "none" accepts that.
MASKS: dict[str, Callable[[Tokens | None, Tokens, Mapping[str, Number]], Gate]] = {
    "none": lambda ratio, advantages, n: jnp.ones(advantages.shape, bool),
    "one_side": lambda ratio, advantages, n: one_side_mask(ratio, advantages, n["epsilon_low"], n["epsilon_high"]),
    "two_side": lambda ratio, advantages, n: two_side_mask(ratio, advantages, n["epsilon_low"], n["epsilon_high"]),
    "ring": lambda ratio, advantages, n: ring_mask(
        ratio, advantages, n["epsilon_low"], n["epsilon_high"], n["epsilon_low_prime"], n["epsilon_high_prime"]
    ),
}


def _unlimited(weight: Tokens) -> tuple[Tokens, Gate]:
    return weight, jnp.zeros(weight.shape, bool)


# name -> function of (ratio, advantages, numbers) returning the weight and where a bound acted.
WEIGHTS: dict[str, Callable[[Tokens | None, Tokens, Mapping[str, Number]], tuple[Tokens, Gate]]] = {
    "one": lambda ratio, advantages, n: _unlimited(jnp.ones_like(advantages)),
    "ratio": lambda ratio, advantages, n: _unlimited(ratio),
    "exponential": lambda ratio, advantages, n: exponential_weight(advantages, n["tau"]),
    "inverse_temperature": lambda ratio, advantages, n: _unlimited(jnp.ones_like(advantages) / (1 + n["tau"])),
}
