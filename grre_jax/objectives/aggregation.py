"""Aggregation: what the sum of a response's token terms is multiplied by.

Every aggregation of the field gives each response one factor; the loss is the sum over responses of factor x (sum of its token terms +
its response terms). The factor depends on counts of the global batch only (`BatchStats`), never on what part of it is at hand.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from grre_jax.objectives.batch import BatchStats
from grre_jax.objectives.objective import Objective


def _at_least_one(count: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.maximum(count, 1)


# name -> function of (tokens, tokens by response, responses, responses by group, groups, numbers), the divisor of each response's sum.
AGGREGATIONS: dict[str, Callable[..., Float[Array, "..."]]] = {
    # mean over all tokens of the global batch
    "token": lambda tokens, lengths, responses, sizes, groups, n: tokens,
    # mean over groups of the mean over the group's responses of the sum over tokens: the derivation's
    "group": lambda tokens, lengths, responses, sizes, groups, n: sizes * groups,
    # mean over responses of the mean over tokens: GRPO as first published
    "response": lambda tokens, lengths, responses, sizes, groups, n: lengths * responses,
    # mean over responses of the sum over tokens
    "response_sum": lambda tokens, lengths, responses, sizes, groups, n: responses,
    # sum over tokens, over the number of responses times a constant length: Dr.GRPO (https://arxiv.org/abs/2503.20783)
    "constant": lambda tokens, lengths, responses, sizes, groups, n: responses * n["constant_length"],
}


def response_scale(objective: Objective, stats: BatchStats, dtype) -> Float[Array, " responses"]:
    """The factor of each response's sum of terms.

    Args:
      objective: its `aggregation`, and its `denominator`: "all", or "kept" to count only responses that were not dropped.
      stats: counts of the global batch.
      dtype: of the result.

    Returns:
      [responses] factors.
    """
    kept = objective.denominator == "kept"
    counts = (
        stats.kept_tokens if kept else stats.tokens,
        stats.response_tokens,
        stats.kept_responses if kept else stats.responses,
        stats.kept_group_sizes if kept else stats.group_sizes,
        stats.groups,
    )
    counts = [_at_least_one(count.astype(dtype)) for count in counts]
    divisor = AGGREGATIONS[objective.aggregation](*counts, objective.numbers)
    return jnp.broadcast_to(1 / divisor, stats.group_sizes.shape).astype(dtype)
