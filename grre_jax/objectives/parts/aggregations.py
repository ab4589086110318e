"""Aggregations: the factor of the sum of a response's terms.

Every aggregation gives each response one factor; the loss is the sum over responses of factor x
(sum of its token terms + its response terms). The factor depends on counts of the global batch only
(`BatchStats`), never on what part of it is at hand.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grre_jax.objectives.batch import Batch, BatchStats, Counts
from grre_jax.objectives.inputs import Responses, Scalar
from grre_jax.objectives.objective import Objective, aggregation, positive

Divisor = Float[Array, "..."]
Values = Mapping[str, Scalar]


@aggregation
def token(counts: Counts, lengths: Responses, hyperparameters: Values) -> Divisor:
    """Mean over all tokens of the global batch."""
    return counts.tokens


@aggregation
def group(counts: Counts, lengths: Responses, hyperparameters: Values) -> Divisor:
    """Mean over groups of the mean over the group's responses of the sum over tokens: the
    derivation's.
    """
    return counts.group_sizes * counts.groups


@aggregation
def response(counts: Counts, lengths: Responses, hyperparameters: Values) -> Divisor:
    """Mean over responses of the mean over tokens: GRPO as first published."""
    return lengths * counts.responses


@aggregation
def response_sum(counts: Counts, lengths: Responses, hyperparameters: Values) -> Divisor:
    """Mean over responses of the sum over tokens."""
    return counts.responses


CONSTANT_LENGTH = positive(
    "constant_length", 'tokens a response is taken to have by aggregation="constant"'
)


@aggregation(hyperparameters=(CONSTANT_LENGTH,))
def constant(counts: Counts, lengths: Responses, hyperparameters: Values) -> Divisor:
    """Sum over tokens, over the number of responses times a constant length: Dr.GRPO
    (https://arxiv.org/abs/2503.20783).
    """
    return counts.responses * hyperparameters["constant_length"]


@aggregation(name="sum")
def plain_sum(counts: Counts, lengths: Responses, hyperparameters: Values) -> Divisor:
    """The sum itself."""
    return jnp.ones_like(lengths)


def response_scale(objective: Objective, batch: Batch, stats: BatchStats, dtype) -> Responses:
    """Computes the factor of each response's sum of terms.

    Args:
        objective: its `aggregation`, and its `denominator`: "all", or "kept" to count only
            responses that were not dropped.
        batch: its `expert` and `dropped` responses.
        stats: counts of the global batch.
        dtype: of the result.

    Returns:
        [responses] factors.
    """

    def scale(counts: Counts) -> Responses:
        # Where nothing is counted the sum of terms is 0 too: 0 / 1, not 0 / 0.
        counts, lengths = jax.tree.map(
            lambda count: jnp.maximum(count, 1).astype(dtype), (counts, stats.response_tokens)
        )
        divisor = objective.aggregation(counts, lengths, objective.hyperparameters)
        return jnp.broadcast_to(1 / divisor, lengths.shape).astype(dtype)

    if objective.term.separates_experts:
        return jnp.where(jnp.asarray(batch.expert, bool), scale(stats.expert), scale(stats.own))
    if objective.denominator == "kept" and batch.dropped is not None:
        # Dropped responses are not in the counts: their penalties must not be divided by them.
        return jnp.where(jnp.asarray(batch.dropped, bool), 0, scale(stats.kept))
    return scale(stats.all)
