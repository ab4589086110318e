"""The one batch layout of every loss: flat tokens -> response ids -> group ids.

Everything group-relative is a reduction over the responses of a group, read back at each of them.
Group ids are arbitrary integers: they need not be contiguous, sorted or adjacent, groups may have
different sizes, and a negative id (-1 by convention) marks a padding response without a group.

Tokens of all responses lie in one flat axis, each with the index of its response; responses carry
their advantage and the id of their group. Padded, packed and sharded batches are then the same
thing. Only the mask `veto` depends on the order of the tokens, which for each response must be that
of sampling, as in `padded_batch` and in the packed rows of training. The mask and the group ids
alone decide which tokens count, never a comparison of tokens with a pad id.

Two phases make aggregation exact. `batch_stats` counts over the whole global batch; the
loss of a micro-batch (a slice of the token arrays, the response arrays whole, all tokens of a
response in one micro-batch) takes these counts, and the losses and gradients of the micro-batches
add up to the batch's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

Tokens = Float[Array, " tokens"]
Responses = Float[Array, " responses"]
Turns = Float[Array, "responses turns"]
Gate = Bool[Array, " tokens"]  # on tokens
Flags = Bool[Array, " responses"]
Ids = Int[Array, " responses"]  # of groups
Rows = Float[Array, "responses time"]
Scalar = Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Groups:
    """The partition of the responses of a batch into groups.

    Attributes:
        segments: [responses] the group of each response, numbered densely from 0 (padding responses
            have a number of their own).
        live: [responses] True where the response counts; False on padding.
    """

    segments: Ids
    live: Flags

    def sum(self, values: Num[Array, " responses"]) -> Num[Array, " responses"]:
        """Sums `values` over the live responses of each group, read at every response."""
        # As many segments as responses: under jit the number of groups is unknown.
        total = jax.ops.segment_sum(
            jnp.where(self.live, values, 0), self.segments, self.segments.size
        )
        return total[self.segments]

    def mean(self, values: Num[Array, " responses"]) -> Responses:
        """Averages `values` over the live responses of each group, read at every response."""
        return self.sum(values) / jnp.maximum(self.sizes, 1).astype(values.dtype)

    def max(self, values: Num[Array, " responses"]) -> Responses:
        """Takes the largest of `values` over the live responses of each group, read at every
        response; -inf without any.
        """
        largest = jax.ops.segment_max(
            jnp.where(self.live, values, -jnp.inf), self.segments, self.segments.size
        )
        return largest[self.segments]

    def min(self, values: Num[Array, " responses"]) -> Responses:
        """Takes the smallest of `values` over the live responses of each group, read at every
        response; inf without any.
        """
        return -self.max(-values)

    @property
    def sizes(self) -> Ids:
        """[responses] live responses of each response's group."""
        return self.sum(jnp.ones_like(self.segments))

    @property
    def count(self) -> Int[Array, ""]:
        """The number of groups with a live response."""
        present = jax.ops.segment_max(
            self.live.astype(jnp.int32), self.segments, self.segments.size
        )
        return jnp.sum(present > 0)  # an empty segment's maximum is the smallest integer

    def alike(self, values: Num[Array, " responses"]) -> Flags:
        """Returns True at the responses whose group has one value throughout, groups of one
        included.

        Decided by max = min: `values - mean(values) == 0` is false in floating point for most
        values.
        """
        return self.max(values) == self.min(values)


def concrete(values) -> np.ndarray | None:
    """Returns the values as a NumPy array, or None if they are traced."""
    return None if isinstance(values, jax.core.Tracer) else np.asarray(values)


def group_ids_array(groups: Ids) -> Ids:
    """Converts group ids to the integers of a device: ids beyond 32 bits are numbered anew, which
    gives the same partition.

    Args:
        groups: [responses] integers, negative on padding.
    """
    ids = concrete(groups)
    # Ids such as hashes wrap around in the 32-bit integers of a device: two groups could become
    # one, or a group padding.
    if ids is not None and (ids != ids.astype(np.int32)).any():
        _, places = np.unique(ids, return_inverse=True)
        groups = np.where(ids < 0, -1, places.reshape(ids.shape)).astype(np.int32)
    return jnp.asarray(groups)


