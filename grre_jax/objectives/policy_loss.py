"""The policy loss: one function composes advantage, weight, mask, penalties and aggregation.

    g = -sum_i scale_i sum_t m A W M grad(l) + penalties

with l the token log-probs, m the batch's mask, A the advantages, W and M from `weights`, and scale_i from `aggregation`. The gradient is
the definition (`with_gradient`); the value is chosen to be readable: with importance weights -A rho, and without -A l (times W), where
in both a token whose gradient is stopped counts with its ratio at the nearest of the bounds 1 - epsilon_low, 1 + epsilon_high. For GRPO
and REC-OneSide-IS that is PPO's clipped objective.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grre_jax.objectives.aggregation import response_scale
from grre_jax.objectives.batch import Batch, BatchStats, batch_stats, live_tokens
from grre_jax.objectives.diagnostics import clip_metrics, masked_share, ratio_metrics, reference_metrics
from grre_jax.objectives.objective import Objective
from grre_jax.objectives.regularizers import RESPONSE_PENALTIES, TOKEN_PENALTIES, with_gradient
from grre_jax.objectives.weights import MASKS, WEIGHTS, frozen_log_ratio, limit_log_ratio

Tokens = Float[Array, " tokens"]


def policy_loss(
    objective: Objective, logprobs: Float[Array, "..."], batch: Batch, stats: BatchStats | None = None
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The loss whose gradient is the objective's update, and what to watch.

    Args:
      objective: from `algorithm(...)`.
      logprobs: [tokens], or any shape that flattens to it ([responses, time] after `padded_batch`): the policy's log-probs, at the
        sampling temperature and over the full vocabulary, like `batch.old_logprobs`. Anything, NaN included, where the mask is False.
      batch: the tokens at hand, with all responses.
      stats: counts of the global batch when `batch` is a micro-batch of it; None when it is the whole.

    Returns:
      loss: [] in the dtype of logprobs (at least float32).
      metrics: scalars. All add up over micro-batches given the global `stats`, except those ending in `_max`, which combine by maximum.
        Always there: loss; penalty, the regularisers' part of it; those of `diagnostics.clip_metrics`; limited_fraction, the share of
        tokens where a documented bound of `weights` acted. With behaviour log-probs also those of `diagnostics.ratio_metrics`, with
        reference log-probs those of `diagnostics.reference_metrics`.

    Raises:
      ValueError: if the batch lacks data that the objective requires, or shapes disagree.
    """
    logprobs = jnp.asarray(logprobs)
    logprobs = logprobs.reshape(-1).astype(jnp.promote_types(logprobs.dtype, jnp.float32))
    _check(objective, logprobs, batch)
    stats = batch_stats(batch) if stats is None else stats
    numbers = {name: jnp.asarray(value, logprobs.dtype) for name, value in objective.numbers.items()}

    # What may be looked at: zeros wherever the mask is False, before any arithmetic, so that garbage there reaches neither loss nor
    # gradient.
    mask = live_tokens(batch)
    policy = jnp.where(mask, logprobs, 0)
    old, reference = (_data(values, mask, policy.dtype) for values in (batch.old_logprobs, batch.ref_logprobs))
    advantages = _data(jnp.asarray(batch.advantages)[batch.response_ids], mask, policy.dtype)

    gradient_terms, passes, limited = _policy_gradient(objective, policy, old, advantages, numbers)
    penalty_terms, response_terms = _penalties(objective, policy, old, reference, batch, numbers)

    scale = jax.lax.stop_gradient(response_scale(objective, stats, policy.dtype))
    token_scale = jnp.where(mask, scale[batch.response_ids], 0)
    penalty = jnp.sum(token_scale * penalty_terms) + jnp.sum(jnp.where(batch.group_ids >= 0, scale, 0) * response_terms)
    loss = jnp.sum(token_scale * gradient_terms) + penalty

    tokens = stats.tokens.astype(policy.dtype)
    metrics = {"loss": loss, "penalty": penalty, **clip_metrics(passes, advantages, mask, tokens)}
    for anchor, describe, sign in ((old, ratio_metrics, 1), (reference, reference_metrics, -1)):
        if anchor is not None:
            metrics |= describe(sign * (policy - anchor), mask, tokens)
            limited |= limit_log_ratio(policy - anchor)[1]
    metrics["limited_fraction"] = masked_share(limited.astype(policy.dtype), mask, tokens)
    return loss, jax.lax.stop_gradient(metrics)


def _policy_gradient(objective: Objective, policy: Tokens, old: Tokens | None, advantages: Tokens, numbers):
    """The terms -A W M l, where the mask lets gradient through, and where a bound of the weight acted; each [tokens]."""
    log_ratio = ratio = None
    if old is not None:
        log_ratio, _ = limit_log_ratio(jax.lax.stop_gradient(policy - old))
        ratio = jnp.exp(log_ratio)
    passes = MASKS[objective.mask](ratio, advantages, numbers)
    weight, limited = WEIGHTS[objective.weight](ratio, advantages, numbers)

    if objective.mask == "none":
        reached = ratio if objective.weight == "ratio" else weight * policy
    else:
        frozen = frozen_log_ratio(log_ratio, passes, numbers["epsilon_low"], numbers["epsilon_high"])
        reached = jnp.exp(frozen) if objective.weight == "ratio" else weight * (old + frozen)
    terms = with_gradient(-advantages * reached, -advantages * weight * passes, policy)
    return terms, passes, limited


def _penalties(objective: Objective, policy: Tokens, old: Tokens | None, reference: Tokens | None, batch: Batch, numbers):
    """The regularisers' token terms [tokens] and response terms [responses]."""
    token_terms = jnp.zeros_like(policy)
    response_terms = jnp.zeros(batch.group_ids.shape, policy.dtype)
    for name in objective.penalties:
        if name in TOKEN_PENALTIES:
            token_terms += TOKEN_PENALTIES[name](policy, reference if name.endswith("_reference") else old, numbers)
        else:
            sums = jax.ops.segment_sum(policy - old, batch.response_ids, batch.group_ids.size)
            response_terms += RESPONSE_PENALTIES[name](sums, numbers)
    return token_terms, response_terms


def _data(values: Array | None, mask: Array, dtype) -> Tokens | None:
    return None if values is None else jax.lax.stop_gradient(jnp.where(mask, values, 0).astype(dtype))


def _check(objective: Objective, logprobs: Tokens, batch: Batch) -> None:
    if logprobs.shape != batch.mask.shape:
        raise ValueError(f"logprobs has {logprobs.size} entries, but the batch has {batch.mask.size} tokens")
    for name in sorted(objective.requires):
        if getattr(batch, name) is None:
            raise ValueError(
                f"{objective.name} needs {name}, which this batch does not have: "
                "compute them for the data, or choose an objective that does without"
            )
    if objective.advantage == "red_drop" and objective.denominator == "kept" and batch.dropped is None:
        raise ValueError(f'{objective.name} with denominator="kept" needs the batch to say what was dropped: pass dropped= from shape_data')
    for name, value in objective.numbers.items():
        if jnp.ndim(value) != 0:
            raise ValueError(f"{name} has shape {jnp.shape(value)}: sweep a stacked objective with jax.vmap")
