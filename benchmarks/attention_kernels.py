"""The attention kernel that the platform chooses, held against its definition and against blocks of
queries, which run everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grre_jax.models import ModelConfig
from grre_jax.models.attention import attention
from grre_jax.models.blocked_attention import Visibility, blocked_attention

NAMES = {"cudnn": "cuDNN", "tpu_custom_call": "Pallas"}  # by a word of the lowered program


def visibility(
    rows: int, samples: int, prompt_tokens: int, new_tokens: int, *, shared: bool
) -> Visibility:
    """Rows of a prompt and its completions; not `shared`, each is a sequence of its own."""
    lengths = [prompt_tokens] + [new_tokens] * samples
    segments = np.repeat(np.arange(len(lengths)), lengths) + 1
    positions = np.concatenate([np.arange(length) for length in lengths])
    prefixes = np.ones_like(segments) if shared else segments
    positions += prompt_tokens * (prefixes < segments)
    ids = [jnp.asarray(np.tile(x, (rows, 1)), jnp.int32) for x in (segments, positions, prefixes)]
    return Visibility.of(*ids[: 3 if shared else 2])


def dense(q: jax.Array, k: jax.Array, v: jax.Array, seen: Visibility, scale: float) -> jax.Array:
    """The definition, in float32."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    with jax.default_matmul_precision("highest"):
        scores = jnp.einsum("bqngd,bknd->bngqk", q, k) * scale
        hidden = ~seen.mask(seen)[:, None, None]
        weights = jax.nn.softmax(jnp.where(hidden, -jnp.inf, scores), axis=-1)
        return jnp.einsum("bngqk,bknd->bqngd", weights, v)


class Kernels:
    """One layer's attention, output and gradients, of random queries, keys and values.

    Args:
        config: of the model.
        seen: the rows.
        dtype: of the arrays.

    Attributes:
        name: of the kernel that the program calls.
        own, blocks: compute output and gradients, by that kernel and by blocks.
        flops: of the visible pairs, forward and backward.
    """

    def __init__(self, config: ModelConfig, seen: Visibility, dtype: Any):
        heads, kv, dim = config.num_heads, config.num_kv_heads, config.head_dim
        kinds = [(heads // kv, dim), (dim,), (dim,), (heads // kv, dim)]
        self._arrays = [
            jax.random.normal(key, (*seen.segment_ids.shape, kv, *kind), dtype)
            for key, kind in zip(jax.random.split(jax.random.key(0), 4), kinds, strict=True)
        ]
        self._dense = _both_ways(partial(dense, seen=seen, scale=dim**-0.5))
        own = _both_ways(lambda *x: attention(*x, seen, config))
        program = own.lower(*self._arrays).as_text()
        self.name = next((name for word, name in NAMES.items() if word in program), "blocks")
        self.own = partial(own, *self._arrays)
        self.blocks = partial(
            _both_ways(lambda *x: blocked_attention(*x, seen, seen, scale=dim**-0.5)),
            *self._arrays,
        )
        self.flops = 12.0 * float(seen.mask(seen).sum()) * heads * dim

    def errors(self) -> tuple[float, float]:
        """Largest error over the largest entry, of output and gradients: of the kernel, of blocks."""
        wanted = self._dense(*self._arrays)

        def error(found: Any) -> float:
            pairs = zip(found, wanted, strict=True)
            return max(
                float(jnp.abs(x.astype(jnp.float32) - y).max() / jnp.abs(y).max()) for x, y in pairs
            )

        return error(self.own()), error(self.blocks())


def _both_ways(call: Callable[..., jax.Array]) -> Any:
    def passes(q, k, v, cotangent):
        out, back = jax.vjp(call, q, k, v)
        return out, *back(cotangent.astype(out.dtype))

    return jax.jit(passes)
