"""The one batch layout of every loss: flat tokens -> response ids -> group ids.

Tokens of all responses lie in one flat axis, each with the index of its response; responses carry
their advantage and the id of their group. Padded, packed and sharded batches are then the same
thing. Only the mask `veto` depends on the order of the tokens, which for each response must be that
of sampling, as in `padded_batch` and in the packed rows of training. The mask and the group ids
alone decide which tokens count, never a comparison of tokens with a pad id.

Two phases make aggregation exact. `statistics.batch_stats` counts over the whole global batch; the
loss of a micro-batch (a slice of the token arrays, the response arrays whole, all tokens of a
response in one micro-batch) takes these counts, and the losses and gradients of the micro-batches
add up to the batch's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from grre_jax.objectives.groups import check_finite, concrete, group_ids_array, judged_groups


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Batch:
    """The data of a loss besides the policy's log-probs.

    Attributes:
        mask: [tokens] True on the tokens that the policy generated. Where False, the other token
            arrays may be anything, NaN included.
        response_ids: [tokens] index of the token's response, in 0..responses-1 (any such value
            where the mask is False).
        advantages: [responses], constant over a response's tokens, or [responses, turns],
            constant over a turn's.
        group_ids: [responses] arbitrary integers, equal for the responses of one prompt; -1 on
            padding responses, which never count.
        old_logprobs: [tokens] log-probs under the policy that sampled, at the sampling temperature
            and over the full vocabulary; None if unknown.
        rewards: [responses], or None.
        dropped: [responses] True on responses that data shaping left out, or None.
        ref_logprobs: [tokens] log-probs under a reference policy, or None.
        prox_logprobs: [tokens] log-probs under the policy at the start of the update, or None.
        expert: [responses] True on responses of an expert rather than the policy, or None.
        staleness: [responses] how many policy versions behind the learner the policy was that
            sampled, at least 0, or None.
        turns: [tokens] number of the token's turn in its response, from 0 (any turn where the mask
            is False), or None.
    """

    mask: Bool[Array, " tokens"]
    response_ids: Int[Array, " tokens"]
    advantages: Float[Array, " responses"] | Float[Array, "responses turns"]
    group_ids: Int[Array, " responses"]
    old_logprobs: Float[Array, " tokens"] | None = None
    rewards: Float[Array, " responses"] | None = None
    dropped: Bool[Array, " responses"] | None = None
    ref_logprobs: Float[Array, " tokens"] | None = None
    prox_logprobs: Float[Array, " tokens"] | None = None
    expert: Bool[Array, " responses"] | None = None
    staleness: Float[Array, " responses"] | None = None
    turns: Int[Array, " tokens"] | None = None

    def select_tokens(self, index) -> "Batch":
        """Takes a micro-batch: the token arrays indexed by `index` (a slice or an integer array),
        the response arrays whole.
        """
        chosen = {
            name: getattr(self, name)[index]
            for name in TOKEN_FIELDS
            if getattr(self, name) is not None
        }
        return replace(self, **chosen)


TOKEN_FIELDS = ("mask", "response_ids", "old_logprobs", "ref_logprobs", "prox_logprobs", "turns")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Counts:
    """Numbers of tokens, responses and groups of a choice of responses, over the global batch.

    Attributes:
        tokens: [] tokens that count, of the chosen live responses.
        responses: [] the chosen live responses.
        group_sizes: [responses] the chosen ones in the group of each response (0 on padding).
        groups: [] groups with a chosen response.
    """

    tokens: Float[Array, ""]
    responses: Float[Array, ""]
    group_sizes: Float[Array, " responses"]
    groups: Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BatchStats:
    """The global batch as a loss sees it: counts, and the statistics that its objective gathers.

    Attributes:
        all: counts of all live responses.
        kept: of those that data shaping did not drop.
        expert: of an expert's, or None if the batch has no `expert`.
        own: of the policy's own, or None.
        response_tokens: [responses] tokens that count of each response (0 on padding).
        gathered: statistics of the policy over the global batch, by name.
    """

    all: Counts
    kept: Counts
    expert: Counts | None
    own: Counts | None
    response_tokens: Float[Array, " responses"]
    gathered: Mapping[str, Array]

    @property
    def tokens(self) -> Float[Array, ""]:
        """[] tokens that count."""
        return self.all.tokens

    def __add__(self, other: "BatchStats") -> "BatchStats":
        """Adds the counts of two disjoint sets of tokens of one batch: token counts add, response
        counts are the same in both.

        Raises:
            ValueError: if either has gathered statistics, which do not add.
        """
        if self.gathered or other.gathered:
            raise ValueError(
                "statistics of the policy do not add up"
                f" ({', '.join(self.gathered or other.gathered)}): gather them from the global"
                " batch at once"
            )

        def plus(mine: Counts | None, others: Counts | None) -> Counts | None:
            return None if mine is None else replace(mine, tokens=mine.tokens + others.tokens)

        summed = {
            name: plus(getattr(self, name), getattr(other, name))
            for name in ("all", "kept", "expert", "own")
        }
        return replace(self, **summed, response_tokens=self.response_tokens + other.response_tokens)


def flat_logprobs(logprobs: Float[Array, "..."], batch: Batch) -> Float[Array, " tokens"]:
    """Returns log-probs as [tokens], in float32 at least.

    Raises:
        ValueError: they are not one for each token of the batch.
    """
    logprobs = jnp.asarray(logprobs).reshape(-1)
    if logprobs.shape != batch.mask.shape:
        raise ValueError(
            f"logprobs has {logprobs.size} entries, but the batch has {batch.mask.size} tokens"
        )
    return logprobs.astype(jnp.promote_types(logprobs.dtype, jnp.float32))


def live_tokens(batch: Batch) -> Bool[Array, " tokens"]:
    """Returns [tokens] True where the mask is True and the response is not padding."""
    return jnp.asarray(batch.mask, bool) & (jnp.asarray(batch.group_ids) >= 0)[batch.response_ids]


def padded_batch(
    *,
    advantages: Float[Array, " responses"] | Float[Array, "responses turns"],
    mask: Bool[Array, "responses time"],
    groups: Int[Array, " responses"],
    old_logprobs: Float[Array, "responses time"] | None = None,
    rewards: Float[Array, " responses"] | None = None,
    dropped: Bool[Array, " responses"] | None = None,
    ref_logprobs: Float[Array, "responses time"] | None = None,
    prox_logprobs: Float[Array, "responses time"] | None = None,
    expert: Bool[Array, " responses"] | None = None,
    staleness: Float[Array, " responses"] | None = None,
    turns: Int[Array, "responses time"] | None = None,
) -> Batch:
    """Makes a `Batch` from [responses, time] arrays, one row a response.

    `policy_loss` then takes log-probs of the same shape.

    Args:
        advantages: [responses], or [responses, turns].
        rewards, dropped, expert, staleness: [responses] fields of the `Batch`. A response whose
            reward is NaN has no verdict: it is padding, as `shape_data` leaves it out.
        groups: [responses] its group_ids.
        mask, old_logprobs, ref_logprobs, prox_logprobs, turns: [responses, time] fields of it; the
            mask may hold 0 and 1.

    Returns:
        The flat `Batch`.

    Raises:
        ValueError: if groups or advantages are missing, shapes disagree, or values that are not
            traced make no sense (NaN advantages, negative staleness).
    """
    groups = group_ids_array(groups)
    tokens = {
        "old_logprobs": old_logprobs,
        "ref_logprobs": ref_logprobs,
        "prox_logprobs": prox_logprobs,
        "turns": turns,
    }
    _check_padded(advantages, mask, tokens)
    rows, time = np.shape(mask)
    batch = Batch(
        mask=jnp.asarray(mask, bool).reshape(-1),
        response_ids=jnp.repeat(jnp.arange(rows, dtype=jnp.int32), time),
        advantages=jnp.asarray(advantages),
        group_ids=groups,
        rewards=_array(rewards),
        dropped=_array(dropped, bool),
        expert=_array(expert, bool),
        staleness=_array(staleness),
        **{name: _array(x).reshape(-1) for name, x in tokens.items() if x is not None},
    )
    check_shapes(batch)
    if batch.rewards is not None:
        batch = replace(batch, group_ids=judged_groups(batch.rewards, groups))
    known = {"advantages": advantages, "rewards": rewards, "staleness": staleness}
    _check_values(batch.group_ids, mask, **known)
    return batch


def _check_padded(advantages, mask, tokens: Mapping) -> None:
    if advantages is None:
        raise ValueError(
            "padded_batch: expected advantages of shape [responses], got None. Compute them with"
            " objectives.advantages."
        )
    if np.ndim(mask) != 2:
        raise ValueError(f"mask must be [responses, time], not {np.shape(mask)}")
    for name, values in tokens.items():
        if values is not None and np.shape(values) != np.shape(mask):
            raise ValueError(
                f"{name} must be [responses, time] = {np.shape(mask)} like mask, not"
                f" {np.shape(values)}"
            )


def _array(values, dtype=None) -> Array | None:
    return None if values is None else jnp.asarray(values, dtype)


def _check_values(groups, mask, **responses) -> None:
    """Checks the arrays that are not traced: [responses] ones for finite values."""
    known = concrete(groups)
    for name, values in responses.items():
        if values is not None:
            check_finite(name, values, None if known is None else known >= 0)
    if (ages := concrete(responses["staleness"])) is not None and (ages < 0).any():
        raise ValueError(
            "staleness must be at least 0 (policy versions behind the learner), but the least is"
            f" {ages.min()}"
        )
    if (marks := concrete(mask)) is not None and not np.isin(marks, (0, 1)).all():
        raise ValueError(
            f"mask must hold 0 and 1 (or False and True), not {marks[~np.isin(marks, (0, 1))][0]}"
        )


def check_shapes(batch: Batch) -> None:
    """Checks that the token arrays of a batch agree, and the response arrays.

    Raises:
        ValueError: naming the array whose shape differs.
    """
    for field in fields(batch):
        values = getattr(batch, field.name)
        kind, like = (
            ("tokens", "mask") if field.name in TOKEN_FIELDS else ("responses", "group_ids")
        )
        expected = np.shape(getattr(batch, like))
        if len(expected) != 1:
            raise ValueError(f"{like} must be [{kind}], not {expected}")
        if field.name == "advantages" and batch.turns is not None and np.ndim(values) == 2:
            kind, expected = "responses, turns", (*expected, np.shape(values)[1])
        if values is not None and np.shape(values) != expected:
            raise ValueError(
                f"{field.name} must be [{kind}] = {expected} like {like}, not {np.shape(values)}"
            )
