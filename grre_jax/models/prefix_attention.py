"""Attention of packed rows with shared prompts, as a Pallas kernel for TPU.

The kernels compute flash attention (arXiv 2205.14135) in blocks: a block of queries of all heads of
a key-value group visits the blocks of keys that any of its queries may see, and only those. Which
blocks these are is computed from the rows' ids and prefetched as scalars, so a completion visits
its prompt and itself and not the completions between them. The rule of `Visibility` is computed
within a block, hence no mask is stored; sliding windows count positions.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Integer

from grre_jax.models.array_types import Keys, Queries
from grre_jax.models.blocked_attention import (
    ATTENDED,
    NEVER,
    Visibility,
    capped,
    uncapped_gradient,
)

LANES = 128
KEYS = 512  # the largest block of keys
SCORES = 512 * 1024  # the most scores of a block, of all heads of a group
# The maximum of no scores: above NEVER, so that a hidden key has weight zero, and below any score.
LOWEST = -1e20


def prefix_attention(
    q: Queries,
    k: Keys,
    v: Keys,
    seen_by: Visibility,
    seen: Visibility,
    *,
    window: Integer[Array, ""] | int | None = None,
    scale: float,
    softcap: float = 0.0,
) -> Queries:
    """Computes softmax attention with grouped queries; scores and softmax are in float32.

    Args:
        q: [rows, queries, kv, group, dim] queries, by key-value group; a multiple of the lanes.
        k: [rows, keys, kv, dim] keys; a multiple of the lanes.
        v: [rows, keys, kv, dim] values.
        seen_by: of the queries.
        seen: of the keys.
        window: sliding window in positions, an int or traced; None for none.
        scale: factor of the scores.
        softcap: scaled scores x become softcap * tanh(x / softcap); 0 for none.

    Returns:
        [rows, queries, kv, group, dim], in the dtype of `q`.
    """
    window = jnp.iinfo(jnp.int32).max if window is None else window
    prefixes = seen_by.segment_ids if seen_by.prefix_ids is None else seen_by.prefix_ids
    by = jnp.stack([seen_by.segment_ids, prefixes, seen_by.columns, seen_by.positions], axis=-1)
    of = jnp.stack([seen.segment_ids, seen.columns, seen.positions], axis=1)
    # Scaled here once, and not the scores of every block; JAX derives the gradient of this.
    queries = (q * scale).astype(q.dtype).transpose(0, 2, 3, 1, 4)
    keys, values = (x.transpose(0, 2, 1, 3) for x in (k, v))
    limit = jnp.asarray(window, jnp.int32).reshape(1)
    out = _attend(queries, keys, values, by, of, limit, softcap)
    return out.transpose(0, 3, 1, 2, 4)


def _block(length: int, most: int) -> int:
    """Returns the largest multiple of the lanes up to `most` that divides the row."""
    return max(b for b in range(LANES, max(most, LANES) + 1, LANES) if length % b == 0)


def _sizes(q: Array, k: Array) -> tuple[int, int]:
    keys = _block(k.shape[2], KEYS)
    return _block(q.shape[3], min(KEYS, SCORES // (keys * q.shape[2]))), keys


def _visible(
    by: Array,
    of: Array,
    window: Array,
    sizes: tuple[int, int],
) -> Array:
    """Computes which blocks of keys may hold one that a query of each block attends to, [rows, i,
    j], by the least and largest ids of the blocks.

    Args:
        by: [rows, queries, 4] segment, prefix, column and position of each query.
        of: [rows, 3, keys] segment, column and position of each key.
        window: [1].
        sizes: of a block of queries and of keys.
    """

    def bounds(x: Array, size: int) -> tuple[Array, Array]:
        blocks = x.reshape(x.shape[0], -1, size)
        return blocks.min(-1), blocks.max(-1)

    segment, prefix, column, position = (bounds(by[..., n], sizes[0]) for n in range(4))
    key_segment, key_column, key_position = (bounds(of[:, n], sizes[1]) for n in range(3))

    def meet(a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
        return (a[0][:, :, None] <= b[1][:, None]) & (a[1][:, :, None] >= b[0][:, None])

    # Bounds may let a block be visited in vain, but never leave one out.
    near = position[0][:, :, None] - key_position[1][:, None] < window[0]
    near &= column[1][:, :, None] >= key_column[0][:, None]
    return (meet(segment, key_segment) | meet(prefix, key_segment)) & near


def _visits(visible: Array) -> tuple[Array, Array]:
    """Returns the visible j of each i first, in order, the last one repeated; and their number."""
    count = visible.sum(-1, dtype=jnp.int32)
    order = jnp.argsort(~visible, axis=-1, stable=True).astype(jnp.int32)
    # Behind the last block its index is repeated: Pallas loads no block again whose index stays.
    at = jnp.minimum(jnp.arange(visible.shape[-1]), jnp.maximum(count - 1, 0)[..., None])
    return jnp.take_along_axis(order, at, axis=-1).reshape(-1), count.reshape(-1)


def _product(a: Array, b: Array, axis: int, other: int) -> Array:
    """Contracts an axis of each of two matrices, in float32."""
    return jax.lax.dot_general(
        a, b, (((axis,), (other,)), ((), ())), preferred_element_type=jnp.float32
    )


def _masked(
    q: Array,
    k: Array,
    by: Array,
    of: Array,
    window: Array,
    softcap: float,
) -> Array:
    """Computes the masked scores of a block, [m, keys]; `by` and `of` are its part of those of
    `_visible`.
    """
    scores = capped(_product(q, k, 1, 1), softcap)
    segment, prefix, column, position = (by[:, n : n + 1] for n in range(4))
    mask = (segment == of[:1]) | (prefix == of[:1])
    mask &= (column >= of[1:2]) & (position - of[2:] < window)
    grouped = scores.reshape(-1, *mask.shape)
    return jnp.where(mask[None], grouped, NEVER).reshape(scores.shape)


def _flat(x: Array) -> Array:
    """Returns [group, block, dim] as [m, dim]."""
    return x.reshape(-1, x.shape[-1])


def _wide(x: Array, width: int) -> Array:
    """Returns as many columns of an array whose columns are equal."""
    return jnp.tile(x, (1, -(-width // LANES)))[:, :width]


def _visiting(counts, start, visit, finish) -> None:
    """Runs a kernel, whose innermost axis of the grid visits blocks: `start` before the first one,
    `visit` on each, `finish` after the last.
    """
    at = pl.program_id(3)
    pl.when(at == 0)(start)
    pl.when(at < counts[pl.program_id(0) * pl.num_programs(2) + pl.program_id(2)])(visit)
    pl.when(at == pl.num_programs(3) - 1)(finish)


def _forward_kernel(
    visits, counts, window, q, k, v, by, of, out, logsum, top, total, sums, *, softcap
):
    """Attends for a block of queries."""

    def start():
        top[...] = jnp.full_like(top, LOWEST)
        total[...] = jnp.zeros_like(total)
        sums[...] = jnp.zeros_like(sums)

    def visit():
        scores = _masked(_flat(q[...]), k[...], by[...], of[...], window[0], softcap)
        highest = jnp.maximum(top[...], scores.max(-1, keepdims=True))
        weights = jnp.exp(scores - _wide(highest, scores.shape[-1]))
        shrink = jnp.exp(top[...] - highest)
        total[...] = shrink * total[...] + weights.sum(-1, keepdims=True)
        added = _product(weights.astype(v.dtype), v[...], 1, 0)
        sums[...] = _wide(shrink, sums.shape[-1]) * sums[...] + added
        top[...] = highest

    def finish():
        positive = jnp.maximum(total[...], 1e-30)
        result = sums[...] / _wide(positive, sums.shape[-1])
        out[...] = result.astype(out.dtype).reshape(out.shape)
        logsum[...] = (top[...] + jnp.log(positive))[:, :1].reshape(logsum.shape)

    _visiting(counts, start, visit, finish)


def _gradient_kernel(
    visits, counts, window, q, k, v, by, of, out, d_out, logsum, *refs, products, softcap
):
    """Sums `products` of (q, k, d_out, weights, gradient of the scores) over the blocks visited;
    `refs` are the results and as many sums.
    """
    results = refs[: len(refs) // 2]
    sums = refs[len(refs) // 2 :]

    def start():
        for total in sums:
            total[...] = jnp.zeros_like(total)

    def visit():
        queries = _flat(q[...])
        d_block = _flat(d_out[...])
        scores = _masked(queries, k[...], by[...], of[...], window[0], softcap)
        weights = jnp.exp(scores - _flat(logsum[...]))
        # The sum over all keys of weights * d_weights, of which this block has only some.
        delta = _flat(out[...]).astype(jnp.float32) * d_block.astype(jnp.float32)
        d_scores = weights * (_product(d_block, v[...], 1, 1) - delta.sum(-1, keepdims=True))
        d_scores = uncapped_gradient(d_scores, scores, softcap)
        weights, d_scores = (x.astype(queries.dtype) for x in (weights, d_scores))
        added = products(queries, k[...], d_block, weights, d_scores)
        for total, x in zip(sums, added, strict=True):
            total[...] += x

    def finish():
        for result, total in zip(results, sums, strict=True):
            result[...] = total[...].astype(result.dtype).reshape(result.shape)

    _visiting(counts, start, visit, finish)


def _call(kernel, name, inputs, results, scratch, visible, window, sizes):
    """Runs a kernel over rows, key-value heads, blocks and the blocks that each one visits.

    Args:
        kernel: of the refs of the scalars, inputs, results and scratch.
        name: of the kernel.
        inputs: (kind, array) of each: "queries" [rows, kv, group, queries, ...] first, "keys"
            [rows, kv, keys, dim], "by" or "of".
        results: (kind, shape and dtype) of each.
        scratch: shapes of sums in float32.
        visible: [rows, i, j]; the grid is over i and visits the j. i are blocks of the kind of the
            first result.
        window: [1] length of the sliding window.
        sizes: of a block of queries and of keys.
    """
    by_keys = results[0][0] == "keys"
    rows, outer, inner = visible.shape
    heads, group = inputs[0][1].shape[1:3]

    def spec(kind: str, shape: tuple[int, ...]) -> pl.BlockSpec:
        own = (kind in ("keys", "of")) == by_keys
        width = shape[-1]

        def index(row, head, i, j, visits, *_):
            at = i if own else visits[(row * outer + i) * inner + j]
            return {
                "queries": (row, head, 0, at, 0),
                "keys": (row, head, at, 0),
                "by": (row, at, 0),
                "of": (row, 0, at),
            }[kind]

        block = {
            "queries": (None, None, group, sizes[0], width),
            "keys": (None, None, sizes[1], width),
            "by": (None, sizes[0], width),
            "of": (None, shape[1], sizes[1]),
        }[kind]
        return pl.BlockSpec(block, index)

    with jax.named_scope(name):
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=3,
                grid=(rows, heads, outer, inner),
                in_specs=[spec(kind, x.shape) for kind, x in inputs],
                out_specs=[spec(kind, x.shape) for kind, x in results],
                scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
            ),
            out_shape=[x for _, x in results],
            compiler_params=pltpu.CompilerParams(
                # Along the last axis the kernels add to the same scratch, so its order is kept.
                dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
            ),
            name=name,
        )(*_visits(visible), window, *(x for _, x in inputs))


def _forward(q, k, v, by, of, window, softcap):
    sizes = _sizes(q, k)
    shape = jax.ShapeDtypeStruct
    m = q.shape[2] * sizes[0]
    # A number per query is stored in all lanes, which a TPU allocates for it in any case.
    scratch = [(m, LANES), (m, LANES), (m, q.shape[-1])]
    inputs = [("queries", q), ("keys", k), ("keys", v), ("by", by), ("of", of)]
    sums = shape((*q.shape[:-1], 1), jnp.float32)
    results = [("queries", shape(q.shape, q.dtype)), ("queries", sums)]
    visible = _visible(by, of, window, sizes)
    name = "prefix_attention_fwd"
    kernel = partial(_forward_kernel, softcap=softcap)
    out, logsum = _call(kernel, name, inputs, results, scratch, visible, window, sizes)
    # Without its last axis, which would be stored as a whole tile.
    out, logsum = (checkpoint_name(x, ATTENDED) for x in (out, logsum[..., 0]))
    return out, (q, k, v, by, of, window, out, logsum)


def _backward(softcap, residuals, d_out):
    q, k, v, by, of, window, out, logsum = residuals
    sizes = _sizes(q, k)
    dim = q.shape[-1]
    visible = _visible(by, of, window, sizes)
    inputs: list[tuple[str, Any]] = [("queries", q), ("keys", k), ("keys", v)]
    inputs += [("by", by), ("of", of), ("queries", out), ("queries", d_out)]
    inputs += [("queries", logsum[..., None])]

    # Two kernels, since gradients of queries sum over blocks of keys and those of keys over blocks
    # of queries: scratch holds the sums of one block.
    def gradients(name, products, kind, like, scratch, visible):
        kernel = partial(_gradient_kernel, products=products, softcap=softcap)
        results = [(kind, jax.ShapeDtypeStruct(x.shape, x.dtype)) for x in like]
        return _call(kernel, name, inputs, results, scratch, visible, window, sizes)

    def of_queries(q, k, d_out, weights, d_scores):
        return [_product(d_scores, k, 1, 0)]

    def of_keys(q, k, d_out, weights, d_scores):
        return [_product(d_scores, q, 0, 0), _product(weights, d_out, 0, 0)]

    rows = [(q.shape[2] * sizes[0], dim)]
    columns = [(sizes[1], dim)] * 2
    (d_q,) = gradients("prefix_attention_dq", of_queries, "queries", [q], rows, visible)
    swapped = visible.swapaxes(1, 2)
    d_kv = gradients("prefix_attention_dkv", of_keys, "keys", [k, v], columns, swapped)
    return d_q, *d_kv, None, None, None


_attend = jax.custom_vjp(lambda *args: _forward(*args)[0], nondiff_argnums=(6,))
_attend.defvjp(_forward, _backward)
