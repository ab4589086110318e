"""Ratios of the policy to the data: their levels, the policies they are taken to, the importance
weights made of them, corrections for a sampler that differs from the learner, the penalty of their
variance, and the bounds of exponentials.

Log-ratios are d = l - `LossInputs.ratio_reference_logprobs`: of the policy that sampled (q), of the
policy at the start of the update (p), or of an interpolation of the two. A *level* is what they are
taken over:

| level | log-ratio of a token |
|---|---|
| `token` | d |
| `sequence` | S / n, the mean of d over its response, so that s = e^(S/n): GSPO |
| `sequence_sum` | S, the sum of d over its response: W = e^S is the ratio of whole responses |
| `group_expectation` | log P - log E: GEPO |

P is the geometric mean of a response's probabilities, and E the expectation under the data of that
of its group. GSPO: https://arxiv.org/abs/2507.18071, GEPO: https://arxiv.org/abs/2508.17850.

Exponentials are formed in log space and bounded there, so that no loss or gradient overflows.
Results are exact up to the bounds. Long before the first one acts, the metric
`ratio_out_of_bounds` reports that the policy is far from the data:

| bound | float32 | float64 | what it limits |
|---|---|---|---|
| `LOG_RATIO_LIMIT` | 40 | 80 | a log-ratio of a token, or its mean over a response, before exp |
| `LOG_WEIGHT_LIMIT` | 75 | 600 | log(w max(|A|, 1)) of an exponential weight w |

A weight w is exponential in a reward or in the log-ratio of a whole response.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from grre_jax.objectives.batch import Groups, segment_groups
from grre_jax.objectives.inputs import LossInputs, Scalar, Tokens, with_derivative
from grre_jax.objectives.objective import (
    RATIO,
    Order,
    Statistic,
    correction,
    level,
    non_negative,
    penalty,
    positive,
    ratio_reference,
    share,
    weight,
)
from grre_jax.objectives.parts.advantages import TAU

EPSILON_LOW = share("epsilon_low", "lower clip range: ratios from 1 - epsilon_low", 0.2)
EPSILON_HIGH = non_negative(
    "epsilon_high", "upper clip range: ratios up to 1 + epsilon_high", 0.2, infinite=True
)
CLIP_RANGE = (EPSILON_LOW, EPSILON_HIGH)
EPSILON_LOW_PRIME = share(
    "epsilon_low_prime", "outer lower range: ratios from 1 - epsilon_low_prime", 0.6
)
EPSILON_HIGH_PRIME = non_negative(
    "epsilon_high_prime",
    "outer upper range: ratios up to 1 + epsilon_high_prime",
    2.0,
    infinite=True,
)
OUTER_RANGE = (EPSILON_LOW_PRIME, EPSILON_HIGH_PRIME)

# exp overflows above 88.7 in float32 and 709 in float64: these leave room for the square of a
# ratio, and for sums of weighted terms.
LOG_RATIO_LIMIT = {32: 40.0, 64: 80.0}  # by the bits of the dtype
LOG_WEIGHT_LIMIT = {32: 75.0, 64: 600.0}


def limited(log_ratio: Tokens) -> Tokens:
    """Returns [tokens] log-ratios bounded by `LOG_RATIO_LIMIT`."""
    limit = LOG_RATIO_LIMIT[jnp.finfo(log_ratio.dtype).bits]
    return jnp.clip(log_ratio, -limit, limit)


def limited_exp(exponent: Tokens, advantages: Tokens) -> Tokens:
    """Computes e^exponent, limited such that neither it nor its product with |A| exceeds
    exp(`LOG_WEIGHT_LIMIT`).

    Args:
        exponent: [tokens] or [responses].
        advantages: A of each.
    """
    # Where |A| is below 1, the weight is larger than its product with |A|.
    limit = LOG_WEIGHT_LIMIT[jnp.finfo(exponent.dtype).bits] - jnp.log(
        jnp.maximum(jnp.abs(advantages), 1)
    )
    return jnp.exp(jnp.minimum(exponent, limit))


def bounds(x: LossInputs, name: str) -> tuple[Scalar, Scalar]:
    """Returns the hyperparameters of a range, its lower and its upper one."""
    return x.hyperparameters[f"{name}_low"], x.hyperparameters[f"{name}_high"]


def clip_range(x: LossInputs) -> tuple[Scalar, Scalar]:
    """Returns the least and the largest ratio of the clip range."""
    low, high = bounds(x, "epsilon")
    return 1 - low, 1 + high


def outer_range(x: LossInputs) -> tuple[Scalar, Scalar]:
    """Returns the least and the largest ratio of the outer range."""
    n = x.hyperparameters
    return 1 - n["epsilon_low_prime"], 1 + n["epsilon_high_prime"]


def level_log_ratio(x: LossInputs) -> Tokens:
    """Returns [tokens] log-ratios at the objective's level; its sums and means run over the live
    tokens of a response.
    """
    return x.objective.level(x)


def level_ratio(x: LossInputs) -> Tokens:
    """Returns [tokens] exp of `level_log_ratio`, bounded by `LOG_RATIO_LIMIT`."""
    return jnp.exp(limited(level_log_ratio(x)))


@level(of_response=False, description="a token")
def token(x: LossInputs) -> Tokens:
    """d of the token."""
    return x.log_ratio


@level(description="a response, geometric mean over its tokens")
def sequence(x: LossInputs) -> Tokens:
    """S / n of the token's response."""
    return x.mean_over_response(x.log_ratio)


