"""The composition of an objective's parts: `shape_data` makes advantages of rewards, and
`policy_loss` a loss and its gradient of log-probs.

    g = sum_i scale_i sum_t m [ w K D ] grad(l) + penalties,      D = -A W M in the coefficient form

with l the token log-probs, m the batch's mask, D the term's `dloss_dlogprob`, A the advantages, W
the weight, M the mask, w and K the filter and the correction of responses (1 without), and scale_i
the aggregation. The gradient is the definition: a term is a value and a derivative (`parts.terms`).
The value of the coefficient form is -A W M l.
"""

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from grre_jax.objectives.batch import (
    Batch,
    BatchStats,
    Flags,
    Groups,
    Ids,
    Responses,
    Scalar,
    Tokens,
    Turns,
    check_finite,
    check_shape,
    flat_logprobs,
    group_ids_array,
    judged_groups,
    segment_groups,
)
from grre_jax.objectives.diagnostics import (
    clip_metrics,
    kl_metrics,
    ratio_metrics,
)
from grre_jax.objectives.inputs import (
    Gate,
    LossInputs,
    RewardInputs,
    ShapedData,
    batch_stats,
    present,
    with_derivative,
)
from grre_jax.objectives.objective import Objective
from grre_jax.objectives.own_loss import differentiated
from grre_jax.objectives.parts.aggregations import response_scale


def shape_data(
    objective: Objective,
    rewards: Responses,
    groups: Ids,
    key: PRNGKeyArray | None = None,
    lengths: Responses | Turns | None = None,
    components: Mapping[str, Responses] | None = None,
    turn_rewards: Turns | None = None,
) -> ShapedData:
    """Computes advantages of rewards, and which responses the objective leaves out.

    Args:
        objective: from `algorithm(...)`.
        rewards: [responses], any real dtype; NaN for a response without a verdict, which is left
            out of its group and has the advantage 0. A group with fewer than two verdicts because
            of that has no signal: the others are left out too.
        groups: [responses] group ids: arbitrary integers, -1 on padding responses.
        key: needed where the advantage is random (RED-Drop): one PRNG key, or [responses] keys.
        lengths: [responses] tokens of each response, for objectives that weigh or penalise by them
            (opo, reinforce_pp, dapo's max_length); [responses, turns] where the objective has
            returns.
        components: [responses] each, by name, where the advantage reads them (gdpo); NaN for a
            component that does not apply to a response.
        turn_rewards: [responses, turns], where the objective has returns; NaN behind a response's
            last turn.

    Returns:
        `ShapedData`: advantages, and `dropped` for `padded_batch`.

    Raises:
        ValueError: if shapes differ, the key, lengths, components or a hyperparameter are missing,
            or a live reward is infinite (unless it is traced).

    Examples:
        RED-Drop leaves out wrong responses until there are as many as right ones:

        >>> import jax
        >>> import numpy as np
        >>> from grre_jax import objectives
        >>> objective = objectives.algorithm("red_drop")
        >>> rewards, groups = np.array([1.0, 0.0, 0.0, 0.0, 0.0]), np.array([7, 7, 7, 7, 7])
        >>> shaped = objectives.shape_data(objective, rewards, groups, jax.random.key(0))
        >>> int(shaped.dropped.sum()), sorted(shaped.advantages.tolist())
        (3, [-0.5, 0.0, 0.0, 0.0, 0.5])
    """
    groups = group_ids_array(groups)
    read = _components(objective, components)
    by_turn = None
    if objective.returns:
        turns = np.shape(turn_rewards)
        if len(turns) != 2 or turns[:1] != np.shape(rewards):
            raise ValueError(f"turn_rewards must be [responses, turns], not {turns}")
        turn_rewards = _data(turn_rewards)
        if lengths is not None:
            check_shape("lengths", lengths, "responses, turns", turns)
            by_turn = jnp.asarray(lengths)
            # Shapings act on whole responses (the penalty of length); advantages of turns read
            # `by_turn`.
            lengths = jnp.sum(by_turn, axis=1)
    _check_rewards(objective, rewards, groups, key, lengths, read)
    rewards = _data(rewards)
    groups = judged_groups(rewards, groups)
    of_components = tuple(_data(values) for values in read.values())
    x = RewardInputs(
        objective, rewards, segment_groups(groups), key, lengths, of_components, turn_rewards
    )
    dropped = None
    for part in objective.shaping:
        rewards, left_out = part(x)
        x = replace(x, rewards=rewards)
        dropped = _either(dropped, left_out)
    if objective.returns:
        x = _of_turns(objective, x, by_turn)
    shaped = objective.advantage(x)
    if not isinstance(shaped, ShapedData):
        shaped = ShapedData(shaped, None)
    advantages = shaped.advantages
    if objective.returns:
        advantages = advantages.reshape(turn_rewards.shape)
    dropped = _either(dropped, shaped.dropped)
    if dropped is not None:
        gone = dropped[:, None] if objective.returns else dropped
        advantages = jnp.where(gone, 0, advantages)
    return ShapedData(advantages, dropped)


