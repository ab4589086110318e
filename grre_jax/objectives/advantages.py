"""Advantages: from the rewards of a group to one number a response.

Every baseline here is group-relative. Conventions shared by all of them (the paper's section on degenerate groups):
- "all rewards equal" is decided by max = min, never by r - mean(r) = 0; such a group gets exactly 0 from every mean baseline, and no std
  is divided by;
- a group of one is such a group; `single="reward"` takes 0 as its baseline instead, so that its advantage is its reward;
- padding responses (negative group id) get exactly 0 whatever their reward holds, NaN included.
Rewards are first shifted by their group's smallest, which changes no advantage but keeps precision when a large constant has been added
to all of them.

Advantages are data: nothing is differentiated through them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from grre_jax.objectives.groups import Groups, segment_groups
from grre_jax.objectives.objective import Objective


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShapedData:
    """What data shaping makes of rewards.

    Attributes:
      advantages: [responses].
      dropped: [responses] True where the response was left out (its advantage is 0), or None where the objective drops none.
    """

    advantages: Float[Array, " responses"]
    dropped: Bool[Array, " responses"] | None


def group_mean_advantages(rewards: Float[Array, " responses"], groups: Groups, single: str = "zero") -> Float[Array, " responses"]:
    """A_i = r_i - mean(r), group-relative REINFORCE (https://arxiv.org/abs/2509.24203).

    Args:
      rewards: [responses].
      groups: which responses share a baseline.
      single: "zero" or "reward", the advantage in a group of one.

    Returns:
      [responses] advantages.
    """
    centred = rewards - groups.min(rewards)
    advantages = jnp.where(groups.alike(rewards), 0, centred - groups.mean(centred))
    if single == "reward":
        advantages = jnp.where(groups.sizes == 1, rewards, advantages)
    return jnp.where(groups.live, advantages, 0)


def group_std_advantages(
    rewards: Float[Array, " responses"],
    groups: Groups,
    std_epsilon: float | Float[Array, ""],
    sample: bool = False,
    single: str = "zero",
) -> Float[Array, " responses"]:
    """A_i = (r_i - mean(r)) / (std(r) + epsilon), DeepSeekMath's GRPO (https://arxiv.org/abs/2402.03300).

    Args:
      rewards: [responses].
      groups: which responses share a baseline and a scale.
      std_epsilon: added to the standard deviation; 1e-6 in the REC paper's code and verl, 1e-4 in TRL.
      sample: False divides the squares by K (population), True by K - 1 (sample, as TRL and verl).
      single: "zero" or "reward", the advantage in a group of one (the reward is not divided by anything).

    Returns:
      [responses] advantages.
    """
    deviations = group_mean_advantages(rewards, groups, single)
    freedom = jnp.maximum(groups.sizes - 1 if sample else groups.sizes, 1).astype(rewards.dtype)
    std = jnp.sqrt(groups.sum(deviations**2) / freedom)
    return jnp.where(groups.alike(rewards), deviations, deviations / (std + std_epsilon))


def asymre_advantages(
    rewards: Float[Array, " responses"], groups: Groups, beta: float | Float[Array, ""], single: str = "zero"
) -> Float[Array, " responses"]:
    """A_i = r_i - (mean(r) - beta), Asymmetric REINFORCE for off-policy RL (https://arxiv.org/abs/2506.20520).

    Lowering the baseline by beta adds beta times imitation of the data, so a group of equal rewards gets +beta: by construction, not zero.

    Args:
      rewards: [responses].
      groups: which responses share a baseline.
      beta: how far the baseline is lowered, in units of reward.
      single: "zero" or "reward", the advantage in a group of one before the shift.

    Returns:
      [responses] advantages.
    """
    return jnp.where(groups.live, group_mean_advantages(rewards, groups, single) + beta, 0)


def log_mean_exp_advantages(
    rewards: Float[Array, " responses"], groups: Groups, tau: float | Float[Array, ""], single: str = "zero"
) -> Float[Array, " responses"]:
    """A_i = r_i - tau log mean_j exp(r_j / tau), the OPMD baseline of Trinity-RFT (https://arxiv.org/abs/2505.17826).

    Args:
      rewards: [responses].
      groups: which responses share a baseline.
      tau: temperature, in units of reward; the baseline goes from the mean (tau -> inf) to the largest reward (tau -> 0).
      single: "zero" or "reward", the advantage in a group of one.

    Returns:
      [responses] advantages.
    """
    below = jnp.where(groups.live, rewards - groups.max(rewards), 0)  # never positive: exp cannot overflow
    advantages = jnp.where(groups.alike(rewards), 0, below - tau * jnp.log(groups.mean(jnp.exp(below / tau))))
    if single == "reward":
        advantages = jnp.where(groups.sizes == 1, rewards, advantages)
    return jnp.where(groups.live, advantages, 0)


def red_drop(
    rewards: Float[Array, " responses"], groups: Groups, key: PRNGKeyArray, single: str = "zero"
) -> tuple[Float[Array, " responses"], Bool[Array, " responses"]]:
    """RED-Drop: drop negatives at random until they no longer outnumber the positives (https://arxiv.org/abs/2509.24203).

    A response is positive when r >= mean(r). Where a group has more negatives than positives, the extra negatives are dropped uniformly at
    random, and the rest is REINFORCE with the mean over the kept. Nothing is dropped from a group of equal rewards; a group of two or
    more always keeps two.

    Args:
      rewards: [responses].
      groups: which responses share a baseline.
      key: one PRNG key (response i then draws from `fold_in(key, i)`, so padding the batch changes no draw), or [responses] keys, one a
        response, for draws that do not depend on where in a batch a response stands.
      single: "zero" or "reward", the advantage in a group of one.

    Returns:
      [responses] advantages (0 where dropped), [responses] True where dropped.
    """
    positive = (group_mean_advantages(rewards, groups) >= 0) | (rewards == groups.max(rewards))  # a rounded mean may exceed the maximum
    positives = groups.sum(positive.astype(jnp.int32))
    excess = jnp.maximum(groups.sizes - 2 * positives, 0)
    # Within a group, negatives first, in random order: a response's place there is its rank among the negatives.
    order = jnp.lexsort((_uniform_by_response(key, rewards.size), positive, groups.segments))
    place = jnp.zeros_like(order).at[order].set(jnp.arange(rewards.size, dtype=order.dtype))
    rank = place - jax.ops.segment_min(place, groups.segments, rewards.size)[groups.segments]
    dropped = groups.live & ~positive & (rank < excess)
    kept = Groups(segments=groups.segments, live=groups.live & ~dropped)
    return group_mean_advantages(rewards, kept, single), dropped


def _uniform_by_response(key: PRNGKeyArray, responses: int) -> Float[Array, " responses"]:
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    if key.ndim == 0:
        key = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(responses))
    if key.shape != (responses,):
        raise ValueError(f"key must be one PRNG key or one for each of the {responses} responses, not of shape {key.shape}")
    return jax.vmap(jax.random.uniform)(key)


# name -> function of (objective, rewards, groups, key); the numbers each reads are listed in algorithms.PART_NUMBERS.
ADVANTAGES: dict[str, Callable[..., ShapedData]] = {
    "group_mean": lambda o, r, g, key: ShapedData(group_mean_advantages(r, g, o.single), None),
    "group_std": lambda o, r, g, key: ShapedData(group_std_advantages(r, g, o.numbers["std_epsilon"], False, o.single), None),
    "group_std_sample": lambda o, r, g, key: ShapedData(group_std_advantages(r, g, o.numbers["std_epsilon"], True, o.single), None),
    "asymre": lambda o, r, g, key: ShapedData(asymre_advantages(r, g, o.numbers["beta"], o.single), None),
    "log_mean_exp": lambda o, r, g, key: ShapedData(log_mean_exp_advantages(r, g, o.numbers["tau"], o.single), None),
    "red_drop": lambda o, r, g, key: ShapedData(*red_drop(r, g, key, o.single)),
}


def shape_data(
    objective: Objective, rewards: Float[Array, " responses"], groups: Int[Array, " responses"], key: PRNGKeyArray | None = None
) -> ShapedData:
    """Turns rewards into advantages, and says which responses the objective leaves out.

    Args:
      objective: from `algorithm(...)`.
      rewards: [responses], any real dtype.
      groups: [responses] group ids: arbitrary integers, -1 on padding responses.
      key: needed where `objective.needs_key` (RED-Drop): one PRNG key, or [responses] keys.

    Returns:
      `ShapedData`: advantages, and `dropped` for `padded_batch`.

    Raises:
      ValueError: if shapes differ, the key is missing, or (for NumPy input, which can be looked at) a live reward is not finite.
    """
    if groups is None:
        raise ValueError("groups is missing: advantages are group-relative, so every response needs the id of its group")
    if np.shape(rewards) != np.shape(groups) or np.ndim(rewards) != 1:
        raise ValueError(f"rewards and groups must both be [responses], not {np.shape(rewards)} and {np.shape(groups)}")
    if objective.needs_key and key is None:
        raise ValueError(f"{objective.name} drops responses at random and needs a PRNG key: pass key=")
    if isinstance(rewards, np.ndarray | list | tuple) and isinstance(groups, np.ndarray | list | tuple):
        bad = np.flatnonzero(~np.isfinite(np.asarray(rewards, np.float64)) & (np.asarray(groups) >= 0))
        if bad.size:
            raise ValueError(f"reward {bad[0]} is {rewards[bad[0]]}: rewards must be finite")
    rewards = jnp.asarray(rewards)
    rewards = jax.lax.stop_gradient(rewards.astype(jnp.promote_types(rewards.dtype, jnp.float32)))
    return ADVANTAGES[objective.advantage](objective, rewards, segment_groups(groups), key)


def advantages(
    objective: Objective, rewards: Float[Array, " responses"], groups: Int[Array, " responses"], key: PRNGKeyArray | None = None
) -> Float[Array, " responses"]:
    """The advantages of `shape_data`, alone: [responses]. Arguments and errors as there."""
    return shape_data(objective, rewards, groups, key).advantages