@level(description="a whole response")
def sequence_sum(x: LossInputs) -> Tokens:
    """S of the token's response."""
    return x.total_over_response(x.log_ratio)


def _log_group_expectation(x: LossInputs) -> dict[str, Array]:
    """log (sum Q^2 / sum Q) over each group, [responses]: Q is the geometric mean of a response's
    probabilities under the data's policy.
    """
    groups = segment_groups(x.batch.group_ids)
    groups = Groups(
        groups.segments, groups.live & (x.stats.response_tokens > 0)
    )  # an empty response has no probability
    # [responses] log Q.
    mean = x.sum_by_response(x.old_logprobs) / jnp.maximum(x.stats.response_tokens, 1).astype(
        x.logprobs.dtype
    )
    highest = jnp.where(groups.live, groups.max(mean), 0)
    below = jnp.where(groups.live, mean - highest, 0)
    first, second = (
        jnp.log(jnp.where(groups.live, groups.sum(jnp.exp(power * below)), 1)) for power in (1, 2)
    )
    # Relative to the largest Q, so that no sum underflows to 0; one power of it is left.
    return {"log_group_expectation": highest + second - first}


@level(
    data=("old_logprobs",),
    gathers=(Statistic(("log_group_expectation",), _log_group_expectation, of_policy=False),),
    description="a response, to its group's expectation",
)
def group_expectation(x: LossInputs) -> Tokens:
    """log P of the token's response less log E of its group."""
    return x.mean_over_response(x.logprobs) - x.at_tokens(x.stats.gathered["log_group_expectation"])


@ratio_reference(data=("old_logprobs",), description="q, the policy that sampled")
def behavior(x: LossInputs) -> Tokens:
    """q."""
    return x.old_logprobs


@ratio_reference(data=("prox_logprobs",), description="p, the policy at the start of the update")
def proximal(x: LossInputs) -> Tokens:
    """p (https://arxiv.org/abs/2505.24298)."""
    return x.prox_logprobs


@ratio_reference(
    data=("old_logprobs", "staleness"), description="q moved towards the policy by 1 - 1/staleness"
)
def log_linear(x: LossInputs) -> Tokens:
    """p without a forward pass: q + (1 - 1/staleness) (l - q) with l a constant
    (https://arxiv.org/abs/2512.06547).
    """
    moved = jax.lax.stop_gradient(x.logprobs) - x.old_logprobs
    # At staleness 0 or 1 this is q itself.
    return x.old_logprobs + (1 - 1 / jnp.maximum(x.staleness, 1)) * moved


