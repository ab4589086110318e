"""Attention of packed rows, by the fastest kernel of each platform.

- TPU: `prefix_attention`.
- NVIDIA: cuDNN's, through `jax.nn.dot_product_attention`, in half precision, a block of queries at
  a time.
- CPU, and the cases that the others do not support (rows that are no multiple of the lanes on TPU,
  float32 on NVIDIA): `blocked_attention`.

Under a mesh each device attends for its own rows, its own heads and its own part of the queries;
keys and values are whole along the row.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from grre_jax.models.array_types import Keys, Queries
from grre_jax.models.blocked_attention import Visibility, blocked_attention
from grre_jax.models.config import ModelConfig
from grre_jax.parallel import mesh as meshes

CUDNN_BLOCK = 1024  # queries whose mask is stored at once


def attention(
    q: Queries,
    k: Keys,
    v: Keys,
    visibility: Visibility,
    config: ModelConfig,
    slides: Any = False,
) -> Queries:
    """Computes the softmax attention of whole rows to themselves; the softmax is in float32.

    Args:
        q: [rows, length, kv, group, dim] queries, by key-value group.
        k: [rows, length, kv, dim] keys.
        v: [rows, length, kv, dim] values.
        visibility: [rows, length] arrays that determine which keys a query attends to.
        config: of the model, with its window, the factor of its scores and their cap.
        slides: True if this layer has the sliding window; a bool, or a traced scalar if layers are
            scanned.

    Returns:
        [rows, length, kv, group, dim], in the dtype of `q`.
    """
    mesh = meshes.current()
    heads = meshes.part(q.shape, "heads")
    keys = meshes.part(k.shape, "keys")
    tokens = meshes.part(visibility.segment_ids.shape, "tokens")
    if keys[2] is None:
        heads = P(heads[0], heads[1], None)
    # The ids twice: those of queries are cut along the row, those of keys are whole.
    specs = (heads, keys, keys, tokens, P(tokens[0], None))
    whole = mesh is None or mesh.shape["sequence"] == 1
    call = functools.partial(_local, whole=whole, config=config)
    # As an argument a bool would be traced, and layers without a window would compute one.
    if isinstance(slides, bool):
        attend = meshes.mapped(functools.partial(call, slides=slides), specs, heads)
        return attend(q, k, v, visibility, visibility)
    attend = meshes.mapped(call, (*specs, P()), heads)
    return attend(q, k, v, visibility, visibility, slides)


def _local(
    q,
    k,
    v,
    seen_by: Visibility,
    seen: Visibility,
    slides: Any,
    *,
    whole: bool,
    config: ModelConfig,
):
    """Computes one device's attention; `whole` if its queries are those of the whole row."""
    platform = meshes.platform()
    limit = None
    window = config.sliding_window
    if slides is not False and window:
        # A traced flag cannot leave the window out: layers without one have one that hides nothing.
        never = jnp.iinfo(jnp.int32).max
        limit = window if slides is True else jnp.where(slides, window, never)
    scale = config.attention_scale
    softcap = config.attention_softcap
    options = {"window": limit, "scale": scale, "softcap": softcap}
    if platform == "tpu":
        # Imported here: Pallas takes a third of a second.
        from grre_jax.models.prefix_attention import LANES, prefix_attention

        if q.shape[1] % LANES == 0 == k.shape[1] % LANES:
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
        # JAX takes consecutive heads of queries for one of keys, as the groups lie here.
        grouped = q.reshape(rows, -1, kv * group, dim)
        out = jax.nn.dot_product_attention(
            grouped,
            k,
            v,
            mask=seen.mask(seen_by, limit)[:, None],
            scale=scale,
            implementation=implementation,
        )
        return out.reshape(q.shape)

    if queries <= CUDNN_BLOCK:
        return attend(q, k, v, seen_by)

    def blocks(x, fill):
        widths = [(0, 0), (0, -queries % CUDNN_BLOCK)] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, widths, constant_values=fill)
        return jnp.moveaxis(x.reshape(rows, -1, CUDNN_BLOCK, *x.shape[2:]), 1, 0)

    # In float32 outside, so that the blocks' gradients of keys and values are added in float32.
    keys = k.astype(jnp.float32)
    values = v.astype(jnp.float32)
    out = jax.lax.map(
        jax.checkpoint(lambda x: attend(x[0], keys.astype(k.dtype), values.astype(v.dtype), x[1])),
        # A segment that no key has: the padding of the last block sees nothing.
        (blocks(q, 0), jax.tree.map(lambda x: blocks(x, -1), seen_by)),
    )
    return jnp.moveaxis(out, 0, 1).reshape(rows, -1, kv, group, dim)[:, :queries]
