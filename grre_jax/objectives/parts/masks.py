"""Gradient masks M of tokens, and filters of whole responses.

A mask is a 0/1 gate on a token's gradient and is not differentiated through. Bounds are included in
what passes. A zero advantage contributes nothing, whether it passes or not. The REC masks are those
of "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm"
(https://arxiv.org/abs/2509.24203); the one-side mask is the gradient of PPO's clipped objective
(https://arxiv.org/abs/1707.06347). Responses that a filter leaves out still count in the
denominators.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from grre_jax.objectives.inputs import Gate, LossInputs, Scalar, Tokens
from grre_jax.objectives.objective import (
    RATIO,
    Hyperparameter,
    Order,
    Statistic,
    filter_,
    mask,
    non_negative,
    positive,
    share,
)
from grre_jax.objectives.parts.ratios import (
    CLIP_RANGE,
    OUTER_RANGE,
    bounds,
    clip_range,
    level_log_ratio,
    level_ratio,
    limited,
    outer_range,
)


def trust_region_candidates(log_ratio: Tokens, advantages: Tokens) -> Gate:
    """Returns [tokens] True where M2PO's trust region looks: A > 0 and rho > 1, or A < 0 and
    rho < 1.
    """
    return jnp.sign(advantages) * log_ratio > 0


def within_bounds(values: Tokens, advantages: Tokens, low: Scalar, high: Scalar) -> Gate:
    """Returns [tokens] False where a value has passed its bound in the direction of A."""
    return ((advantages >= 0) & (values <= high)) | ((advantages <= 0) & (values >= low))


def probability(logprobs: Tokens) -> Tokens:
    """Returns [tokens] e^l, at most 1."""
    return jnp.exp(jnp.minimum(logprobs, 0))  # a log-prob that rounding left above 0 is 0


@mask(name="none")
def unmasked(x: LossInputs) -> Gate:
    """Every token passes."""
    return jnp.ones(x.mask.shape, bool)


@mask(hyperparameters=CLIP_RANGE, data=(RATIO,))
def one_side(x: LossInputs) -> Gate:
    """One-sided clip: a token that has moved past its bound in the direction of A gets no
    gradient.

    M = 1[A >= 0 and rho <= 1 + epsilon_high] or 1[A <= 0 and rho >= 1 - epsilon_low].
    """
    return within_bounds(level_ratio(x), x.advantages, *clip_range(x))


@mask(hyperparameters=CLIP_RANGE, data=(RATIO,))
def two_side(x: LossInputs) -> Gate:
    """Two-sided clip: a token outside the bounds gets no gradient.

    M = 1[1 - epsilon_low <= rho <= 1 + epsilon_high], whatever the sign of A.
    """
    ratio = level_ratio(x)
    low, high = clip_range(x)
    return ((ratio >= low) & (ratio <= high)) | (x.advantages == 0)


@mask(
    hyperparameters=(*CLIP_RANGE, *OUTER_RANGE),
    order=(Order("epsilon_low", "epsilon_low_prime"), Order("epsilon_high", "epsilon_high_prime")),
    data=(RATIO,),
)
def ring(x: LossInputs) -> Gate:
    """Ring clip: a token between the rings gets no gradient, beyond the outer one only where A
    pulls it back.

    M = two-side or (A >= 0 and rho <= 1 - epsilon_low_prime) or (A <= 0 and rho >= 1 +
    epsilon_high_prime).
    """
    near, far = outer_range(x)
    # The outer bounds change places: beyond the far side passes what A pulls back.
    return two_side(x) | within_bounds(level_ratio(x), x.advantages, far, near)


VETO_RANGE = (
    share("veto_low", "ratio below which a token vetoes those after it; 0: never"),
    Hyperparameter(
        "veto_high",
        "ratio above which a token vetoes those after it; inf: never",
        low=1,
        infinite=True,
    ),
)


@mask(hyperparameters=(*CLIP_RANGE, *VETO_RANGE), data=(RATIO,))
def veto(x: LossInputs) -> Gate:
    """One-sided clip; where A < 0, no gradient behind the first token of the response whose ratio
    lies outside [veto_low, veto_high].

    The negative-advantage veto of mu-GRPO (https://arxiv.org/abs/2605.17570), as its abstract has
    it: in a response with a negative advantage the updates of the suffix behind a trigger are
    removed. The abstract defines no trigger, so that the bounds have no
    defaults. The trigger itself is left to the clip.
    """
    ratio = level_ratio(x)
    low, high = bounds(x, "veto")
    ids = x.batch.response_ids
    negative = x.advantages < 0
    place = jnp.arange(ids.size)
    # Tokens that do not count have A = 0, and are no triggers.
    trigger = jnp.where(negative & ((ratio < low) | (ratio > high)), place, ids.size)
    first = jax.ops.segment_min(trigger, ids, x.batch.group_ids.size)
    # Behind the first trigger only. Relies on the tokens of a response being in order.
    return one_side(x) & ~(negative & (place > first[ids]))


DIVERGENCE_RANGE = (
    non_negative("divergence_low", "how far a token may move down", 0.2, infinite=True),
    non_negative("divergence_high", "how far a token may move up", 0.2, infinite=True),
)


@mask(hyperparameters=DIVERGENCE_RANGE, data=(RATIO,))
def total_variation(x: LossInputs) -> Gate:
    """A token whose probability has moved too far the way of A gets no gradient.

    DPPO-TV (https://arxiv.org/abs/2602.04879): M = 1[pi - pi_b <= divergence_high] where A > 0,
    else 1[pi - pi_b >= -divergence_low].
    """
    low, high = bounds(x, "divergence")
    moved = probability(x.logprobs) - probability(x.ratio_reference_logprobs)
    return jnp.where(x.advantages > 0, moved <= high, moved >= -low)


@mask(hyperparameters=DIVERGENCE_RANGE, data=(RATIO,))
def binary_kl(x: LossInputs) -> Gate:
    """A token whose probability has diverged too far the way of A gets no gradient.

    DPPO-KL: the same with the KL of the two-way choice between a token and all others. Stops where
    KL(pi_b || pi) > high and pi > pi_b with A > 0, or KL > low and pi < pi_b otherwise. The
    probabilities of the others are kept above 0 by 1e-8, as in the public implementation.
    """
    low, high = bounds(x, "divergence")
    old_logprobs = x.ratio_reference_logprobs
    policy = probability(x.logprobs)
    behavior = probability(old_logprobs)
    # 1 - e^x by expm1: written out, the compiler may fold 1e-8 into the 1, and near 1 nothing else
    # is left.
    behavior_others, policy_others = (
        -jnp.expm1(jnp.minimum(values, 0)) + 1e-8 for values in (old_logprobs, x.logprobs)
    )
    rest = jnp.log(behavior_others / policy_others)
    divergence = behavior * (old_logprobs - x.logprobs) + (1 - behavior) * rest
    return jnp.where(
        x.advantages > 0,
        (divergence <= high) | (policy <= behavior),
        (divergence <= low) | (policy >= behavior),
    )


M2_THRESHOLD = non_negative(
    "m2_threshold", "largest mean squared log-ratio of the trust region's tokens", 0.04
)


def _second_moment_threshold(x: LossInputs) -> dict[str, Array]:
    """The largest d^2 up to which the mean d^2 of the trust-region candidates is at most
    m2_threshold.

    The threshold lies halfway to the first that is dropped, so that rounding d anew in another
    split of the batch drops no other token.
    """
    moved = level_log_ratio(x)
    candidate = x.mask & trust_region_candidates(moved, x.advantages)
    squares = jnp.sort(jnp.where(candidate, moved**2, jnp.inf))
    sums = jnp.cumsum(jnp.where(jnp.isfinite(squares), squares, 0))
    # Running means of ascending squares do not fall: the candidates within are the smallest ones.
    within = sums / jnp.arange(1, squares.size + 1) <= x.hyperparameters["m2_threshold"]
    first = jnp.min(jnp.where(within, jnp.inf, squares), initial=jnp.inf)
    last = jnp.max(jnp.where(squares < first, squares, -jnp.inf), initial=-jnp.inf)
    # -1 lies below every square: all candidates are dropped.
    halfway = jnp.where(jnp.isfinite(last), last + (first - last) / 2, -1.0)
    threshold = jnp.where(jnp.isfinite(first), halfway, jnp.inf).astype(moved.dtype)
    return {"second_moment_threshold": threshold}


@mask(
    hyperparameters=(M2_THRESHOLD,),
    data=(RATIO,),
    gathers=(Statistic(("second_moment_threshold",), _second_moment_threshold),),
)
def second_moment(x: LossInputs) -> Gate:
    """The tokens of the largest squared log-ratios get no gradient.

    M2PO (https://arxiv.org/abs/2510.01161): stops the largest log-ratios of the global batch.
    """
    moved = level_log_ratio(x)
    return ~trust_region_candidates(moved, x.advantages) | (
        moved**2 <= x.stats.gathered["second_moment_threshold"]
    )


OPSM_DELTA = Hyperparameter(
    "opsm_delta",
    "largest mean of q - l of a response with a negative advantage, in nats; may be negative",
    0.1,
)


@filter_(hyperparameters=(OPSM_DELTA,), data=("old_logprobs",))
def opsm(x: LossInputs) -> Gate:
    """OPSM of DeepSeek-V3.2: keeps a response if A >= 0 or the mean of q - l over its tokens is
    at most opsm_delta.
    """
    return (x.advantages >= 0) | (
        x.mean_over_response(-x.behavior_log_ratio) <= x.hyperparameters["opsm_delta"]
    )


SEQUENCE_RANGE = (
    non_negative("sequence_low", "smallest ratio of a response that is kept", 0.999),
    positive("sequence_high", "largest ratio of a response that is kept", 1.001, infinite=True),
)
_within_range = filter_(
    hyperparameters=SEQUENCE_RANGE,
    order=(Order("sequence_low", "sequence_high"),),
    data=("old_logprobs",),
)


def _kept(x: LossInputs, log_ratio: Tokens) -> Gate:
    low, high = bounds(x, "sequence")
    # Compared as logarithms: e^S of a long response overflows.
    return (log_ratio >= jnp.log(low)) & (log_ratio <= jnp.log(high))


@_within_range
def geometric(x: LossInputs) -> Gate:
    """Keeps a response whose length-normalised ratio s = e^(S/n) lies in [sequence_low,
    sequence_high].
    """
    return _kept(x, x.mean_over_response(x.behavior_log_ratio))


@_within_range
def product(x: LossInputs) -> Gate:
    """Keeps a response whose ratio W = e^S lies in [sequence_low, sequence_high]."""
    return _kept(x, x.total_over_response(x.behavior_log_ratio))


TOKEN_DIVERGENCE = positive(
    "token_divergence",
    "largest d^2 / 2 of a token of a response that is kept",
    0.05,
    infinite=True,
)
MEAN_DIVERGENCE = positive(
    "mean_divergence", "largest mean of rho - 1 - d of a response that is kept", 0.002
)


@filter_(hyperparameters=(TOKEN_DIVERGENCE,), data=("old_logprobs",))
def largest_divergence(x: LossInputs) -> Gate:
    """TRM (https://arxiv.org/abs/2512.23075): keeps a response if none of its tokens has
    d^2 / 2 > token_divergence, the paper's estimate of a token's KL from the sampled token alone.
    """
    divergence = x.behavior_log_ratio**2 / 2
    outside = divergence > x.hyperparameters["token_divergence"]
    return x.total_over_response(outside.astype(divergence.dtype)) == 0


@filter_(hyperparameters=(TOKEN_DIVERGENCE, MEAN_DIVERGENCE), data=("old_logprobs",))
def divergences(x: LossInputs) -> Gate:
    """The same, if the mean of rho - 1 - d over the response is at most mean_divergence too."""
    moved = x.behavior_log_ratio
    mean = x.mean_over_response(jnp.expm1(limited(moved)) - moved)
    return largest_divergence(x) & (mean <= x.hyperparameters["mean_divergence"])


MOST_TURNS = positive("most_turns", "number of turns of a response that are kept")


@filter_(hyperparameters=(MOST_TURNS,), data=("turns",))
def first_turns(x: LossInputs) -> Gate:
    """Keeps the first most_turns turns of each response."""
    return x.batch.turns < x.hyperparameters["most_turns"]