def judged_groups(rewards: Responses, group_ids: Ids) -> Ids:
    """Returns group ids in which responses without a verdict are padding.

    Args:
        rewards: [responses] NaN for a response without a verdict.
        group_ids: [responses] negative on padding.

    Returns:
        [responses] -1 for those, and for the rest of a group that has fewer than two verdicts
        because of them, since it then has no signal.
    """
    absent = jnp.isnan(rewards) & (group_ids >= 0)
    groups = segment_groups(group_ids)
    lost = groups.sum(absent.astype(jnp.int32))
    # A group that was sampled as one response lost nothing, and stays a group of one.
    return jnp.where(absent | ((lost > 0) & (groups.sizes - lost < 2)), -1, group_ids)


def check_finite(
    name: str,
    values,
    groups: Ids | None = None,
    *,
    nan: bool = False,
    least: float = -np.inf,
) -> None:
    """Checks that values that are not traced are finite real numbers of at least `least`, or NaN if
    `nan`; where `groups` is negative they may be anything.

    Raises:
        ValueError: naming the array, the index and the value.
    """
    array = concrete(values)
    if array is None:
        return
    numbers = array.astype(np.float64)
    bad = ~(np.isfinite(numbers) | (nan & np.isnan(numbers))) | (numbers < least)
    ids = None if groups is None else concrete(groups)
    if ids is not None and ids.shape == bad.shape:
        bad &= ids >= 0
    if bad.any():
        index = np.flatnonzero(bad)[0]
        value = array.reshape(-1)[index]
        raise ValueError(f"{name}[{index}]: expected a finite number >= {least}, got {value}")


def segment_groups(group_ids: Ids) -> Groups:
    """Partitions responses by their group id.

    Args:
        group_ids: [responses] arbitrary integers, equal for the responses of one prompt; negative
            for padding.

    Returns:
        The `Groups`; jit-able, the number of groups need not be known.
    """
    group_ids = jnp.asarray(group_ids)
    # A fixed `size`, without which the number of ids would be a shape that jit cannot know.
    _, segments = jnp.unique(group_ids, size=group_ids.size, return_inverse=True)
    return Groups(segments=segments.reshape(-1).astype(jnp.int32), live=group_ids >= 0)


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

    mask: Gate
    response_ids: Int[Array, " tokens"]
    advantages: Responses | Turns
    group_ids: Ids
    old_logprobs: Tokens | None = None
    rewards: Responses | None = None
    dropped: Flags | None = None
    ref_logprobs: Tokens | None = None
    prox_logprobs: Tokens | None = None
    expert: Flags | None = None
    staleness: Responses | None = None
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

    tokens: Scalar
    responses: Scalar
    group_sizes: Responses
    groups: Scalar


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
    response_tokens: Responses
    gathered: Mapping[str, Array]

    @property
    def tokens(self) -> Scalar:
        """[] tokens that count."""
        return self.all.tokens


def flat_logprobs(logprobs: Float[Array, "..."], batch: Batch) -> Tokens:
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


def live_tokens(batch: Batch) -> Gate:
    """Returns [tokens] True where the mask is True and the response is not padding."""
    return jnp.asarray(batch.mask, bool) & (jnp.asarray(batch.group_ids) >= 0)[batch.response_ids]


def count_batch(batch: Batch) -> BatchStats:
    """Counts the whole batch, in the default float dtype (tokens are summed as integers first)."""
    groups = segment_groups(batch.group_ids)
    # Integers until all sums are taken: float32 counts exactly only up to 2^24.
    response_tokens = jax.ops.segment_sum(
        live_tokens(batch).astype(jnp.int32), batch.response_ids, batch.group_ids.size
    )

    def counts(chosen: Flags) -> Counts:
        chosen = groups.live & chosen
        totals = (
            jnp.sum(jnp.where(chosen, response_tokens, 0)),
            jnp.sum(chosen),
            jnp.where(groups.live, groups.sum(chosen.astype(jnp.int32)), 0),
            Groups(groups.segments, chosen).count,
        )
        return Counts(*(total.astype(jnp.result_type(float)) for total in totals))

    kept = groups.live if batch.dropped is None else ~jnp.asarray(batch.dropped, bool)
    expert = None if batch.expert is None else jnp.asarray(batch.expert, bool)
    return BatchStats(
        all=counts(groups.live),
        kept=counts(kept),
        expert=None if expert is None else counts(expert),
        own=None if expert is None else counts(~expert),
        response_tokens=response_tokens.astype(jnp.result_type(float)),
        gathered={},
    )


