"""Exact attention in blocks of queries, whose memory is linear in the length of a row.

A block of queries attends to all keys before its end in one product and one softmax. The backward
pass keeps the output and each query's log-sum-exp (arXiv 2205.14135) and recomputes the
probabilities. The blocks of short rows are unrolled, so that causality halves the work; long rows
are cut into a few spans of blocks, scanned within a span, each against the keys up to its end. CPUs
use it, and every backend whose own kernel does not support a mask.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Integer

from grre_jax.models.array_types import Ids, Keys, Queries
from grre_jax.models.products import transposed

# Queries per block. Small blocks skip more of what causality hides, large ones make larger
# products.
SHORT_BLOCK = 64
LONG_BLOCK = 256
# Long rows: the keys of a block end at most 1/SPANS of the row beyond it.
SPANS = 8
ATTENDED = "attended"  # the checkpoint_name of the output of attention
# Below every score; finite, so that a query without visible keys gives zeros and not NaN.
NEVER = -1e30


class Visibility(NamedTuple):
    """Masks of packed rows, as [rows, length] arrays.

    A token attends to the earlier columns of its own segment and of its prefix segment. A prompt's
    tokens carry their own segment as prefix; its completions carry the prompt's, so that the
    completions of a group share one copy of the prompt and do not see each other.

    Attributes:
        segment_ids: index of each token's sequence within its row.
        prefix_ids: the segment that a token's segment continues, its own if none; None if no row
            has shared prefixes.
        positions: index of each token in its sequence, which a sliding window counts.
        columns: index of each token in its row.
    """

    segment_ids: Ids
    prefix_ids: Ids | None
    positions: Ids
    columns: Ids

    @classmethod
    def of(
        cls,
        segment_ids: Ids,
        positions: Ids,
        prefix_ids: Ids | None = None,
    ) -> Visibility:
        """Returns the visibility of whole rows, whose columns are 0, 1, 2, ..."""
        columns = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)
        columns = jnp.broadcast_to(columns, segment_ids.shape)
        return cls(segment_ids, prefix_ids, positions, columns)

    def part(self, start: Any, size: int) -> Visibility:
        """Returns `size` columns from `start`, which may be traced."""
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size, axis=1), self)

    def mask(
        self, queries: Visibility, window: Integer[Array, ""] | int | None = None
    ) -> Bool[Array, "rows q k"]:
        """Computes which of these keys each query attends to.

        Args:
            queries: of the queries.
            window: a key is hidden if it is `window` or more positions before the query.
        """
        visible = queries.segment_ids[:, :, None] == self.segment_ids[:, None, :]
        if queries.prefix_ids is not None:
            visible |= queries.prefix_ids[:, :, None] == self.segment_ids[:, None, :]
        visible &= queries.columns[:, :, None] >= self.columns[:, None, :]
        if window is not None:
            visible &= queries.positions[:, :, None] - self.positions[:, None, :] < window
        return visible


class _Span(NamedTuple):
    """`blocks` blocks of `size` queries from column `start`, whose keys are columns 0 to `keys`."""

    start: int
    blocks: int
    size: int
    keys: int


def _spans(queries: int, keys: int, block: int, whole: bool) -> list[_Span]:
    """Cuts the queries into spans; of one block each up to 2 x SPANS blocks."""
    size = min(block, queries)
    count = -(-queries // size)
    each = 1 if count <= 2 * SPANS else -(-count // SPANS)
    spans = []
    for first in range(0, count, each):
        blocks = min(each, count - first)
        # Where queries are a part of the row, or follow stored keys, their columns are known on the
        # device only.
        seen = min((first + blocks) * size, keys) if whole else keys
        spans.append(_Span(first * size, blocks, size, seen))
    return spans


def _scores(
    q: Array,
    k: Array,
    mask: Array,
    scale: float,
    softcap: float,
) -> Array:
    """Computes masked float32 scores, [rows, kv, m, keys], of queries [rows, kv, m, dim] and keys
    [rows, kv, keys, dim], m of a block of all heads of a group.
    """
    scores = jnp.einsum("bnmd,bnkd->bnmk", q, k, preferred_element_type=jnp.float32) * scale
    return jnp.where(mask, capped(scores, softcap), NEVER)


def capped(scores: Float[Array, "*any"], softcap: float) -> Float[Array, "*any"]:
    """Returns softcap * tanh(scores / softcap); the scores if 0."""
    return softcap * jnp.tanh(scores / softcap) if softcap else scores


def uncapped_gradient(d: Array, scores: Array, softcap: float) -> Array:
    """Returns the gradient of the scores before `capped`, from that of the result.

    Args:
        d: gradient of the capped scores.
        scores: the capped scores; NEVER where they are masked.
        softcap: as of `capped`.
    """
    # tanh' = 1 - tanh^2, from the result. The square of NEVER would be inf, and inf * 0 is NaN.
    return d * (1 - jnp.square(jnp.maximum(scores, -softcap) / softcap)) if softcap else d


def blocked_attention(
    q: Queries,
    k: Keys,
    v: Keys,
    seen_by: Visibility,
    seen: Visibility,
    *,
    whole: bool = True,
    window: Integer[Array, ""] | int | None = None,
    scale: float,
    softcap: float = 0.0,
) -> Queries:
    """Computes softmax attention with grouped queries; scores and softmax are in float32.

    Args:
        q: [rows, queries, kv, group, dim] queries, by key-value group.
        k: [rows, keys, kv, dim] keys.
        v: [rows, keys, kv, dim] values.
        seen_by: of the queries.
        seen: of the keys.
        whole: the queries are the keys' own tokens, so that a block needs no key beyond its end.
        window: sliding window in positions, an int or traced; None for none.
        scale: factor of the scores.
        softcap: scaled scores x become softcap * tanh(x / softcap); 0 for none.

    Returns:
        [rows, queries, kv, group, dim], in the dtype of `q`.
    """
    queries = q.shape[1]
    block = SHORT_BLOCK if queries <= 2 * SPANS * SHORT_BLOCK else LONG_BLOCK
    keys = k.shape[1]
    window = None if window is None else jnp.asarray(window, jnp.int32)
    spans = tuple(_spans(queries, keys, block, whole))
    extra = spans[-1].start + spans[-1].blocks * spans[-1].size - queries
    if extra:
        q = jnp.pad(q, [(0, 0), (0, extra)] + [(0, 0)] * (q.ndim - 2))
        # A segment that no key has: the padding of the last block sees nothing.
        pad = partial(jnp.pad, pad_width=[(0, 0), (0, extra)], constant_values=-1)
        seen_by = jax.tree.map(pad, seen_by)
    return _attend(q, k, v, seen_by, seen, window, spans, scale, softcap)[:, :queries]


def _heads_first(x: Array) -> Array:
    """Returns [rows, length, kv, ...] as [rows, kv, length, ...]."""
    return jnp.moveaxis(x, 1, 2)


def _block_queries(x: Queries, start: Any, size: int) -> Array:
    """Returns the queries of a block, [rows, kv, group * size, dim]: one product per key-value head
    instead of one per head.
    """
    x = jax.lax.dynamic_slice_in_dim(x, start, size, axis=1)
    rows, _, kv, group, dim = x.shape
    # Group by group, the block's queries in each: `_mask` is tiled in this order.
    return x.transpose(0, 2, 3, 1, 4).reshape(rows, kv, group * size, dim)


def _ungroup(x: Array, group: int) -> Array:
    """Returns what `_block_queries` laid out as [rows, size, kv, group, dim]."""
    rows, kv, m, dim = x.shape
    return x.reshape(rows, kv, group, m // group, dim).transpose(0, 3, 1, 2, 4)


def _mask(
    seen_by: Visibility, seen: Visibility, start: Any, span: _Span, window: Any, group: int
) -> Array:
    mask = seen.part(0, span.keys).mask(seen_by.part(start, span.size), window)
    return jnp.tile(mask, (1, group, 1))[:, None]


def _starts(span: _Span) -> Array:
    return span.start + span.size * jnp.arange(span.blocks, dtype=jnp.int32)


def _forward(q, k, v, seen_by, seen, window, spans, scale, softcap):
    group = q.shape[3]
    keys = _heads_first(k)
    values = _heads_first(v)

    def attend(start, span):
        mask = _mask(seen_by, seen, start, span, window, group)
        queries = _block_queries(q, start, span.size)
        scores = _scores(queries, keys[:, :, : span.keys], mask, scale, softcap)
        top = scores.max(-1, keepdims=True)
        # Masked again: without a visible key `top` is NEVER too, and exp(0) is 1.
        weights = jnp.where(mask, jnp.exp(scores - top), 0.0)
        # Padding sees no key: its output is 0 / 1e-30 = 0.
        total = jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)
        weights = weights.astype(v.dtype)
        span_values = values[:, :, : span.keys]
        out = jnp.einsum(
            "bnmk,bnkd->bnmd", weights, span_values, preferred_element_type=jnp.float32
        )
        return _ungroup((out / total).astype(q.dtype), group), (top + jnp.log(total))[..., 0]

    outs = []
    sums = []
    for span in spans:

        def each(_, start, span=span):
            return None, attend(start, span)

        _, (out, total) = jax.lax.scan(each, None, _starts(span), unroll=span.blocks == 1)
        outs.append(jnp.moveaxis(out, 0, 1).reshape(q.shape[0], -1, *q.shape[2:]))
        sums.append(total)
    # The sums too, or a backward pass that keeps only the output computes attention again.
    out, *sums = (checkpoint_name(x, ATTENDED) for x in (jnp.concatenate(outs, axis=1), *sums))
    return out, (q, k, v, seen_by, seen, window, out, tuple(sums))


def _backward(spans, scale, softcap, residuals, d_out):
    q, k, v, seen_by, seen, window, out, sums = residuals
    group = q.shape[3]
    keys = _heads_first(k)
    values = _heads_first(v)

    def gradients(start, total, span):
        mask = _mask(seen_by, seen, start, span, window, group)
        block_q, block_d, block_out = (_block_queries(x, start, span.size) for x in (q, d_out, out))
        block_k = keys[:, :, : span.keys]
        block_v = values[:, :, : span.keys]
        # Equals the sum over keys of weights * d_weights, which the softmax's gradient subtracts
        # (arXiv 2205.14135).
        delta = block_out.astype(jnp.float32) * block_d.astype(jnp.float32)
        delta = delta.sum(-1, keepdims=True)
        scores = _scores(block_q, block_k, mask, scale, softcap)
        weights = jnp.where(mask, jnp.exp(scores - total[..., None]), 0.0)
        d_weights = jnp.einsum(
            "bnmd,bnkd->bnmk", block_d, block_v, preferred_element_type=jnp.float32
        )
        d_scores = uncapped_gradient(weights * (d_weights - delta), scores, softcap)
        d_scores = (d_scores * scale).astype(q.dtype)
        d_q = jnp.einsum("bnmk,bnkd->bnmd", d_scores, block_k)
        d_k = jnp.einsum("bnkm,bnmd->bnkd", transposed(d_scores), block_q)
        d_v = jnp.einsum("bnkm,bnmd->bnkd", transposed(weights.astype(q.dtype)), block_d)
        return _ungroup(d_q, group), d_k, d_v

    d_queries = []
    # In float32, as every span adds to them.
    d_keys, d_values = (jnp.zeros(x.shape, jnp.float32) for x in (keys, values))
    for span, total in zip(spans, sums, strict=True):

        def add(carry, at, span=span):
            d_q, d_k, d_v = gradients(*at, span)
            pairs = zip(carry, (d_k, d_v), strict=True)
            return tuple(total.at[:, :, : span.keys].add(x) for total, x in pairs), d_q

        (d_keys, d_values), d_q = jax.lax.scan(
            add, (d_keys, d_values), (_starts(span), total), unroll=span.blocks == 1
        )
        d_queries.append(jnp.moveaxis(d_q, 0, 1).reshape(q.shape[0], -1, *q.shape[2:]))
    d_q = jnp.concatenate(d_queries, axis=1)
    d_k = _heads_first(d_keys).astype(k.dtype)
    d_v = _heads_first(d_values).astype(v.dtype)
    return d_q, d_k, d_v, None, None, None


_attend = jax.custom_vjp(lambda *args: _forward(*args)[0], nondiff_argnums=(6, 7, 8))
_attend.defvjp(_forward, _backward)
