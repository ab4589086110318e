"""Keys and values of tokens already computed, as decoding reads them.

A layer has two: one of the prompts, each stored once for all its completions, and one of the rows that are being decoded. A row's own cache is a ring: at every
step all rows write the same column, the step's, whatever their age, so that a write is one slice; a row sees the columns of its last `age` steps. A longer
ring is made when a row needs it and not before, so that a limit costs nothing until it is reached.

Keys lie with their width before the tokens: a product with a query then runs along contiguous memory (measured on a CPU: twice as fast).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

INT8_MOST = 127.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """Keys and values of one layer.

    Attributes:
        keys: [rows, kv heads, head_dim, tokens], in the activations' dtype, bfloat16 or int8.
        values: [rows, kv heads, tokens, head_dim], likewise.
        key_scales, value_scales: [rows, kv heads, tokens], what int8 entries are multiplied by; None for other dtypes.
    """

    keys: Array
    values: Array
    key_scales: Float[Array, "rows kv tokens"] | None
    value_scales: Float[Array, "rows kv tokens"] | None

    @classmethod
    def empty(cls, rows: int, kv_heads: int, head_dim: int, tokens: int, dtype: Any) -> Cache:
        """All zeros."""
        scales = [jnp.zeros((rows, kv_heads, tokens), jnp.float32) if dtype == jnp.int8 else None for _ in range(2)]
        return cls(jnp.zeros((rows, kv_heads, head_dim, tokens), dtype), jnp.zeros((rows, kv_heads, tokens, head_dim), dtype), *scales)

    @classmethod
    def of(cls, keys: Float[Array, "rows tokens kv dim"], values: Float[Array, "rows tokens kv dim"], dtype: Any) -> Cache:
        """The cache that holds these tokens."""
        (keys, key_scales), (values, value_scales) = (_stored(jnp.moveaxis(x, 1, 2), dtype) for x in (keys, values))
        return cls(jnp.swapaxes(keys, 2, 3), values, key_scales, value_scales)

    @property
    def tokens(self) -> int:
        """How many there is room for."""
        return self.values.shape[2]

    def write(self, column: Int[Array, ""], keys: Float[Array, "rows 1 kv dim"], values: Float[Array, "rows 1 kv dim"]) -> Cache:
        """One more token of every row, in the same column."""
        new = Cache.of(keys, values, self.keys.dtype)

        def put(x, y, axis):
            return None if x is None else jax.lax.dynamic_update_slice_in_dim(x, y, column, axis)

        return Cache(
            put(self.keys, new.keys, 3),
            put(self.values, new.values, 2),
            put(self.key_scales, new.key_scales, 2),
            put(self.value_scales, new.value_scales, 2),
        )

    def put_rows(self, index: Int[Array, "shards some"], new: Cache) -> Cache:
        """These rows of each shard's part replaced by `new`'s; an index out of range replaces nothing."""

        def put(x, y):
            parts, some = (z.reshape(index.shape[0], -1, *z.shape[1:]) for z in (x, y))
            return jax.vmap(lambda part, i, rows: part.at[i].set(rows, mode="drop"))(parts, index, some).reshape(x.shape)

        return jax.tree.map(put, self, new)

    def begin(self, new: Cache) -> Cache:
        """The first tokens of every row replaced by `new`'s."""
        return jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice(x, y, (0,) * x.ndim), self, new)

    @classmethod
    def joined(cls, first: Cache, other: Cache, start: int = 0) -> Cache:
        """The tokens of one, then those of another from `start` on."""

        def join(x, y, axis):
            return None if x is None else jnp.concatenate([x, jax.lax.slice_in_dim(y, start, None, axis=axis)], axis)

        return cls(
            join(first.keys, other.keys, 3),
            join(first.values, other.values, 2),
            join(first.key_scales, other.key_scales, 2),
            join(first.value_scales, other.value_scales, 2),
        )

    def doubled(self, before: int = 0) -> Cache:
        """A ring of twice the columns, in which the last columns lie where their steps belong; the `before` tokens that precede the ring stay.

        Step s lies in column s mod C. In the doubled ring it belongs in column s mod 2C, which is one of the two places that column s mod C is copied to.
        """
        return Cache.joined(self, self, before)

    def halved(self, newest: Int[Array, ""]) -> Cache:
        """A ring of half the columns, with nothing before it: of the two steps that belong in a column of it, the later.

        Args:
            newest: the column of the last step.
        """
        half = self.tokens // 2
        ago = (newest - jnp.arange(self.tokens)) % self.tokens
        in_first = ago[:half] < ago[half:]

        def later(x, axis):
            if x is None:
                return None
            first, second = jnp.split(x, 2, axis)
            return jnp.where(jnp.expand_dims(in_first, [i for i in range(x.ndim) if i != axis]), first, second)

        return Cache(later(self.keys, 3), later(self.values, 2), later(self.key_scales, 2), later(self.value_scales, 2))

    def scores(self, q: Float[Array, "rows kv m dim"]) -> Float[Array, "rows kv m tokens"]:
        """Products of queries and keys, in float32."""
        scores = jnp.einsum("nkmd,nkdc->nkmc", q, self.keys.astype(q.dtype), preferred_element_type=jnp.float32)
        return scores if self.key_scales is None else scores * self.key_scales[:, :, None]

    def weighted(self, weights: Float[Array, "rows kv m tokens"], dtype: Any) -> Float[Array, "rows kv m dim"]:
        """Sums of values by weight, in float32, from products in `dtype`."""
        weights = weights if self.value_scales is None else weights * self.value_scales[:, :, None]
        return jnp.einsum("nkmc,nkcd->nkmd", weights.astype(dtype), self.values.astype(dtype), preferred_element_type=jnp.float32)


def _stored(x: Float[Array, "*batch dim"], dtype: Any) -> tuple[Array, Float[Array, "*batch"] | None]:
    """Entries as they are stored; int8 with the scale that takes the largest of a token and head to 127."""
    if dtype != jnp.int8:
        return x.astype(dtype), None
    x = x.astype(jnp.float32)
    scale = jnp.maximum(jnp.abs(x).max(-1), 1e-30) / INT8_MOST
    return jnp.round(x / scale[..., None]).astype(jnp.int8), scale