def padded_batch(
    *,
    advantages: Responses | Turns,
    mask: Bool[Array, "responses time"],
    groups: Ids,
    old_logprobs: Rows | None = None,
    rewards: Responses | None = None,
    dropped: Flags | None = None,
    ref_logprobs: Rows | None = None,
    prox_logprobs: Rows | None = None,
    expert: Flags | None = None,
    staleness: Responses | None = None,
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

    Examples:
        Two responses to one prompt, of three tokens and of two:

        >>> import numpy as np
        >>> from grre_jax import objectives
        >>> batch = objectives.padded_batch(
        ...     advantages=np.array([0.5, -0.5]),
        ...     mask=np.array([[1, 1, 1], [1, 1, 0]]),
        ...     groups=np.array([0, 0]),
        ...     old_logprobs=np.full((2, 3), -1.0),
        ... )
        >>> batch.mask.shape, int(batch.mask.sum()), batch.response_ids.tolist()
        ((6,), 5, [0, 0, 0, 1, 1, 1])
    """
    shape = np.shape(mask)
    if len(shape) != 2:
        raise ValueError(f"mask must be [responses, time], not {shape}")
    groups = group_ids_array(groups)
    check_shape("groups", groups, "responses", shape[:1])
    by_turn = turns is not None and np.ndim(advantages) == 2
    of_turns = np.shape(advantages)[1:] if by_turn else ()
    check_shape("advantages", advantages, "responses", (*shape[:1], *of_turns))
    optional = {
        "old_logprobs": old_logprobs,
        "rewards": rewards,
        "dropped": dropped,
        "ref_logprobs": ref_logprobs,
        "prox_logprobs": prox_logprobs,
        "expert": expert,
        "staleness": staleness,
        "turns": turns,
    }
    arrays = {}
    for name, values in optional.items():
        if values is None:
            continue
        if name in TOKEN_FIELDS:
            check_shape(name, values, "responses, time", shape)
        else:
            check_shape(name, values, "responses", shape[:1])
        dtype = bool if name in ("dropped", "expert") else None
        arrays[name] = jnp.asarray(values, dtype).reshape(-1)
    batch = Batch(
        mask=jnp.asarray(mask, bool).reshape(-1),
        response_ids=jnp.repeat(jnp.arange(shape[0], dtype=jnp.int32), shape[1]),
        advantages=jnp.asarray(advantages),
        # As in `shape_data`: a response without a verdict has no penalty either.
        group_ids=groups if rewards is None else judged_groups(jnp.asarray(rewards), groups),
        **arrays,
    )
    check_finite("advantages", advantages, batch.group_ids)
    if rewards is not None:
        check_finite("rewards", rewards, batch.group_ids)
    if staleness is not None:
        check_finite("staleness", staleness, batch.group_ids, least=0)
    # A mask of fractions would count every token above 0 in full, since it is cast to bool.
    marks = concrete(mask)
    if marks is not None and not np.isin(marks, (0, 1)).all():
        raise ValueError(f"mask must hold 0 and 1, not {marks[~np.isin(marks, (0, 1))][0]}")
    return batch


def check_shape(name: str, values, axes: str, expected: tuple[int, ...]) -> None:
    """Checks the shape of an array.

    Raises:
        ValueError: naming the array and its axes.
    """
    if np.shape(values) != expected:
        raise ValueError(f"{name} must be [{axes}] = {expected}, not {np.shape(values)}")