def _of_turns(objective: Objective, x: RewardInputs, lengths: Array | None) -> RewardInputs:
    """Makes a response of each turn, in a group with the same turn of its group's responses."""
    returns = objective.returns(x)
    here = jnp.isfinite(x.turn_rewards)
    # A segment for each (group, turn); all numbers stay below responses * turns, which is the
    # number of segments that `Groups` sums over.
    numbers = jnp.arange(here.shape[1], dtype=x.groups.segments.dtype)
    segments = x.groups.segments[:, None] * here.shape[1] + numbers
    groups = Groups(segments.reshape(-1), (x.groups.live[:, None] & here).reshape(-1))
    sizes = None if lengths is None else lengths.reshape(-1)
    return replace(x, rewards=returns.reshape(-1), groups=groups, response_lengths=sizes)


def _data(rewards: Responses) -> Responses:
    rewards = jnp.asarray(rewards)
    real = jnp.issubdtype(rewards.dtype, jnp.floating)
    return jax.lax.stop_gradient(
        rewards.astype(
            jnp.promote_types(rewards.dtype, jnp.float32) if real else jnp.result_type(float)
        )
    )


def _components(
    objective: Objective, given: Mapping[str, Responses] | None
) -> Mapping[str, Responses]:
    """Returns the components that the objective reads, of those given."""
    if not objective.advantage.of_components:
        return {}
    if not given:
        raise ValueError(f"{objective.name}: pass components={{name: [responses]}}")
    if missing := [name for name in objective.components if name not in given]:
        raise ValueError(f"{objective.name}: no reward component {missing[0]!r} in {sorted(given)}")
    return {name: given[name] for name in objective.components or sorted(given)}


def _either(one: Flags | None, other: Flags | None) -> Flags | None:
    return one if other is None else other if one is None else one | other


def _check_rewards(objective: Objective, rewards, groups, key, lengths, components) -> None:
    responses = np.shape(groups)[:1]
    arrays = {"rewards": rewards}
    arrays |= {f"component {name!r}": values for name, values in components.items()}
    for name, values in arrays.items():
        check_shape(name, values, "responses", responses)
        check_finite(name, values, groups, nan=True)
    if lengths is not None:
        check_shape("lengths", lengths, "responses", responses)
        check_finite("lengths", lengths, groups, least=0)
    if objective.advantage.random and not isinstance(key, jax.Array | np.ndarray):
        raise ValueError(
            f"{objective.name} drops responses at random and needs a PRNG key: pass"
            f" key=jax.random.key(seed), not {key!r}"
        )
    objective.check()


def advantages(
    objective: Objective,
    rewards: Responses,
    groups: Ids,
    *arguments,
    **options,
) -> Responses | Turns:
    """Computes advantages: those of `shape_data`, with its arguments and errors.

    Examples:
        Rewards of two prompts; the last response has no verdict:

        >>> import numpy as np
        >>> from grre_jax import objectives
        >>> objective = objectives.algorithm("rec_oneside_nois")
        >>> rewards, groups = np.array([1.0, 0.0, 1.0, 0.0, np.nan]), np.array([7, 7, 8, 8, 8])
        >>> objectives.advantages(objective, rewards, groups).tolist()
        [0.5, -0.5, 0.5, -0.5, 0.0]
    """
    return shape_data(objective, rewards, groups, *arguments, **options).advantages


