"""Inputs and outputs of parts: rewards and their groups for advantages; the batch, with zeros
wherever nothing counts, for the loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from grre_jax.objectives.batch import (
    Batch,
    BatchStats,
    Flags,
    Gate,
    Groups,
    Responses,
    Tokens,
    Turns,
    count_batch,
    flat_logprobs,
    live_tokens,
)
from grre_jax.objectives.objective import Objective

Scalar = float | Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShapedData:
    """The result of data shaping.

    Attributes:
        advantages: [responses], or [responses, turns] where the objective has returns.
        dropped: [responses] True where the response was left out (its advantage is 0), or None
            where the objective drops none.
    """

    advantages: Responses | Turns
    dropped: Flags | None


@dataclass(frozen=True)
class RewardInputs:
    """The inputs of a shaping or an advantage.

    Attributes:
        objective: the loss that the advantages are for.
        rewards: [responses], data.
        groups: which responses answer the same prompt.
        key: one PRNG key, or [responses] keys, or None.
        response_lengths: [responses] in tokens, or None.
        components: [responses] each, the components of the reward that the objective reads, data.
        turn_rewards: [responses, turns] as `shape_data` takes them, where the objective has
            returns.
    """

    objective: Objective
    rewards: Responses
    groups: Groups
    key: PRNGKeyArray | None
    response_lengths: Responses | None
    components: tuple[Responses, ...] = ()
    turn_rewards: Turns | None = None

    @property
    def lengths(self) -> Responses:
        """[responses] tokens of each response.

        Raises:
            ValueError: if they were not given.
        """
        if self.response_lengths is None:
            raise ValueError(
                f"{self.objective.name} needs the lengths of the responses, in tokens: pass"
                " lengths="
            )
        return jnp.asarray(self.response_lengths).astype(self.rewards.dtype)

    @property
    def hyperparameters(self) -> Mapping[str, Scalar]:
        """The objective's, as they were given."""
        return self.objective.hyperparameters


class Contribution(NamedTuple):
    """The contribution of a term to the loss of tokens and responses: constants, all of them.

    Attributes:
        value: [tokens].
        dloss_dlogprob: [tokens] derivative with respect to the token's log-prob.
        unclipped: [tokens] True where the gradient mask lets the gradient through.
        response_value: [responses] added once per response, or None.
        whole_response: True if a token's value is a function of its whole response, whose every
            token then has the derivative of all of them.
    """

    value: Tokens
    dloss_dlogprob: Tokens
    unclipped: Gate
    response_value: Responses | None = None
    whole_response: bool = False


def with_derivative(value: Tokens, dloss_dlogprob: Tokens, logprobs: Tokens) -> Tokens:
    """Returns [tokens] terms with the given values, and by definition with the gradient
    `dloss_dlogprob` times that of `logprobs`.
    """
    # The factor behind the derivative is 0: it leaves the value, and has the gradient of log-probs.
    return jax.lax.stop_gradient(value) + jax.lax.stop_gradient(dloss_dlogprob) * (
        logprobs - jax.lax.stop_gradient(logprobs)
    )


