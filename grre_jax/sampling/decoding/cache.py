"""Keys and values of tokens already computed, as decoding reads them.

A layer has two: one of the prompts, each stored once for all its completions, and one of the decode
slots. A slot's own cache is a ring buffer: at every step all slots write the same column, however
many tokens they have generated, so that a write is one slice; a slot reads the columns of its last
`generated` steps. A ring buffer grows when a completion needs it, so a limit costs nothing until it
is reached.

Keys are stored with their width before the tokens: a product with a query then runs along
contiguous memory (measured on a CPU: twice as fast). On a CPU they are also stored in contiguous
blocks of at most 64 tokens: a product of a few queries with a wider matrix runs at half of memory's
speed (measured, two queries per key head in float32: 200 us for 128 tokens whole, 101 in blocks;
977 and 461 for 1,024).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Int

from grre_jax.parallel import mesh as meshes
from grre_jax.sampling.decoding.shards import Chosen, placed, taken

# Tokens per block of keys on a CPU: at most, and at least (if only smaller blocks fit, keys stay
# whole).
BLOCK = 64
LEAST_BLOCK = 16
# Queries per prompt and key head from which on a prompt's keys stay whole (measured: with 32
# queries and 1,024 tokens a call in blocks took 1.08 of the time; fewer gain).
MANY_QUERIES = 16


def width_for(tokens: int, before: int = 0) -> int:
    """Returns the tokens per block of keys, which divide both `tokens` and `before`, the tokens
    that precede the ring buffer.
    """
    shared = math.gcd(BLOCK, tokens, before)
    return shared if meshes.platform() == "cpu" and shared >= LEAST_BLOCK else tokens


Tokens = Float[Array, "slots tokens kv dim"]  # keys or values


class Cache(NamedTuple):
    """Keys and values of one layer.

    Attributes:
        keys: [slots, kv heads, blocks x head_dim, width].
        values: [slots, kv heads, blocks x width, head_dim].
    """

    keys: Array
    values: Array

    @classmethod
    def empty(
        cls, slots: int, kv_heads: int, head_dim: int, tokens: int, dtype: Any, width: int
    ) -> Cache:
        """Returns a cache of zeros, in blocks of `width`, which divides the tokens."""
        keys = jnp.zeros((slots, kv_heads, tokens // width * head_dim, width), dtype)
        return cls(keys, jnp.zeros((slots, kv_heads, tokens, head_dim), dtype))

    @classmethod
    def of(
        cls,
        keys: Tokens,
        values: Tokens,
        dtype: Any,
        width: int,
    ) -> Cache:
        """Returns a cache of these tokens, in blocks of `width`, which divides them."""
        keys, values = (jnp.moveaxis(x.astype(dtype), 1, 2) for x in (keys, values))
        return cls(_in_blocks(jnp.swapaxes(keys, 2, 3), width), values)

    @property
    def tokens(self) -> int:
        """Room, in tokens."""
        return self.values.shape[2]

    @property
    def width(self) -> int:
        """Tokens per block of keys."""
        return self.keys.shape[-1]

    def write(
        self,
        column: Int[Array, ""],
        keys: Float[Array, "slots 1 kv dim"],
        values: Float[Array, "slots 1 kv dim"],
    ) -> Cache:
        """Writes one token of every slot into the same column."""
        new = Cache.of(keys, values, self.keys.dtype, 1)
        where = (0, 0, column // self.width * keys.shape[-1], column % self.width)
        written = jax.lax.dynamic_update_slice(self.keys, new.keys, where)
        if self.width < self.tokens:
            # Else the loop's program keeps them in another order, and copies them at every step.
            written = with_layout_constraint(written, Layout((0, 1, 2, 3)))
        return Cache(
            written, jax.lax.dynamic_update_slice_in_dim(self.values, new.values, column, 2)
        )

    def put_slots(self, index: Chosen, new: Cache) -> Cache:
        """Replaces slots of each shard by those of `new`; an index out of range replaces none."""

        def put(x, y):
            parts, updates = (z.reshape(index.shape[0], -1, *z.shape[1:]) for z in (x, y))
            return placed(parts, index, updates).reshape(x.shape)

        return jax.tree.map(put, self, new)

    def on_mesh(self) -> Cache:
        """Returns the cache with slots cut over data and fsdp, heads over tensor."""
        return jax.tree.map(lambda x: meshes.constrain(x, "cached"), self)

    def take_slots(self, index: Chosen) -> Cache:
        """Returns some slots of each shard."""
        return jax.tree.map(lambda x: taken(x, index), self)

    def begin(self, new: Cache) -> Cache:
        """Replaces the first tokens of every slot by those of `new`."""
        return jax.tree.map(
            lambda x, y: jax.lax.dynamic_update_slice(x, y, (0,) * x.ndim), self, new
        )

    def grown(self, before: int = 0) -> Cache:
        """Returns ring buffers of twice the columns; the `before` tokens that precede them stay.

        Step s is in column s mod C. In the larger ring buffer it belongs in column s mod 2C, which
        is one of the two columns that column s mod C is copied to.
        """

        def twice(x, axis):
            ring = jax.lax.slice_in_dim(x, before, None, axis=axis)
            return jnp.concatenate([x, ring], axis)

        keys = twice(self._whole_keys(), 3)
        return Cache(_in_blocks(keys, width_for(keys.shape[3], before)), twice(self.values, 2))

    def _whole_keys(self) -> Array:
        """Returns the keys as [slots, kv, dim, tokens]."""
        slots, kv, _, width = self.keys.shape
        by_block = self.keys.reshape(slots, kv, self.tokens // width, -1, width)
        return jnp.swapaxes(by_block, 2, 3).reshape(slots, kv, -1, self.tokens)

    def after(self, before: int) -> tuple[Tokens, Tokens]:
        """Returns keys and values behind the first `before` tokens, as `of` takes them."""
        keys = self._whole_keys()[..., before:]
        values = self.values[:, :, before:]
        return jnp.moveaxis(keys, 3, 1), jnp.moveaxis(values, 2, 1)

    def scores(self, q: Float[Array, "slots kv m dim"]) -> Float[Array, "slots kv m tokens"]:
        """Returns the products of queries and keys, in float32."""
        keys = self.keys.astype(q.dtype)
        blocks = self.tokens // self.width
        if blocks == 1:
            return jnp.einsum("nkmd,nkdc->nkmc", q, keys, preferred_element_type=jnp.float32)
        keys = keys.reshape(*keys.shape[:2], blocks, -1, self.width)
        repeated = jnp.broadcast_to(q[:, :, None], (*q.shape[:2], blocks, *q.shape[2:]))
        scores = jnp.einsum(
            "nkbmd,nkbdc->nkbmc", repeated, keys, preferred_element_type=jnp.float32
        )
        # A product that writes its result in another order is slower than one and a copy
        # (measured: 680 for 101 us).
        scores = jnp.swapaxes(jax.lax.optimization_barrier(scores), 2, 3)
        return scores.reshape(*q.shape[:3], self.tokens)

    def weighted(
        self, weights: Float[Array, "slots kv m tokens"], dtype: Any
    ) -> Float[Array, "slots kv m dim"]:
        """Returns the weighted sums of values, in float32, from products in `dtype`."""
        return jnp.einsum(
            "nkmc,nkcd->nkmd",
            weights.astype(dtype),
            self.values.astype(dtype),
            preferred_element_type=jnp.float32,
        )


def _in_blocks(keys: Array, width: int) -> Array:
    """Returns [slots, kv, dim, tokens] as [slots, kv, blocks x dim, width]."""
    slots, kv, dim, _ = keys.shape
    return jnp.swapaxes(keys.reshape(slots, kv, dim, -1, width), 2, 3).reshape(slots, kv, -1, width)