CORRECTION_CAP = positive("correction_cap", "largest correction e^(p-q)", 2.0, infinite=True)
CORRECTION_RANGE = (
    non_negative("correction_low", "smallest correction e^(p-q) that is not dropped", 0.0),
    positive(
        "correction_high", "largest correction e^(p-q) that is not dropped", 5.0, infinite=True
    ),
)
_of_mismatch = partial(correction, data=(RATIO, "old_logprobs"))
_within_range = _of_mismatch(
    hyperparameters=CORRECTION_RANGE, order=(Order("correction_low", "correction_high"),)
)


def _mismatch(x: LossInputs) -> Tokens:
    """[tokens] p - q of the policy at the start of the update and the one that sampled."""
    # p is the ratio reference: with a correction that is `proximal` by default.
    return jax.lax.stop_gradient(x.ratio_reference_logprobs - x.old_logprobs)


def _truncated(x: LossInputs, mismatch: Tokens) -> Tokens:
    cap = jnp.log(x.hyperparameters["correction_cap"])
    # The minimum is taken of logarithms, where nothing overflows; cap may be inf.
    return limited_exp(jnp.minimum(mismatch, cap), x.advantages)


def _kept_within(x: LossInputs, mismatch: Tokens) -> Tokens:
    low, high = bounds(x, "correction")
    factor = limited_exp(mismatch, x.advantages)
    return jnp.where((factor >= low) & (factor <= high), factor, 0)


@_of_mismatch(hyperparameters=(CORRECTION_CAP,))
def tis(x: LossInputs) -> Tokens:
    """Truncated importance sampling: min(e^(p-q), correction_cap) of the token."""
    return _truncated(x, _mismatch(x))


@_of_mismatch(hyperparameters=(CORRECTION_CAP,))
def tis_sequence(x: LossInputs) -> Tokens:
    """Truncated importance sampling of whole responses."""
    return _truncated(x, x.total_over_response(_mismatch(x)))


@_within_range
def bounded(x: LossInputs) -> Tokens:
    """e^(p-q) where it lies in [correction_low, correction_high], else 0.

    Decoupled PPO (https://arxiv.org/abs/2505.24298) has no lower bound, IcePop
    (https://arxiv.org/abs/2510.18855) both.
    """
    return _kept_within(x, _mismatch(x))


@_within_range
def bounded_sequence(x: LossInputs) -> Tokens:
    """The same of whole responses."""
    return _kept_within(x, x.total_over_response(_mismatch(x)))


# Importance weights W: constants.


def _clipped_ratio(x: LossInputs, low: Scalar, high: Scalar) -> Tokens:
    return jnp.clip(level_ratio(x), low, high)


@weight
def one(x: LossInputs) -> Tokens:
    """1."""
    return jnp.ones_like(x.logprobs)


@weight(data=(RATIO,))
def ratio(x: LossInputs) -> Tokens:
    """The gradient is multiplied by the ratio.

    rho.
    """
    return level_ratio(x)


@weight(hyperparameters=(TAU,))
def exponential(x: LossInputs) -> Tokens:
    """exp(A / tau).

    RED-Weight (https://arxiv.org/abs/2509.24203), limited so that neither w nor w |A| exceeds
    exp(`LOG_WEIGHT_LIMIT`).
    """
    return limited_exp(x.advantages / x.hyperparameters["tau"], x.advantages)


@weight(hyperparameters=(TAU,))
def inverse_temperature(x: LossInputs) -> Tokens:
    """1 / (1 + tau)."""
    return jnp.ones_like(x.logprobs) / (1 + x.hyperparameters["tau"])


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
def clipped(x: LossInputs) -> Tokens:
    """The gradient is multiplied by the clipped ratio.

    CISPO (https://arxiv.org/abs/2506.13585) with absolute bounds; truncated importance sampling
    has [0, 1].
    """
    return _clipped_ratio(x, *bounds(x, "clip"))


@weight(hyperparameters=CLIP_RANGE, data=(RATIO,))
def clipped_around_one(x: LossInputs) -> Tokens:
    """The gradient is multiplied by the clipped ratio.

    CISPO with bounds around 1.
    """
    return _clipped_ratio(x, *clip_range(x))


