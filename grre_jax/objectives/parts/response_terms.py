"""Losses of whole responses: squares of log-ratios about their targets, and preferences between
the responses of a group.

Each is stated as a value per response and a derivative at each of its tokens, as `terms` explains;
a response without a token contributes nothing. Terms that compare a response with others of its
group read their sums from the statistics of the global batch (`gathered`), so that a group may lie
in several micro-batches.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from grre_jax.objectives.batch import segment_groups
from grre_jax.objectives.inputs import Contribution, LossInputs, Responses
from grre_jax.objectives.objective import Statistic, positive, term
from grre_jax.objectives.parts.advantages import TAU
from grre_jax.objectives.parts.masks import unmasked

RESPONSES_AT_ONCE = 32  # that are compared with all others


def response_contribution(
    x: LossInputs, value: Responses, dloss_dlogprob: Responses
) -> Contribution:
    """Makes a contribution of [responses] values and their derivatives with respect to the
    response's summed log-prob.
    """
    present = x.sum_by_response(jnp.ones_like(x.logprobs)) > 0
    # Each log-prob is a term of the sum: its derivative is that with respect to the sum.
    return Contribution(
        jnp.zeros_like(x.logprobs),
        x.at_tokens(dloss_dlogprob),
        unmasked(x),
        response_value=jnp.where(present, value, 0),
    )


@term(hyperparameters=(TAU,), data=("old_logprobs",), of_responses=True)
def squared_consistency(x: LossInputs) -> Contribution:
    """OPMD as OpenKimi writes it (https://arxiv.org/abs/2501.12599): (tau/2) (A/tau - S)^2, S
    the response's log-ratio to the data's policy.
    """
    tau = x.hyperparameters["tau"]
    # tau (A / tau - S): the value is its square over 2 tau, the derivative in S its negative.
    gap = x.response_data("advantages") - tau * x.sum_by_response(x.behavior_log_ratio)
    return response_contribution(x, gap**2 / (2 * tau), -gap)


GVPO_BETA = positive("gvpo_beta", "weight of the log-ratio, in units of advantage")
BETA_2 = positive("beta_2", "weight of the log-ratio of a response, in units of reward", 1e-3)
DPO_BETA = positive("dpo_beta", "inverse temperature of preferences", 0.1)
IPO_BETA = positive("ipo_beta", "inverse of twice the margin", 0.1)


def _log_ratio_sums(x: LossInputs) -> dict[str, Array]:
    return {"log_ratio_sums": x.sum_by_response(x.behavior_log_ratio)}


def _reference_log_ratio_sums(x: LossInputs) -> dict[str, Array]:
    return {"reference_log_ratio_sums": x.sum_by_response(x.logprobs - x.ref_logprobs)}


@term(
    hyperparameters=(GVPO_BETA,),
    data=("old_logprobs",),
    gathers=(Statistic(("log_ratio_sums",), _log_ratio_sums),),
    of_responses=True,
)
def variance(x: LossInputs) -> Contribution:
    """GVPO (https://arxiv.org/abs/2504.19599): 1/2 [(beta S - mean beta S) - A]^2 / (K - 1)
    summed over a group of K, its mean a constant.

    The optimum is the KL-regularised one for data of any policy: no ratio is exponentiated. Stated
    for the "group" aggregation, which divides by K.
    """
    groups = segment_groups(x.batch.group_ids)
    beta = x.hyperparameters["gvpo_beta"]
    sums = x.stats.gathered["log_ratio_sums"].astype(x.logprobs.dtype)
    residual = beta * (sums - groups.mean(sums)) - x.response_data("advantages")
    sizes = groups.sizes.astype(sums.dtype)
    # K / (K - 1): the aggregation divides by K.
    scale = jnp.where(sizes > 1, sizes / jnp.maximum(sizes - 1, 1), 0)
    return response_contribution(x, scale * residual**2 / 2, scale * beta * residual)


def _regression(x: LossInputs, moved: Responses) -> Contribution:
    """Computes (beta_2 moved - A)^2 of each response."""
    gap = x.hyperparameters["beta_2"] * moved - x.response_data("advantages")
    return response_contribution(x, gap**2, 2 * x.hyperparameters["beta_2"] * gap)


@term(hyperparameters=(BETA_2,), data=("ref_logprobs",), of_responses=True)
def optimal_value_regression(x: LossInputs) -> Contribution:
    """A*-PO (https://arxiv.org/abs/2505.20686): (beta_2 D - A)^2, D the response's log-ratio to
    the reference and A = r - V*.
    """
    return _regression(x, x.sum_by_response(x.logprobs - x.ref_logprobs))


@term(hyperparameters=(BETA_2,), data=("old_logprobs",), of_responses=True)
def behavior_regression(x: LossInputs) -> Contribution:
    """OAPL (https://arxiv.org/abs/2602.19362): (beta_2 S - A)^2, S the response's log-ratio to
    the policy that sampled.

    Its minimum is the KL-regularised optimum about that policy, however old it is, where A is the
    optimal advantage; no ratio is exponentiated. With A = r - mean(r) and beta_2 = tau it is 2 tau
    times `squared_consistency`.
    """
    return _regression(x, x.sum_by_response(x.behavior_log_ratio))


_preference = partial(
    term,
    data=("ref_logprobs", "rewards"),
    gathers=(Statistic(("reference_log_ratio_sums",), _reference_log_ratio_sums),),
    of_responses=True,
)


def _preferences(
    x: LossInputs, loss: Callable[[Array], Array], derivative: Callable[[Array], Array]
) -> Contribution:
    """Takes the mean of loss(D_i - D_j), whose derivative is `derivative`, over all pairs of a
    group with r_i > r_j.
    """
    groups = segment_groups(x.batch.group_ids)
    rewards = x.response_data("rewards")
    moved = x.stats.gathered["reference_log_ratio_sums"].astype(x.logprobs.dtype)
    live = groups.live & (x.stats.response_tokens > 0)

    def compare(i):
        together = (groups.segments == groups.segments[i]) & live & live[i]
        side = jnp.where(together, jnp.sign(rewards[i] - rewards), 0)
        gap = jnp.where(side != 0, side * (moved[i] - moved), 0)
        # A pair counts once, at the response that was preferred.
        value = jnp.where(side > 0, loss(gap), 0)
        return value.sum(), (side * derivative(gap)).sum(), (side > 0).sum()

    # Some at a time: an array of all pairs would be quadratic.
    index = jnp.arange(rewards.size)
    values, derivatives, pairs = jax.lax.map(compare, index, batch_size=RESPONSES_AT_ONCE)
    count = jnp.maximum(pairs.sum(), 1)
    return response_contribution(x, values / count, derivatives / count)


@_preference(hyperparameters=(DPO_BETA,))
def direct_preference(x: LossInputs) -> Contribution:
    """DPO (https://arxiv.org/abs/2305.18290) on every pair of a group: -log sigmoid(beta (D_i -
    D_j)).
    """
    beta = jax.lax.stop_gradient(x.hyperparameters["dpo_beta"])
    return _preferences(
        x,
        lambda gap: -jax.nn.log_sigmoid(beta * gap),
        lambda gap: -beta * jax.nn.sigmoid(-beta * gap),
    )


@_preference(hyperparameters=(IPO_BETA,))
def identity_preference(x: LossInputs) -> Contribution:
    """IPO (https://arxiv.org/abs/2310.12036) on every pair of a group: (D_i - D_j - 1/(2
    beta))^2.
    """
    target = 1 / (2 * jax.lax.stop_gradient(x.hyperparameters["ipo_beta"]))
    return _preferences(x, lambda gap: (gap - target) ** 2, lambda gap: 2 * (gap - target))
