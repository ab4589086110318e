"""Attention of packed rows, by the fastest kernel of each platform.

- TPU: splash attention (`jax.experimental.pallas.ops.tpu.splash_attention`) for whole rows without
  shared prefixes, else `prefix_attention`.
- NVIDIA: cuDNN's, through `jax.nn.dot_product_attention`, in half precision, a block of queries at
  a time.
- CPU, and the cases that the others do not support (rows that are no multiple of the lanes on TPU,
  float32 on NVIDIA): `blocked_attention`.

Under a mesh each device attends for its own rows, its own heads and its own part of the queries;
keys and values are whole along the row.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from grre_jax.models.blocked_attention import ATTENDED, Visibility, blocked_attention
from grre_jax.models.prefix_attention import LANES, prefix_attention
from grre_jax.parallel import mesh as meshes

SPLASH_BLOCK = 1024  # the largest block of queries or keys
CUDNN_BLOCK = 1024  # queries whose mask is stored at once


def attention(
    q: Float[Array, "rows length kv group dim"],
    k: Float[Array, "rows length kv dim"],
    v: Float[Array, "rows length kv dim"],
    visibility: Visibility,
    *,
    window: int = 0,
    windowed: Any = False,
    scale: float,
    softcap: float = 0.0,
) -> Float[Array, "rows length kv group dim"]:
    """Computes softmax attention with grouped queries; the softmax is in float32.

    Args:
        q: [rows, length, kv, group, dim] queries, by key-value group.
        k: [rows, length, kv, dim] keys.
        v: [rows, length, kv, dim] values.
        visibility: [rows, length] arrays that determine which keys a query attends to.
        window: length of the sliding window in positions; 0 for none.
        windowed: True if this layer has the window; a bool, or a traced scalar if layers are
            scanned.
        scale: factor of the scores.
        softcap: scaled scores x become softcap * tanh(x / softcap); 0 for none.

    Returns:
        [rows, length, kv, group, dim], in the dtype of `q`.
    """
    mesh = meshes.current()
    heads = meshes.part(q.shape, "heads")
    keys = meshes.part(k.shape, "keys")
    tokens = meshes.part(visibility.segment_ids.shape, "tokens")
    if keys[2] is None:
        heads = P(heads[0], heads[1], None)
    specs = (heads, keys, keys, tokens, P(tokens[0], None))
    inputs = (q, k, v, visibility, visibility)
    whole = mesh is None or mesh.shape["sequence"] == 1
    call = functools.partial(_local, whole=whole, window=window, scale=scale, softcap=softcap)
    if isinstance(windowed, bool):
        return meshes.mapped(functools.partial(call, windowed=windowed), specs, heads)(*inputs)
    return meshes.mapped(call, (*specs, P()), heads)(*inputs, windowed)


def _local(
    q,
    k,
    v,
    seen_by: Visibility,
    seen: Visibility,
    windowed: Any,
    *,
    whole: bool,
    window,
    scale,
    softcap,
):
    """Computes one device's attention; `whole` if its queries are those of the whole row."""
    platform = meshes.platform()
    tpu = platform == "tpu" and q.shape[1] % LANES == 0 == k.shape[1] % LANES
    if tpu and whole and seen.prefix_ids is None:
        return _splash(q, k, v, seen.segment_ids, window, windowed, scale, softcap)
    limit = None
    if windowed is not False and window:
        never = jnp.iinfo(jnp.int32).max
        limit = window if windowed is True else jnp.where(windowed, window, never)
    options = {"window": limit, "scale": scale, "softcap": softcap}
    if tpu:
        return prefix_attention(q, k, v, seen_by, seen, **options)
    # cuDNN's caps no scores.
    if platform == "gpu" and not softcap and q.dtype in (jnp.bfloat16, jnp.float16):
        return _cudnn(q, k, v, seen_by, seen, limit, scale)
    return blocked_attention(q, k, v, seen_by, seen, whole=whole, **options)