@weight(hyperparameters=OUTER_RANGE, data=(RATIO,))
def clipped_to_ring(x: LossInputs) -> Tokens:
    """The gradient is multiplied by the ratio clipped to the outer ring.

    rho, clipped to the outer range of the ring mask.
    """
    return _clipped_ratio(x, *outer_range(x))


RATIO_CAP = positive("ratio_cap", "largest importance weight", 3.0, infinite=True)


@weight(hyperparameters=(RATIO_CAP,), data=(RATIO,))
def capped(x: LossInputs) -> Tokens:
    """The gradient is multiplied by the capped ratio.

    min(rho, ratio_cap).
    """
    return jnp.minimum(level_ratio(x), x.hyperparameters["ratio_cap"])


@weight(data=(RATIO,))
def tapered(x: LossInputs) -> Tokens:
    """The gradient of negatives is multiplied by the ratio, at most 1.

    TOPR (https://arxiv.org/abs/2503.14286), whose ratio is that of the whole response, and whose A
    are rewards of +1 and -1.
    """
    # clip(W, 0, 1) in log space: W of a long response overflows.
    truncated = jnp.exp(jnp.minimum(level_log_ratio(x), 0))
    return jnp.where(x.advantages > 0, 1, truncated)


GAMMA = (
    non_negative("k_positive", "power of the ratio where A >= 0", 2.0),
    non_negative("lambda_positive", "decay with the ratio where A >= 0", 3.0),
    non_negative("k_negative", "power of the ratio where A < 0", 3.0),
    non_negative("lambda_negative", "decay with the ratio where A < 0", 2.0),
)


@weight(hyperparameters=GAMMA, data=(RATIO,))
def gamma(x: LossInputs) -> Tokens:
    """The gradient is multiplied by a weight that falls as the ratio leaves 1.

    VESPO (https://arxiv.org/abs/2602.10693): phi(W) = exp(lambda + k log W - lambda W), 1 at W = 1
    and falling on both sides.
    """
    n = x.hyperparameters
    log_ratio = level_log_ratio(x)
    rewarded = x.advantages >= 0
    k = jnp.where(rewarded, n["k_positive"], n["k_negative"])
    rate = jnp.where(rewarded, n["lambda_positive"], n["lambda_negative"])
    # Where the ratio is limited, e^(-lambda W) is 0 either way.
    w = limited_exp(log_ratio, jnp.ones_like(log_ratio))
    return limited_exp(rate + k * log_ratio - rate * w, x.advantages)


WEIGHT_CAP = positive(
    "weight_cap", "largest weight, of the ratio or its reciprocal", 3.0, infinite=True
)


@weight(hyperparameters=(WEIGHT_CAP,), data=(RATIO,))
def reciprocal(x: LossInputs) -> Tokens:
    """The gradient is multiplied by the capped ratio, or its reciprocal where A > 0.

    ASPO (https://arxiv.org/abs/2510.06062): min(1/rho, cap) where A > 0, else min(rho, cap), so
    that tokens that have become unlikely are pushed up most.
    """
    ratio = level_ratio(x)
    # The ratio is limited on both sides, and never 0.
    inverted = jnp.where(x.advantages > 0, 1 / ratio, ratio)
    return jnp.minimum(inverted, x.hyperparameters["weight_cap"])


VARIANCE_COEF = non_negative("variance_coef", "weight of the squared deviation of the ratio from 1")


@penalty(hyperparameters=(VARIANCE_COEF,), data=("old_logprobs",))
def ratio_variance(x: LossInputs) -> Tokens:
    """R2VPO (https://arxiv.org/abs/2601.03320): variance_coef (rho - 1)^2, whose mean over data of
    the policy that sampled is the variance of the ratio.
    """
    moved = x.behavior_log_ratio
    coefficient = x.hyperparameters["variance_coef"]
    apart = jnp.expm1(limited(jax.lax.stop_gradient(moved)))
    return with_derivative(
        coefficient * apart**2, 2 * coefficient * apart * (1 + apart), x.logprobs
    )
