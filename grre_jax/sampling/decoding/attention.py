"""Attention of one new token per decode slot to its prompt, which other slots share, and to the
slot's own tokens, in one softmax.

The prompt's keys are read once for all slots that continue it: their queries are gathered into one
product per prompt. The two parts are computed separately, each with its own maximum, and joined by
their sums (as blocks of keys are in arXiv 2205.14135).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grre_jax.models.blocked_attention import NEVER, capped
from grre_jax.models.config import ModelConfig
from grre_jax.sampling.decoding.cache import Cache
from grre_jax.sampling.decoding.shards import taken


class SlotAddresses(NamedTuple):
    """Decode slots by completion and back, per shard; a completion is numbered prompt slot x
    samples + sample.

    Attributes:
        slot_of_completion: [shards, completions] decode slot of each completion, any if it has
            none; None if the numbers are equal.
        completion_of_slot: [shards, slots] completion of each decode slot, any if it is idle; None
            if the numbers are equal.
    """

    slot_of_completion: Int[Array, "shards completions"] | None
    completion_of_slot: Int[Array, "shards slots"] | None

    def by_prompt(self, x: Array, prompts: int) -> Array:
        """Reorders [slots, ...] as [prompts, samples, ...]."""
        return taken(x, self.slot_of_completion).reshape(prompts, -1, *x.shape[1:])

    def by_slot(self, x: Array) -> Array:
        """Reorders [prompts, samples, ...] as [slots, ...]."""
        return taken(x.reshape(-1, *x.shape[2:]), self.completion_of_slot)


class VisibleTokens(NamedTuple):
    """Tokens of both caches that are visible in a layer without a window.

    Attributes:
        prefix: [prompts, tokens] True for tokens of the prompt, not padding.
        own_age: [slots or 1, columns] distance of each column's token from the newest, in tokens;
            0 for the newest. Meaningless where `own` is False.
        own: [slots, columns] True for columns of the slot's completion.
        positions: [slots] position of the new token.
    """

    prefix: Bool[Array, "prompts tokens"]
    own_age: Int[Array, "slots_or_1 columns"]
    own: Bool[Array, "slots columns"]
    positions: Int[Array, " slots"]


def attend(
    q: Float[Array, "slots kv group dim"],
    prefix: Cache | None,
    own: Cache,
    visible: VisibleTokens,
    addresses: SlotAddresses,
    config: ModelConfig,
    slides: bool,
) -> Float[Array, "slots kv group dim"]:
    """Computes the attention of each slot's new token to its prompt and its own tokens, itself
    included.

    Args:
        q: [slots, kv heads, queries per kv head, width] queries.
        prefix: cache of the prompts; None if `own` begins with them.
        own: cache of the decode slots, with the new token.
        visible: tokens that are visible without a window.
        addresses: prompt of each slot.
        config: of the model.
        slides: True if the layer has the model's window.
    """
    own_visible = visible.own
    if slides:
        own_visible = own_visible & (visible.own_age < config.sliding_window)
    mine = _part(q, own, own_visible[:, None, None], config)
    if prefix is None:
        return _divided(mine[2], mine[1]).astype(q.dtype)
    prompts = prefix.values.shape[0]
    _, kv, group, dim = q.shape
    grouped = addresses.by_prompt(q, prompts)  # [prompts, samples, kv, group, dim]
    samples = grouped.shape[1]
    grouped = jnp.moveaxis(grouped, 2, 1).reshape(prompts, kv, samples * group, dim)
    in_prefix = visible.prefix[:, None, None]
    if slides:
        positions = addresses.by_prompt(visible.positions, prompts)
        ahead = positions[..., None] - jnp.arange(prefix.tokens)
        inside = jnp.repeat(ahead < config.sliding_window, group, axis=1)
        in_prefix = in_prefix & inside[:, None]
    top, total, out = _part(grouped, prefix, in_prefix, config)

    def back(x):
        return addresses.by_slot(
            jnp.moveaxis(x.reshape(prompts, kv, samples, group, *x.shape[3:]), 2, 1)
        )

    return _joined((back(top), back(total), back(out)), mine).astype(q.dtype)


Part = tuple[Float[Array, "slots kv m"], Float[Array, "slots kv m"], Float[Array, "slots kv m dim"]]


def _part(
    q: Array,
    cache: Cache,
    visible: Array,
    config: ModelConfig,
) -> Part:
    """Returns the largest score, the sum of exponentials against it, and the sum of values weighted
    by them, of queries [slots, kv, m, dim]. A query without visible tokens has sum 0.
    """
    scores = capped(cache.scores(q) * config.attention_scale, config.attention_softcap)
    scores = jnp.where(visible, scores, NEVER)
    top = scores.max(-1)
    # Masked again: without a visible token `top` is NEVER too, and exp(0) is 1.
    weights = jnp.where(visible, jnp.exp(scores - top[..., None]), 0.0)
    return top, weights.sum(-1), cache.weighted(weights, q.dtype)


def _joined(a: Part, b: Part) -> Array:
    # Both sums against the larger of the two maxima, so that no factor exceeds 1.
    top = jnp.maximum(a[0], b[0])
    scale_a = jnp.exp(a[0] - top)
    scale_b = jnp.exp(b[0] - top)
    total = scale_a * a[1] + scale_b * b[1]
    return _divided(scale_a[..., None] * a[2] + scale_b[..., None] * b[2], total)


def _divided(out: Array, total: Array) -> Array:
    """Divides; returns zeros for a query without visible tokens. An idle slot may have one, and
    what it leaves in its cache is multiplied by 0 once the slot is refilled, so it must be finite.
    """
    return out / jnp.where(total > 0, total, 1.0)[..., None]
