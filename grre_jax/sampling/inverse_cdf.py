"""Drawing from unnormalised weights by inverting their cumulative sum."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def invert(uniforms: Float[Array, " rows"], weights: Float[Array, "rows n"]) -> Int[Array, " rows"]:
    """Index i with probability weights[i] / sum, the smallest whose cumulative weight exceeds the uniform's share of the sum.

    Entries of weight 0 are never drawn; a uniform of 0 draws the first entry that has weight.

    Args:
        uniforms: [rows] in [0, 1).
        weights: [rows, n], at least 0, with one above 0 in each row. A few thousand entries at most: a float32 uniform has 2**23 values.
    """
    cumulative, places = jnp.cumsum(weights, axis=-1), jnp.arange(weights.shape[-1])
    # Parallel prefix sums are not monotone to the last bit, so an entry without weight is passed over by name, not by its sum.
    index = jnp.where((cumulative > uniforms[:, None] * cumulative[:, -1:]) & (weights > 0), places, places.size).min(axis=-1)
    # Rounding can push the product up to the sum itself: stay on the last entry that has weight.
    return jnp.minimum(index, jnp.where(weights > 0, places, 0).max(axis=-1))
