"""The derivation: a surrogate loss whose first gradient step is group-relative REINFORCE, for data
of any policy.

From "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm"
(https://arxiv.org/abs/2509.24203). Maximising E_pi[r] - tau KL(pi || pi_t) around an anchor pi_t
has the optimum pi ~ pi_t exp(r / tau), and there

    a_i = r_i - tau (log pi(y_i) - log pi_t(y_i))

is the same for every response y_i of a prompt. The surrogate loss is how far finitely many
responses are from that:

    L = (1/K^2) sum_{i<j} (a_i - a_j)^2 = (1/K) sum_i (a_i - mean(a))^2

and its gradient at pi = pi_t is -(2 tau / K) sum_i (r_i - mean(r)) grad log pi(y_i): group-relative
REINFORCE.

Losses are means over groups. A multi-turn trajectory is one response whose mask is True on the
tokens that the policy generated, over all turns: nothing else changes.

Here the loss is a value to be differentiated as it stands: no stop-gradients but on the anchor and
the rewards.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from grre_jax.objectives.batch import (
    Groups,
    check_finite,
    group_ids_array,
    segment_groups,
)

Number = float | Float[Array, ""]
Responses = Float[Array, " responses"]


def response_logprobs(
    logprobs: Float[Array, "responses ..."], mask: Bool[Array, "responses ..."] | None = None
) -> Responses:
    """Computes log pi(y_i | x): the sum over the policy's tokens of each response.

    Args:
        logprobs: [responses, ...] token log-probs; [responses] if summed already. Anything where
            the mask is False.
        mask: of the same shape, or None to sum everything.

    Returns:
        [responses].
    """
    logprobs = jnp.asarray(logprobs)
    if mask is not None:
        logprobs = jnp.where(jnp.asarray(mask).astype(bool), logprobs, 0)
    return jnp.sum(logprobs, axis=tuple(range(1, logprobs.ndim)))


def turn_logprobs(
    logprobs: Float[Array, "responses time"], turns: Int[Array, "responses time"], num_turns: int
) -> Float[Array, "responses turns"]:
    """Computes log pi of each turn of a multi-turn trajectory: the sum over the tokens that the
    policy generated in it.

    A trajectory's log-prob is the sum over its turns: observations in between are conditioned on
    and never scored. So a trajectory is one response whose mask is `turns >= 0`, and everything
    else of this module holds for it unchanged.

    Args:
        logprobs: [responses, time] token log-probs; anything outside turns.
        turns: [responses, time] the turn that a token was generated in, from 0; negative on
            prompts, observations, tool output and padding.
        num_turns: largest number of turns.

    Returns:
        [responses, turns], 0 for a turn that a trajectory does not have.

    Raises:
        ValueError: if shapes disagree.
    """
    if np.shape(logprobs) != np.shape(turns) or np.ndim(turns) != 2:
        raise ValueError(
            f"logprobs {np.shape(logprobs)} and turns {np.shape(turns)} must both be [responses,"
            " time]"
        )
    inside = jnp.asarray(turns)[:, :, None] == jnp.arange(num_turns)
    return jnp.sum(jnp.where(inside, jnp.asarray(logprobs)[:, :, None], 0), axis=1)


def consistency_values(
    logprobs: Float[Array, "responses ..."],
    anchor_logprobs: Float[Array, "responses ..."],
    rewards: Responses,
    mask: Bool[Array, "responses ..."] | None = None,
    *,
    tau: Number,
) -> Responses:
    """Computes a_i = r_i - tau (log pi(y_i) - log pi_t(y_i)), equal within each group at the
    optimum of the surrogate objective.

    Arguments as `surrogate_loss`.

    Returns:
        [responses].

    Raises:
        ValueError: if shapes disagree.
    """
    shape = np.shape(logprobs)
    if (
        np.shape(anchor_logprobs) != shape
        or np.shape(rewards) != shape[:1]
        or (mask is not None and np.shape(mask) != shape)
    ):
        raise ValueError(
            f"logprobs {shape}, anchor_logprobs {np.shape(anchor_logprobs)} and mask"
            f" {np.shape(mask)} must agree, and rewards {np.shape(rewards)} be [responses]"
        )
    if not isinstance(tau, jax.core.Tracer) and (np.ndim(tau) or not 0 < float(tau) < np.inf):
        raise ValueError(f"tau must be one finite number > 0, not {tau}")
    moved = response_logprobs(logprobs, mask) - jax.lax.stop_gradient(
        response_logprobs(anchor_logprobs, mask)
    )
    return jax.lax.stop_gradient(jnp.asarray(rewards)) - tau * moved


def consistency_residuals(
    logprobs: Float[Array, "responses ..."],
    anchor_logprobs: Float[Array, "responses ..."],
    rewards: Responses,
    groups: Int[Array, " responses"],
    mask: Bool[Array, "responses ..."] | None = None,
    *,
    tau: Number,
) -> Float[Array, "responses responses"]:
    """Computes a_i - a_j of every pair of a group, sampled by any policy: all 0 at the optimum of
    the surrogate objective.

    Arguments as `surrogate_loss`.

    Returns:
        [responses, responses], 0 between responses of different groups and on padding.

    Raises:
        ValueError: if shapes disagree.
    """
    values, partition = _live_values(logprobs, anchor_logprobs, rewards, groups, mask, tau)
    return _pair_differences(values, partition)


def surrogate_loss(
    logprobs: Float[Array, "responses ..."],
    anchor_logprobs: Float[Array, "responses ..."],
    rewards: Responses,
    groups: Int[Array, " responses"],
    mask: Bool[Array, "responses ..."] | None = None,
    *,
    tau: Number,
    form: str = "pairwise",
) -> Float[Array, ""]:
    """Computes the surrogate loss, over pairs or as a variance: equal in value and gradient.

    Args:
        logprobs: [responses, ...] log pi of the tokens.
        anchor_logprobs: [responses, ...] log pi_t of them, data.
        rewards: [responses].
        groups: [responses] group ids, -1 on padding.
        mask: [responses, ...] tokens the policy generated, or None for all.
        tau: weight of the KL term, positive, in units of reward.
        form: "pairwise" (builds a [responses, responses] array), or "variance".

    Returns:
        [] the mean over groups.

    Raises:
        ValueError: if shapes disagree or the form is unknown.
    """
    values, partition = _live_values(logprobs, anchor_logprobs, rewards, groups, mask, tau)
    sizes = jnp.maximum(partition.sizes, 1).astype(values.dtype)
    if form == "variance":
        terms = (values - partition.mean(values)) ** 2 / sizes
    elif form == "pairwise":
        terms = jnp.sum(_pair_squares(values, partition), axis=1) / (2 * sizes**2)
    else:
        raise ValueError(f'form must be "pairwise" or "variance", not {form!r}')
    return _mean_over_groups(terms, partition)


def weighted_surrogate_loss(
    logprobs: Float[Array, "responses ..."],
    anchor_logprobs: Float[Array, "responses ..."],
    rewards: Responses,
    groups: Int[Array, " responses"],
    weights: Responses | Float[Array, "responses responses"],
    mask: Bool[Array, "responses ..."] | None = None,
    *,
    tau: Number,
) -> Float[Array, ""]:
    """Computes L_w = sum_{i<j} w_ij (a_i - a_j)^2 in each group: the surrogate on shaped data.
    w_ij = 1/K^2 is `surrogate_loss`.

    With w_ij = w_i w_j its gradient at pi = pi_t is -2 tau (sum_j w_j) sum_i w_i (r_i - weighted
    mean(r)) grad log pi(y_i).

    Further arguments as `surrogate_loss`.

    Args:
        weights: [responses] w_i for w_ij = w_i w_j, or [responses, responses] w_ij (read as (w_ij +
            w_ji) / 2).

    Returns:
        [] the mean over groups.

    Raises:
        ValueError: if shapes disagree.
    """
    values, partition = _live_values(logprobs, anchor_logprobs, rewards, groups, mask, tau)
    weights = jax.lax.stop_gradient(jnp.asarray(weights))
    if weights.shape not in (values.shape, values.shape * 2):
        raise ValueError(
            f"weights must be [responses] or [responses, responses], not {weights.shape} for"
            f" {values.size} responses"
        )
    pairs = weights[:, None] * weights[None, :] if weights.ndim == 1 else weights
    pairs = jnp.where(_same_group(partition), pairs, 0)
    terms = jnp.sum(pairs * _pair_squares(values, partition), axis=1) / 2
    return _mean_over_groups(terms, partition)


def pointwise_loss(
    logprobs: Float[Array, "responses ..."],
    anchor_logprobs: Float[Array, "responses ..."],
    rewards: Responses,
    groups: Int[Array, " responses"],
    mask: Bool[Array, "responses ..."] | None = None,
    *,
    tau: Number,
) -> Float[Array, ""]:
    """Computes (1/K) sum_i (a_i - mean(r))^2: OPMD as Kimi k1.5 states it
    (https://arxiv.org/abs/2501.12599), 2 tau times the `opmd` loss up to a constant.

    Arguments and errors as `surrogate_loss`.

    Returns:
        [] the mean over groups.
    """
    values, partition = _live_values(logprobs, anchor_logprobs, rewards, groups, mask, tau)
    baseline = partition.mean(jnp.asarray(rewards).astype(values.dtype))
    sizes = jnp.maximum(partition.sizes, 1).astype(values.dtype)
    return _mean_over_groups((values - jax.lax.stop_gradient(baseline)) ** 2 / sizes, partition)


def _live_values(logprobs, anchor_logprobs, rewards, groups, mask, tau) -> tuple[Responses, Groups]:
    """Computes a_i, 0 on padding rows whatever they contain (rows are emptied before any
    arithmetic, so that NaN reaches no gradient).
    """
    if np.shape(groups) != np.shape(rewards):
        raise ValueError(
            f"groups {np.shape(groups)} must be [responses] like rewards {np.shape(rewards)}"
        )
    groups = group_ids_array(groups)
    check_finite("rewards", rewards, groups)
    partition = segment_groups(groups)
    shape = np.shape(logprobs)
    rows = partition.live.reshape((-1,) + (1,) * (len(shape) - 1))
    mask = jnp.broadcast_to(rows, shape) if mask is None else rows & jnp.asarray(mask).astype(bool)
    rewards = jnp.where(partition.live, jnp.asarray(rewards), 0)
    return consistency_values(logprobs, anchor_logprobs, rewards, mask, tau=tau), partition


def _same_group(partition: Groups) -> Bool[Array, "responses responses"]:
    both_live = partition.live[:, None] & partition.live[None, :]
    return both_live & (partition.segments[:, None] == partition.segments[None, :])


def _pair_differences(values: Responses, partition: Groups) -> Float[Array, "responses responses"]:
    return jnp.where(_same_group(partition), values[:, None] - values[None, :], 0)


def _pair_squares(values: Responses, partition: Groups) -> Float[Array, "responses responses"]:
    """(a_i - a_j)^2 for pairs of one group, 0 elsewhere; each unordered pair appears twice."""
    return _pair_differences(values, partition) ** 2


def _mean_over_groups(terms: Responses, partition: Groups) -> Float[Array, ""]:
    return jnp.sum(jnp.where(partition.live, terms, 0)) / jnp.maximum(partition.count, 1)