@dataclass(frozen=True)
class LossInputs:
    """The inputs of a part of the loss: a batch, with zeros wherever nothing counts.

    All [tokens] arrays are finite, and 0 where the mask is False, whatever the batch contains
    there. Everything but `logprobs` is data: no gradient flows through it.

    Attributes:
        objective: the loss that is minimised.
        logprobs: [tokens] l under the policy.
        mask: [tokens] True where a token counts.
        batch: the source of the rest.
        stats: of the global batch.
        hyperparameters: the objective's, as arrays of the loss's dtype.

    Examples:
        A loss of one's own; a batch must have what the function reads:

        >>> from grre_jax import objectives
        >>> def stay_close(x, *, pull=0.1):
        ...     return -x.advantages * x.logprobs + pull * (x.logprobs - x.ref_logprobs) ** 2
        >>> objective = objectives.algorithm(stay_close)
        >>> sorted(objective.requires), objective.takes_ratio
        (['ref_logprobs'], False)
    """

    objective: Objective
    logprobs: Tokens
    mask: Gate
    batch: Batch
    stats: BatchStats | None
    hyperparameters: Mapping[str, Float[Array, ""]]

    @classmethod
    def of(
        cls, objective: Objective, logprobs: Tokens, batch: Batch, stats: BatchStats | None
    ) -> "LossInputs":
        """Makes the inputs: log-probs that are 0 where nothing counts, before any arithmetic, so
        that garbage there reaches neither loss nor gradient, and hyperparameters of their dtype.
        """
        mask = live_tokens(batch)
        values = objective.hyperparameters.items()
        hyperparameters = {name: jnp.asarray(value, logprobs.dtype) for name, value in values}
        # Selected here, not multiplied by the mask later: 0 times NaN is NaN, in the gradient too.
        return cls(objective, jnp.where(mask, logprobs, 0), mask, batch, stats, hyperparameters)

    @property
    def old_logprobs(self) -> Tokens:
        """[tokens] q, under the policy that sampled."""
        return self._token_data("old_logprobs")

    @property
    def prox_logprobs(self) -> Tokens:
        """[tokens] p, under the policy at the start of the update."""
        return self._token_data("prox_logprobs")

    @property
    def ref_logprobs(self) -> Tokens:
        """[tokens] f, under the reference policy."""
        return self._token_data("ref_logprobs")

    @property
    def advantages(self) -> Tokens:
        """[tokens] A of the token's response, or of its turn."""
        advantages = jnp.asarray(self.batch.advantages)
        if advantages.ndim == 1:
            return self.at_tokens(advantages)
        # Where the mask is False the turn may be any number: JAX clamps such an index, and raises
        # no error.
        values = advantages[self.batch.response_ids, self.batch.turns]
        return jnp.where(self.mask, values, 0).astype(self.logprobs.dtype)

    @property
    def rewards(self) -> Tokens:
        """[tokens] reward of the token's response."""
        return self.at_tokens(self.response_data("rewards"))

    @property
    def expert(self) -> Gate:
        """[tokens] True where the token's response is an expert's."""
        return self.at_tokens(self.response_data("expert")) != 0

    @property
    def staleness(self) -> Tokens:
        """[tokens] policy versions between the one that sampled and the learner's."""
        return self.at_tokens(self.response_data("staleness"))

    @property
    def ratio_reference_logprobs(self) -> Tokens:
        """[tokens] log-probs of the policy that ratios are taken to."""
        return self.objective.ratio_reference(self)

    @property
    def log_ratio(self) -> Tokens:
        """[tokens] the log-ratio to that policy: d = l - q, or l - p with a correction."""
        return self.logprobs - self.ratio_reference_logprobs

    @property
    def behavior_log_ratio(self) -> Tokens:
        """[tokens] d = l - q, whatever the ratio reference."""
        return self.logprobs - self.old_logprobs

    @property
    def lengths(self) -> Tokens:
        """[tokens] length of the token's response, at least 1."""
        # At least 1: the mean over a response without a token is then 0, not 0/0.
        return jnp.maximum(self.stats.response_tokens, 1).astype(self.logprobs.dtype)[
            self.batch.response_ids
        ]

    def sum_by_response(self, values: Tokens) -> Responses:
        """Sums [tokens] values over the tokens of each response that count: [responses]."""
        return jax.ops.segment_sum(
            jnp.where(self.mask, values, 0), self.batch.response_ids, self.batch.group_ids.size
        )

    def total_over_response(self, values: Tokens) -> Tokens:
        """Takes the sum of [tokens] values over each token's response: [tokens]."""
        return self.at_tokens(self.sum_by_response(values))

    def mean_over_response(self, values: Tokens) -> Tokens:
        """Takes the mean of [tokens] values over each token's response: [tokens]."""
        return self.total_over_response(values) / self.lengths

    def share(self, values: Tokens | Gate) -> Float[Array, ""]:
        """Computes this micro-batch's part of a token mean: the sum of `values` where they count,
        over the tokens of the global batch. Divides first, so the sum cannot overflow.
        """
        tokens = self.stats.tokens.astype(self.logprobs.dtype)
        return jnp.sum(jnp.where(self.mask, values, 0) / jnp.maximum(tokens, 1))

    def at_tokens(self, values: Responses) -> Tokens:
        """Reads [responses] values at each token: [tokens], 0 where the mask is False."""
        return jnp.where(self.mask, jnp.asarray(values)[self.batch.response_ids], 0).astype(
            self.logprobs.dtype
        )

    def response_data(self, name: str) -> Responses:
        """Returns a [responses] array of the batch, 0 on padding.

        Raises:
            ValueError: the batch does not have it.
        """
        values = self._present(name)
        return jax.lax.stop_gradient(
            jnp.where(self.batch.group_ids >= 0, values, 0).astype(self.logprobs.dtype)
        )

    def _token_data(self, name: str) -> Tokens:
        values = self._present(name)
        if name == "old_logprobs" and self.objective.term.separates_experts:
            # No policy of the run sampled an expert's tokens: their ratio is 1.
            values = jnp.where(self.expert, self.logprobs, values)
        return jax.lax.stop_gradient(jnp.where(self.mask, values, 0).astype(self.logprobs.dtype))

    def _present(self, name: str) -> Array:
        return jnp.asarray(present(self.objective, self.batch, name))