def policy_loss(
    objective: Objective,
    logprobs: Float[Array, "..."],
    batch: Batch,
    stats: BatchStats | None = None,
) -> tuple[Scalar, dict[str, Scalar]]:
    """Computes the loss whose gradient is the objective's update, and its metrics.

    Args:
        objective: from `algorithm(...)`.
        logprobs: [tokens], or any shape that flattens to it ([responses, time] after
            `padded_batch`): the policy's log-probs, at the sampling temperature and over the full
            vocabulary, like `batch.old_logprobs`. Anything, NaN included, where the mask is False.
        batch: the tokens at hand, with all responses.
        stats: of the global batch (`batch_stats`) when `batch` is a micro-batch of it; None when it
            is the whole.

    Returns:
        loss: [] in the dtype of logprobs (at least float32).
        metrics: scalars. All add up over micro-batches given the global `stats`, except those
            ending in `_max`, which combine by maximum. Always: loss; penalty, the regularisers'
            part of it; those of `diagnostics.clip_metrics`. With behaviour log-probs those of
            `diagnostics.ratio_metrics`, with reference log-probs of `kl_metrics`; with a
            correction or a filter correction_mean, the mean weight, and filtered_fraction, the
            share of tokens whose response is left out.

    Raises:
        ValueError: if the batch lacks data that the objective requires, or shapes disagree.

    Examples:
        The second response is wrong, and the policy has moved away from it by more than
        `epsilon_low`: its tokens are clipped.

        >>> import jax
        >>> import numpy as np
        >>> from grre_jax import objectives
        >>> objective = objectives.algorithm("rec_oneside_nois", epsilon_low=0.6, epsilon_high=2.0)
        >>> old = np.full((2, 2), -1.0)
        >>> batch = objectives.padded_batch(
        ...     advantages=np.array([0.5, -0.5]),
        ...     mask=np.ones((2, 2)),
        ...     groups=np.array([0, 0]),
        ...     old_logprobs=old,
        ... )
        >>> @jax.jit
        ... def gradient(objective, logprobs):
        ...     def loss(logprobs):
        ...         return objectives.policy_loss(objective, logprobs, batch)
        ...     return jax.grad(loss, has_aux=True)(logprobs)
        >>> update, metrics = gradient(objective, old + np.array([[0.0], [-1.0]]))
        >>> update.tolist(), float(metrics["clip_fraction"])
        ([[-0.125, -0.125], [0.0, 0.0]], 0.5)
    """
    logprobs = flat_logprobs(logprobs, batch)
    _check_batch(objective, batch)
    if stats is None:
        stats = batch_stats(batch, objective, logprobs)
    x = LossInputs.of(objective, logprobs, batch, stats)

    # A built-in term states its derivative, so that JAX derives none of its exponentials.
    constants = replace(x, logprobs=jax.lax.stop_gradient(x.logprobs))
    term = objective.term
    factor, metrics = _factor(objective, x)
    # Penalties get `x` itself: most are differentiated as they are written.
    of_tokens = (part(x) for part in objective.penalties if not part.of_responses)
    of_responses = (part(x) for part in objective.penalties if part.of_responses)
    token_penalty = sum(of_tokens, jnp.zeros_like(x.logprobs))
    response_penalty = sum(of_responses, 0.0)

    live = batch.group_ids >= 0
    dtype = x.logprobs.dtype
    # Padding responses never count, whatever a penalty of responses gives them.
    scale = jnp.where(live, response_scale(objective, batch, stats, dtype), 0)
    scale = jax.lax.stop_gradient(scale)
    token_scale = x.at_tokens(scale)
    penalty = jnp.sum(token_scale * token_penalty) + jnp.sum(scale * response_penalty)
    if term.differentiated:
        contribution = differentiated(term, x, jax.lax.stop_gradient(factor))
        dloss_dlogprob = contribution.dloss_dlogprob
    else:
        contribution = term(constants)
        # Each of the response's n values depends on this token by 1/n of the stated derivative, and
        # has the factor of its own token.
        of_gradient = x.mean_over_response(factor) if contribution.whole_response else factor
        dloss_dlogprob = of_gradient * contribution.dloss_dlogprob
    terms = with_derivative(factor * contribution.value, dloss_dlogprob, x.logprobs)
    loss = jnp.sum(token_scale * terms) + penalty
    if contribution.response_value is not None:
        # Without a gradient: `dloss_dlogprob` of the tokens has that of the response already.
        loss += jax.lax.stop_gradient(jnp.sum(scale * contribution.response_value))

    metrics |= {"loss": loss, "penalty": penalty} | _metrics(x, contribution.unclipped)
    return loss, jax.lax.stop_gradient(metrics)


def _factor(objective: Objective, x: LossInputs) -> tuple[Tokens, dict[str, Scalar]]:
    """Computes the factor of the policy-gradient term by the correction and the filter, and their
    metrics.
    """
    factor = jnp.ones_like(x.logprobs)
    metrics = {}
    if objective.correction:
        factor *= jax.lax.stop_gradient(objective.correction(x))
        metrics["correction_mean"] = x.share(factor)
    if objective.filter:
        kept = objective.filter(x)
        factor *= kept
        metrics["filtered_fraction"] = x.share(~kept)
    if objective.term.separates_experts and (objective.correction or objective.filter):
        factor = jnp.where(x.expert, 1, factor)  # imitation of an expert has no ratio to correct
    return factor, metrics


def _metrics(x: LossInputs, unclipped: Gate) -> dict[str, Scalar]:
    """Computes the metrics that every objective has."""
    metrics = clip_metrics(x, unclipped)
    if x.batch.old_logprobs is not None:
        metrics |= ratio_metrics(x, x.behavior_log_ratio)
    if x.batch.ref_logprobs is not None:
        metrics |= kl_metrics(x, x.ref_logprobs - x.logprobs, "kl_reference")
    return metrics


def _check_batch(objective: Objective, batch: Batch) -> None:
    for name in sorted(objective.requires):
        present(objective, batch, name)
    drops = any(part.drops for part in (*objective.shaping, objective.advantage))
    if drops and objective.denominator == "kept" and batch.dropped is None:
        raise ValueError(
            f'{objective.name} with denominator="kept" needs the batch to say what was dropped:'
            " pass dropped= from shape_data"
        )
    objective.check()
