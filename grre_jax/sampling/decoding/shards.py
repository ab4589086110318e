"""Entries of arrays that are cut into shards, each taken from or put into its shard's own part, so
that nothing moves between devices.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

Chosen = Int[Array, "shards some"]  # entries of each shard


def taken(x: Array, index: Chosen | None) -> Array:
    """Takes entries along the first axis, which has the shards' parts one behind the other; all if
    the index is None.
    """
    if index is None:
        return x
    parts = x.reshape(index.shape[0], -1, *x.shape[1:])
    return picked(parts, index).reshape(-1, *x.shape[1:])


def picked(x: Array, index: Chosen) -> Array:
    """Takes entries of [shards, all, ...] along the second axis."""
    return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 2)), axis=1)


def placed(x: Array, index: Chosen, new: Array) -> Array:
    """Replaces entries of [shards, all, ...] along the second axis; an index out of range replaces
    none.
    """
    return jax.vmap(lambda part, i, some: part.at[i].set(some, mode="drop"))(x, index, new)
