"""Policy-gradient terms: the contribution of a token to the loss before aggregation.

A contribution is a value and a derivative, both constants: the loss is the value, and its gradient
is by definition `dloss_dlogprob` times the gradient of the token's log-prob. That states every
gradient outright (a stopped weight, a mask, a clip) instead of hiding it in stop-gradients, and no
derivative of an exponential is ever formed. `score` is the coefficient form g = -A W M grad(l) of
REINFORCE and the REC and RED families; the others are the exact derivative of their value where
the value is differentiable.

A sequence-level loss gives each of its response's n tokens the response's value, and a derivative
that is n times the value's: under an aggregation by the mean over a response's tokens both are then
the response's own.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from grre_jax.objectives.inputs import Contribution, Gate, LossInputs, Tokens
from grre_jax.objectives.objective import (
    RATIO,
    Hyperparameter,
    Order,
    Statistic,
    non_negative,
    positive,
    share,
    term,
)
from grre_jax.objectives.parts.masks import probability, unmasked, within_bounds
from grre_jax.objectives.parts.ratios import (
    CLIP_RANGE,
    clip_range,
    level_log_ratio,
    level_ratio,
    limited,
)


@term(uses=("mask", "weight"))
def score(x: LossInputs) -> Contribution:
    """The coefficient form g = -A W M grad(l), of value -A W M l: REINFORCE, the REC and RED
    families and many of their relatives.
    """
    unclipped = x.objective.mask(x)
    dloss_dlogprob = -x.advantages * x.objective.weight(x) * unclipped
    return Contribution(dloss_dlogprob * x.logprobs, dloss_dlogprob, unclipped)


@term(data=("ref_logprobs",), uses=("mask", "weight"))
def reverse_kl(x: LossInputs) -> Contribution:
    """Distillation: g = (l - f) W M grad(l), the gradient of KL(policy || reference) at each token,
    f being the teacher's log-probs.

    On the policy's own samples W = 1; on those of another policy W = rho corrects each token for
    it.
    """
    unclipped = x.objective.mask(x)
    value = (x.logprobs - x.ref_logprobs) * x.objective.weight(x) * unclipped
    return Contribution(value, value, unclipped)


def _clipped_between(
    x: LossInputs, unclipped: Gate, low: Tokens, high: Tokens, cap: Tokens | float = jnp.inf
) -> Contribution:
    """Computes PPO's clipped objective (https://arxiv.org/abs/1707.06347): -min(rho A, clip(rho,
    low, high) A), `unclipped` being the one-side mask at the bounds. Where A < 0 the loss is at
    most -cap A (the dual clip, https://arxiv.org/abs/1912.09729).
    """
    advantages = x.advantages
    ratio = level_ratio(x)
    # The minimum of the two products is rho A exactly where the one-side mask passes.
    reached = jnp.where(unclipped, ratio, jnp.clip(ratio, low, high))
    reached = jnp.where(advantages < 0, jnp.minimum(reached, cap), reached)
    unclipped &= (advantages >= 0) | (ratio <= cap)
    return Contribution(-advantages * reached, -advantages * ratio * unclipped, unclipped)


def _clipped(x: LossInputs, cap: Tokens | float = jnp.inf) -> Contribution:
    return _clipped_between(x, x.objective.mask(x), *clip_range(x), cap)


@term(hyperparameters=CLIP_RANGE, data=(RATIO,), uses=("mask",))
def ppo(x: LossInputs) -> Contribution:
    """GRPO (https://arxiv.org/abs/2402.03300) and, at other levels of the ratio, GSPO
    (https://arxiv.org/abs/2507.18071) and GEPO.

    GSPO's value is a function of its response's s alone.
    """
    # The factor of one token (a correction) acts on all tokens that share its ratio.
    return _clipped(x)._replace(whole_response=x.objective.level.of_response)


@term(hyperparameters=CLIP_RANGE, data=(RATIO,), uses=("mask",))
def ppo_token(x: LossInputs) -> Contribution:
    """GSPO-token: s e^(l - sg(l)) in place of s.

    The gradient is GSPO's, except where tokens of a response are weighted differently (a
    correction).
    """
    return _clipped(x)


_cap = partial(Hyperparameter, low=1, above=True, infinite=True)
DUAL_CLIP = _cap("dual_clip", "cap of the ratio where the advantage is negative", 3.0)


@term(hyperparameters=(*CLIP_RANGE, DUAL_CLIP), data=(RATIO,), uses=("mask",))
def dual_clipped(x: LossInputs) -> Contribution:
    """PPO with a dual clip (https://arxiv.org/abs/1912.09729)."""
    return _clipped(x, x.hyperparameters["dual_clip"])


DELTA = _cap("delta", "cap of the ratio where the advantage is negative, above 1 + epsilon_high")


@term(
    hyperparameters=(*CLIP_RANGE, DELTA),
    order=(Order("epsilon_high", "delta", offset=1.0),),
    data=(RATIO,),
    uses=("mask",),
)
def two_sided(x: LossInputs) -> Contribution:
    """TRL's two-sided clip: the dual clip with delta for its cap."""
    return _clipped(x, x.hyperparameters["delta"])


@term(data=(RATIO,), uses=("mask",))
def importance(x: LossInputs) -> Contribution:
    """-A rho M: the importance-weighted objective itself, differentiated through its ratio."""
    unclipped = x.objective.mask(x)
    value = -x.advantages * level_ratio(x) * unclipped
    return Contribution(value, value, unclipped)


BALANCE = (
    non_negative("ratio_low_start", "lower bound of the ratio to begin with", 0.6),
    Hyperparameter("ratio_low_end", "lower bound at most", 0.8, low=0, high=100),
    non_negative("ratio_high_start", "upper bound of the ratio to begin with", 1.2),
    Hyperparameter("ratio_high_end", "upper bound at most", 2.0, low=0, high=100),
    Hyperparameter("ratio_step", "how far a bound is raised at a time", 0.05, low=1e-3, high=100),
    non_negative(
        "balance_target",
        "positive contributions wanted, as a multiple of the negative ones",
        1.0,
    ),
)


def _balanced_bounds(x: LossInputs) -> dict[str, Array]:
    """Raises the lower and then the upper bound of the ratio, step by step, until positive
    contributions to the clipped objective are balance_target times the negative ones.
    """
    n = x.hyperparameters
    advantages = x.advantages
    moved = level_ratio(x)

    def unbalanced(bounds):
        low, high = bounds
        positive = jnp.sum(jnp.where(advantages > 0, advantages * jnp.minimum(moved, high), 0))
        negative = jnp.sum(jnp.where(advantages < 0, -advantages * jnp.maximum(moved, low), 0))
        return positive < n["balance_target"] * negative

    step = n["ratio_step"]
    bounds = jax.lax.while_loop(
        lambda bounds: unbalanced(bounds) & (bounds[0] < n["ratio_low_end"]),
        lambda bounds: (jnp.minimum(bounds[0] + step, n["ratio_low_end"]), bounds[1]),
        (n["ratio_low_start"], n["ratio_high_start"]),
    )
    low, high = jax.lax.while_loop(
        lambda bounds: unbalanced(bounds) & (bounds[1] < n["ratio_high_end"]),
        lambda bounds: (bounds[0], jnp.minimum(bounds[1] + step, n["ratio_high_end"])),
        bounds,
    )
    return {"ratio_low": low, "ratio_high": high}


@term(
    hyperparameters=BALANCE,
    order=(
        Order("ratio_low_start", "ratio_low_end"),
        Order("ratio_high_start", "ratio_high_end"),
    ),
    data=(RATIO,),
    gathers=(Statistic(("ratio_low", "ratio_high"), _balanced_bounds),),
)
def balanced(x: LossInputs) -> Contribution:
    """BAPO (https://arxiv.org/abs/2510.18927): PPO's objective between the bounds of the ratio
    that balance the whole batch.
    """
    low = x.stats.gathered["ratio_low"]
    high = x.stats.gathered["ratio_high"]
    unclipped = within_bounds(level_ratio(x), x.advantages, low, high)
    return _clipped_between(x, unclipped, low, high)


GATE_TEMPERATURES = (
    positive("tau_positive", "temperature of the gate where A > 0", 1.0),
    positive("tau_negative", "temperature of the gate where A <= 0", 1.05),
)


@term(hyperparameters=GATE_TEMPERATURES, data=(RATIO,))
def soft_gate(x: LossInputs) -> Contribution:
    """SAPO (https://arxiv.org/abs/2511.20347): -A (4/tau) sigmoid(tau (rho - 1)), tau by the
    sign of A.

    The gate itself is differentiated. (Its value as a stopped weight of l is another algorithm,
    with a coefficient that grows with rho.)
    """
    n = x.hyperparameters
    tau = jnp.where(x.advantages > 0, n["tau_positive"], n["tau_negative"])
    moved = level_ratio(x)
    opened = jax.nn.sigmoid(tau * (moved - 1))
    # 1 - opened, without the rounding to 0 where the gate is open.
    closed = jax.nn.sigmoid(-tau * (moved - 1))
    value = -x.advantages * 4 / tau * opened
    return Contribution(value, -x.advantages * 4 * opened * closed * moved, unmasked(x))


LOG_RANGE = (
    non_negative("log_epsilon_low", "lower clip range of the log-ratio", 0.4, infinite=True),
    non_negative("log_epsilon_high", "upper clip range of the log-ratio", 0.4, infinite=True),
)


@term(hyperparameters=LOG_RANGE, data=(RATIO,))
def geometric_mean(x: LossInputs) -> Contribution:
    """GMPO (https://arxiv.org/abs/2507.20673): -A times the geometric mean of the ratios, each
    clipped one-sidedly in log space.
    """
    advantages = x.advantages
    moved = level_log_ratio(x)
    low = -x.hyperparameters["log_epsilon_low"]
    high = x.hyperparameters["log_epsilon_high"]
    unclipped = within_bounds(moved, advantages, low, high)
    # At A = 0 the sign in the formula is 0.
    clipped = jnp.where(advantages == 0, 0, jnp.where(unclipped, moved, jnp.clip(moved, low, high)))
    value = -advantages * jnp.exp(limited(x.mean_over_response(clipped)))
    return Contribution(value, value * unclipped, unclipped, whole_response=True)


COVARIANCE_FRACTION = share(
    "covariance_fraction", "share of the tokens that are chosen, at least one token", 2e-4
)
COVARIANCE_KL = non_negative("covariance_kl", "weight of |log-ratio| on the chosen tokens", 1.0)


def _covariance_threshold(x: LossInputs) -> dict[str, Array]:
    """The covariance of log-prob and advantage from which a share covariance_fraction of the
    tokens (at least one) is chosen (https://arxiv.org/abs/2505.22617), among those that the mask
    lets through.
    """
    tokens = jnp.maximum(x.stats.tokens, 1).astype(x.logprobs.dtype)
    mean_advantage, mean_logprob = (
        jnp.sum(jnp.where(x.mask, values, 0)) / tokens for values in (x.advantages, x.logprobs)
    )
    # What the clip stops already would take the places of tokens that have a gradient.
    candidate = x.mask & x.objective.mask(x)
    varying = (x.advantages - mean_advantage) * (x.logprobs - mean_logprob)
    descending = -jnp.sort(-jnp.where(candidate, varying, -jnp.inf))
    fraction = x.hyperparameters["covariance_fraction"]
    chosen = jnp.maximum(jnp.floor(fraction * tokens), 1).astype(jnp.int32)
    chosen = jnp.minimum(chosen, jnp.sum(candidate))
    # Tokens that tie for the last place are all left out, unless they tie for the first: then they
    # are chosen, if they vary with the advantage at all. The threshold lies halfway to the next
    # below, so that rounding in another split of the batch chooses no other token.
    first_out = jnp.append(descending, -jnp.inf)[chosen]  # all candidates may be chosen
    above = jnp.min(jnp.where(candidate & (varying > first_out), varying, jnp.inf), initial=jnp.inf)
    last_in = jnp.where(jnp.isfinite(above) | (first_out <= 0), above, first_out)
    below = jnp.max(jnp.where(candidate & (varying < last_in), varying, -jnp.inf), initial=-jnp.inf)
    threshold = jnp.where(
        jnp.isfinite(below) & jnp.isfinite(last_in), last_in + (below - last_in) / 2, last_in
    )
    return {
        "mean_advantage": mean_advantage,
        "mean_logprob": mean_logprob,
        "covariance_threshold": threshold,
    }


COVARIANCE = Statistic(
    ("mean_advantage", "mean_logprob", "covariance_threshold"), _covariance_threshold
)


def _highest_covariance(x: LossInputs) -> Gate:
    """[tokens] True where log-prob and advantage vary together most, over the global batch."""
    gathered = x.stats.gathered
    covariance = (x.advantages - gathered["mean_advantage"]) * (
        x.logprobs - gathered["mean_logprob"]
    )
    return covariance >= gathered["covariance_threshold"]


@term(
    hyperparameters=(*CLIP_RANGE, COVARIANCE_FRACTION),
    data=(RATIO,),
    gathers=(COVARIANCE,),
    uses=("mask",),
)
def covariance_clipped(x: LossInputs) -> Contribution:
    """Clip-Cov (https://arxiv.org/abs/2505.22617): PPO's objective without the tokens of highest
    covariance.

    Public code draws that many at random from a range of covariances; here they are the highest, so
    that a step is a function of its batch.
    """
    ppo = _clipped(x)
    # Where the clip acts the gradient is 0 anyway: the value stays.
    kept = ~(_highest_covariance(x) & ppo.unclipped)
    return Contribution(ppo.value * kept, ppo.dloss_dlogprob * kept, ppo.unclipped & kept)


@term(
    hyperparameters=(COVARIANCE_FRACTION, COVARIANCE_KL),
    data=(RATIO,),
    gathers=(COVARIANCE,),
    uses=("mask",),
)
def covariance_penalized(x: LossInputs) -> Contribution:
    """KL-Cov (https://arxiv.org/abs/2505.22617): -A rho, plus covariance_kl |d| on the tokens of
    highest covariance.
    """
    moved = level_log_ratio(x)
    chosen = _highest_covariance(x)
    value = -x.advantages * level_ratio(x)
    push = x.hyperparameters["covariance_kl"] * chosen
    return Contribution(value + push * jnp.abs(moved), value + push * jnp.sign(moved), unmasked(x))


EXPERT_WEIGHT = share("expert_weight", "weight of imitation of an expert's responses", 0.1)


def _expert_mix(x: LossInputs, phi: Tokens) -> Contribution:
    weight = x.hyperparameters["expert_weight"]
    surrogate = _clipped(x)
    value = jnp.where(x.expert, -weight * phi * x.logprobs, (1 - weight) * surrogate.value)
    derivative = jnp.where(x.expert, -weight * phi, (1 - weight) * surrogate.dloss_dlogprob)
    # No mask on an expert's tokens: imitation is not clipped.
    return Contribution(value, derivative, surrogate.unclipped | x.expert)


_mixed = term(
    hyperparameters=(*CLIP_RANGE, EXPERT_WEIGHT),
    data=(RATIO, "expert"),
    uses=("mask",),
    separates_experts=True,
)


@_mixed
def expert_mix(x: LossInputs) -> Contribution:
    """CHORD (https://arxiv.org/abs/2508.11408): (1 - w) GRPO on the policy's own responses, w
    SFT on an expert's, each over its own count.
    """
    return _expert_mix(x, jnp.ones_like(x.logprobs))


@_mixed
def expert_mix_phi(x: LossInputs) -> Contribution:
    """CHORD with phi: an expert's token counts with p (1 - p) of its probability p, a constant:
    least where the policy is sure either way.
    """
    p = probability(x.logprobs)
    return _expert_mix(x, p * (1 - p))
