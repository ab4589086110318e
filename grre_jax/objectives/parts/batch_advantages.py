"""Advantages that look at the whole batch, not at a group alone: at the standard deviation of all
rewards, at the tokens of all responses, or at each component of the reward apart.

Conventions as in `advantages`.
"""

from dataclasses import replace

import jax.numpy as jnp

from grre_jax.objectives.batch import Flags, Groups
from grre_jax.objectives.inputs import Responses, RewardInputs, Scalar
from grre_jax.objectives.objective import advantage
from grre_jax.objectives.parts.advantages import STD_EPSILON, group_mean, group_std_advantages


def _spread(values: Responses, live: Flags) -> tuple[Responses, Scalar]:
    """Returns values less their mean over the batch's responses, 0 on padding, and their sample
    standard deviation.
    """
    count = jnp.maximum(jnp.sum(live), 1)
    mean = jnp.sum(jnp.where(live, values, 0)) / count
    spread = jnp.where(live, values - mean, 0)
    return spread, jnp.sqrt(jnp.sum(spread**2) / jnp.maximum(count - 1, 1))


@advantage(hyperparameters=(STD_EPSILON,))
def batch_std(x: RewardInputs) -> Responses:
    """A = (r - mean(r)) / (sample std of all rewards of the batch + std_epsilon): TRL's
    scale_rewards="batch".
    """
    deviations = group_mean(x)
    _, std = _spread(x.rewards, x.groups.live)
    std_epsilon = x.hyperparameters["std_epsilon"]
    return jnp.where(x.groups.alike(x.rewards), deviations, deviations / (std + std_epsilon))


@advantage
def gpg(x: RewardInputs) -> Responses:
    """GPG (https://arxiv.org/abs/2504.02546): A = alpha (r - mean(r)), alpha = responses /
    responses whose reward is not zero, of the batch.
    """
    live = x.groups.live.astype(x.rewards.dtype)
    alpha = jnp.sum(live) / jnp.maximum(jnp.sum(live * (x.rewards != 0)), 1)
    return alpha * group_mean(x)


def _whitened(x: RewardInputs, values: Responses) -> Responses:
    """REINFORCE++ (https://arxiv.org/abs/2501.03262): values over the batch's tokens, shifted to
    mean 0 and scaled to variance 1: (v - mean) / sqrt(unbiased variance + 1e-8).

    Every token of a response has its response's value.
    """
    live = x.groups.live
    weights = jnp.where(live, x.lengths, 0).astype(values.dtype)
    tokens = jnp.maximum(jnp.sum(weights), 1)
    smallest = jnp.min(
        jnp.where(live, values, jnp.inf), initial=jnp.inf
    )  # equal values are then exactly 0
    centred = jnp.where(live, values - jnp.where(jnp.isfinite(smallest), smallest, 0), 0)
    centred = jnp.where(live, centred - jnp.sum(weights * centred) / tokens, 0)
    variance = jnp.sum(weights * centred**2) / jnp.maximum(tokens - 1, 1)
    return centred / jnp.sqrt(variance + 1e-8)


@advantage
def whitened(x: RewardInputs) -> Responses:
    """r - mean(r), whitened over the batch's tokens."""
    return _whitened(x, group_mean(x))


@advantage
def whitened_returns(x: RewardInputs) -> Responses:
    """r, whitened over the batch's tokens."""
    return _whitened(x, x.rewards)


def _decoupled(x: RewardInputs) -> Responses:
    """Sums (c - mean(c)) / (sample std(c) + std_epsilon) of a group over the components c of the
    reward. A component that is NaN does not apply to its response, which counts neither in its mean
    nor in its std.
    """
    normalised = []
    for component in x.components:
        groups = Groups(x.groups.segments, x.groups.live & ~jnp.isnan(component))
        of_component = replace(x, rewards=component, groups=groups)
        normalised.append(group_std_advantages(of_component, sample=True))
    return sum(normalised, jnp.zeros_like(x.rewards))


@advantage(hyperparameters=(STD_EPSILON,), of_components=True)
def decoupled(x: RewardInputs) -> Responses:
    """GDPO (https://arxiv.org/abs/2601.05242): each component of the reward standardised in its
    group, and their sum over the batch's responses, as its authors' TRL and TRL itself do.
    """
    spread, std = _spread(_decoupled(x), x.groups.live)
    return spread / (std + x.hyperparameters["std_epsilon"])


@advantage(hyperparameters=(STD_EPSILON,), of_components=True)
def decoupled_whitened(x: RewardInputs) -> Responses:
    """The same, the sum whitened over the batch's tokens, as its authors' verl does."""
    return _whitened(x, _decoupled(x))
