"""The first phase of a step: counts and statistics of the whole global batch.

Counts for the aggregation come from the batch alone. Some parts also decide by the policy over the
whole batch: which tokens have moved most, between which bounds the ratios balance, how far the
other responses of a group have moved. Their statistics (`Part.gathers`) are gathered here once,
from the log-probs of all tokens, for the loss of every micro-batch: no split of the batch changes
them.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grre_jax.objectives.batch import (
    Batch,
    BatchStats,
    Counts,
    check_shapes,
    flat_logprobs,
    live_tokens,
)
from grre_jax.objectives.groups import Groups, segment_groups
from grre_jax.objectives.inputs import LossInputs
from grre_jax.objectives.objective import Objective


def batch_stats(
    batch: Batch, objective: Objective | None = None, logprobs: Float[Array, "..."] | None = None
) -> BatchStats:
    """Computes counts and statistics of the whole batch.

    Args:
        batch: the global batch. (For counts alone also the tokens of a micro-batch of it: then add
            the results up.)
        objective: the loss that will be minimised, or None for the counts alone.
        logprobs: the policy's log-probs of all tokens, in any shape that flattens to [tokens];
            needed where `objective.needs_policy_stats`.

    Returns:
        The `BatchStats`, counts in the default float dtype (token counts are summed as integers
        first).

    Raises:
        ValueError: if shapes disagree, or log-probs that the objective needs are missing.
    """
    check_shapes(batch)
    groups = segment_groups(batch.group_ids)
    response_tokens = jax.ops.segment_sum(
        live_tokens(batch).astype(jnp.int32), batch.response_ids, batch.group_ids.size
    )

    def counts(chosen: Bool[Array, " responses"]) -> Counts:
        chosen = groups.live & chosen
        totals = (
            jnp.sum(jnp.where(chosen, response_tokens, 0)),
            jnp.sum(chosen),
            jnp.where(groups.live, groups.sum(chosen.astype(jnp.int32)), 0),
            Groups(groups.segments, chosen).count,
        )
        return Counts(*(total.astype(jnp.result_type(float)) for total in totals))

    everything = jnp.ones(groups.live.shape, bool)
    kept = everything if batch.dropped is None else ~jnp.asarray(batch.dropped, bool)
    expert = None if batch.expert is None else jnp.asarray(batch.expert, bool)
    stats = BatchStats(
        all=counts(everything),
        kept=counts(kept),
        expert=None if expert is None else counts(expert),
        own=None if expert is None else counts(~expert),
        response_tokens=response_tokens.astype(jnp.result_type(float)),
        gathered={},
    )
    if objective is None or not objective.gathers:
        return stats
    return replace(stats, gathered=_gathered(objective, logprobs, batch, stats))


def _gathered(
    objective: Objective, logprobs: Float[Array, "..."] | None, batch: Batch, stats: BatchStats
) -> dict[str, Array]:
    """Computes what the objective `gathers`, from the counts of the global batch.

    Raises:
        ValueError: if log-probs that it needs are missing, or are not one per token.
    """
    if logprobs is None:
        if objective.needs_policy_stats:
            raise ValueError(
                f"{objective.name} decides by statistics of the policy over the whole batch: pass"
                " its log-probs of all tokens, batch_stats(batch, objective, logprobs)"
            )
        logprobs = jnp.zeros(batch.mask.shape, jnp.result_type(float))
    logprobs = jax.lax.stop_gradient(flat_logprobs(logprobs, batch))
    x, gathered = LossInputs.of(objective, logprobs, batch, stats), {}
    for statistic in objective.gathers:
        gathered |= statistic.function(x)
    return gathered