def _cudnn(q, k, v, seen_by, seen, limit, scale: float, implementation: Any = "cudnn"):
    """Computes cuDNN's attention. It takes a mask as an array, so longer rows go a block of queries
    at a time, whose mask is computed again in the backward pass.
    """
    rows, queries, kv, group, dim = q.shape

    def attend(q, k, v, seen_by):
        options = {"mask": seen.mask(seen_by, limit)[:, None], "implementation": implementation}
        grouped = q.reshape(rows, -1, kv * group, dim)
        out = jax.nn.dot_product_attention(grouped, k, v, scale=scale, **options)
        return out.reshape(q.shape)

    if queries <= CUDNN_BLOCK:
        return attend(q, k, v, seen_by)

    def blocks(x, fill):
        widths = [(0, 0), (0, -queries % CUDNN_BLOCK)] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, widths, constant_values=fill)
        return jnp.moveaxis(x.reshape(rows, -1, CUDNN_BLOCK, *x.shape[2:]), 1, 0)

    # In float32 outside, so that the blocks' gradients of keys and values are added in float32.
    keys, values = k.astype(jnp.float32), v.astype(jnp.float32)
    out = jax.lax.map(
        jax.checkpoint(lambda x: attend(x[0], keys.astype(k.dtype), values.astype(v.dtype), x[1])),
        # A segment that no key has: the padding of the last block sees nothing.
        (blocks(q, 0), jax.tree.map(lambda x: blocks(x, -1), seen_by)),
    )
    return jnp.moveaxis(out, 0, 1).reshape(rows, -1, kv, group, dim)[:, :queries]


def _splash_block(length: int) -> int:
    """Returns the largest block size that divides the row."""
    return max(
        size for size in range(LANES, min(length, SPLASH_BLOCK) + 1, LANES) if length % size == 0
    )


@functools.lru_cache(maxsize=32)
def _splash_kernel(length: int, heads: int, window: int, softcap: float, interpret: bool) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    # Keys up to window - 1 before the query, none after it.
    square = (length, length)
    mask = masks.LocalMask(square, (window - 1, 0), 0) if window else masks.CausalMask(square)
    names = "block_q block_kv block_kv_compute block_q_dkv block_kv_dkv block_kv_dkv_compute"
    sizes: dict[str, Any] = dict.fromkeys(names.split(), _splash_block(length))
    blocks = kernel.BlockSizes(**sizes, use_fused_bwd_kernel=True)
    with jax.ensure_compile_time_eval():
        return kernel.make_splash_mha(
            masks.MultiHeadMask([mask] * heads),
            block_sizes=blocks,
            attn_logits_soft_cap=softcap or None,
            head_shards=1,
            q_seq_shards=1,
            residual_checkpoint_name=ATTENDED,
            interpret=interpret,
        )


def _splash(q, k, v, segment_ids, window, windowed: Any, scale, softcap=0.0, interpret=False):
    """Computes splash attention, by the windowed or the full kernel as the layer requires.

    Heads whose width is not a multiple of the lanes are padded with zeros.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel

    rows, length, kv, group, dim = q.shape
    fill = [(0, 0)] * 3 + [(0, -dim % LANES)]
    queries = (q * scale).astype(q.dtype).reshape(rows, length, kv * group, dim)
    queries, keys, values = (jnp.pad(x, fill).transpose(0, 2, 1, 3) for x in (queries, k, v))

    def run(window):
        attend = _splash_kernel(length, kv * group, window, softcap, interpret)
        ids = kernel.SegmentIds(q=segment_ids, kv=segment_ids)
        return jax.vmap(attend)(queries, keys, values, ids)

    if isinstance(windowed, bool):
        out = run(window if windowed else 0)
    else:
        out = jax.lax.cond(windowed, lambda: run(window), lambda: run(0))
    return out.transpose(0, 2, 1, 3)[..., :dim].reshape(q.shape)