def present(objective: Objective, batch: Batch, name: str) -> Array:
    """Returns an optional array of a batch.

    Raises:
        ValueError: the batch does not have it.
    """
    values = getattr(batch, name)
    if values is None:
        raise ValueError(
            f"{objective.name} needs {name}, which this batch does not have: compute them for the"
            " data, or choose an objective that does without"
        )
    return values


def batch_stats(
    batch: Batch, objective: Objective | None = None, logprobs: Float[Array, "..."] | None = None
) -> BatchStats:
    """Computes counts and statistics of the whole batch: the first phase of a step.

    Counts come from the batch alone. Some parts also decide by the policy over the whole batch:
    which tokens have moved most, between which bounds the ratios balance. Their statistics
    (`Part.gathers`) are gathered here once, from the log-probs of all tokens, for the loss of every
    micro-batch: no split of the batch changes them.

    Args:
        batch: the global batch.
        objective: the loss that will be minimised, or None for the counts alone.
        logprobs: the policy's log-probs of all tokens, in any shape that flattens to [tokens];
            needed where `objective.needs_policy_stats`.

    Returns:
        The `BatchStats`, counts in the default float dtype (token counts are summed as integers
        first).

    Raises:
        ValueError: if log-probs that the objective needs are missing, or are not one per token.

    Examples:
        Losses of micro-batches add up to that of the batch, given the statistics of the whole:

        >>> import jax
        >>> import numpy as np
        >>> from grre_jax import objectives
        >>> objective = objectives.algorithm("reinforce")
        >>> batch = objectives.padded_batch(
        ...     advantages=np.array([1.0, 0.0]), mask=np.ones((2, 2)), groups=np.array([0, 0])
        ... )
        >>> stats, logprobs = objectives.batch_stats(batch, objective), np.full(4, -1.0)
        >>> @jax.jit
        ... def loss(logprobs, batch):
        ...     return objectives.policy_loss(objective, logprobs, batch, stats)[0]
        >>> halves = [slice(0, 2), slice(2, 4)]
        >>> losses = [loss(logprobs[half], batch.select_tokens(half)) for half in halves]
        >>> float(sum(losses)), float(loss(logprobs, batch))
        (0.5, 0.5)
    """
    stats = count_batch(batch)
    if objective is None or not objective.gathers:
        return stats
    if logprobs is None:
        if objective.needs_policy_stats:
            raise ValueError(
                f"{objective.name} decides by statistics of the policy over the whole batch: pass"
                " its log-probs of all tokens, batch_stats(batch, objective, logprobs)"
            )
        # Statistics of the data alone (GEPO) read only the shape and the dtype of these.
        logprobs = jnp.zeros(batch.mask.shape, jnp.result_type(float))
    # Statistics are constants of the loss: no gradient flows through a threshold or a mean.
    logprobs = jax.lax.stop_gradient(flat_logprobs(logprobs, batch))
    x = LossInputs.of(objective, logprobs, batch, stats)
    gathered = {}
    for statistic in objective.gathers:
        gathered |= statistic.function(x)
    return replace(stats, gathered=gathered)
