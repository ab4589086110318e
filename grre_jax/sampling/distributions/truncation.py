"""Thresholds of top-k, top-p and min-p.

A truncation computes a threshold per row, the least scaled logit of a kept token, so that tokens
tied with the last one kept are kept too. `floor` is the threshold of the truncations before, and
the returned threshold is never below it: truncations compose by passing it on.

The vocabulary is not sorted. The number of tokens above x and their mass only fall as x grows, and
float32 numbers are ordered as 32-bit integers are, so bisection over the integers finds the exact
threshold in 32 masked sums. (A sum of non-negative floats in one fixed order is monotone in its
mask, rounding included.) If the vocabulary is cut over a mesh axis, the devices exchange one number
per row and sum.

Arguments of all: `scaled` [..., vocab] logits at the sampling temperature, float32, of which one of
each row is finite; `floor` [...]; and `axis`, the mesh axis that the vocabulary is cut over inside
`jax.shard_map`, None if it is whole. Every number is traced, and a truncation that cuts nothing
computes nothing.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from grre_jax.sampling.distributions import vocabulary

_SIGN = np.uint32(1 << 31)

Logits = Float[Array, "*batch vocab"]
PerRow = Float[Array, "*batch"]


def top_k_threshold(
    k: Int[Array, ""],
    scaled: Logits,
    floor: PerRow,
    axis: str | None = None,
) -> PerRow:
    """Returns the k-th largest scaled logit; the floor if k is 0 or not below the vocabulary's
    size.

    "Hierarchical Neural Story Generation" (https://arxiv.org/abs/1805.04833).
    """

    def above(x):
        # Counted in float32, exact to 2**24 tokens: a masked sum of floats is faster than one of
        # integers.
        return vocabulary.total(jnp.where(scaled > x[..., None], 1.0, 0.0), axis)

    def cut():
        target = k.astype(jnp.float32)
        top = vocabulary.largest(scaled, axis)
        return _least_with_less_above(above, target, floor, top)

    active = (k > 0) & (k < vocabulary.size(scaled, axis))
    return jax.lax.cond(active, cut, lambda: floor)


def top_p_threshold(
    p: Float[Array, ""],
    scaled: Logits,
    floor: PerRow,
    axis: str | None = None,
) -> PerRow:
    """Returns the last scaled logit that the most probable tokens need to have the share p, in (0,
    1], of the mass of those kept before; the floor if p is 1.

    A token is kept while the tokens above it are still short of p, so the most probable one always
    is. "The Curious Case of Neural Text Degeneration" (https://arxiv.org/abs/1904.09751).
    """

    def cut():
        top = vocabulary.largest(scaled, axis)
        weights = jnp.where(scaled >= floor[..., None], jnp.exp(scaled - top[..., None]), 0.0)

        def above(x):
            return vocabulary.total(jnp.where(scaled > x[..., None], weights, 0.0), axis)

        target = p * vocabulary.total(weights, axis)
        return _least_with_less_above(above, target, floor, top)

    return jax.lax.cond(p < 1.0, cut, lambda: floor)


def min_p_threshold(
    p: Float[Array, ""],
    scaled: Logits,
    floor: PerRow,
    axis: str | None = None,
) -> PerRow:
    """Returns the largest scaled logit plus log p, p in [0, 1]; the floor if p is 0.

    "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs"
    (https://arxiv.org/abs/2407.01082).
    """
    limit = jnp.maximum(floor, vocabulary.largest(scaled, axis) + jnp.log(p))
    # Selected, so that the result at 0 does not depend on a compiled log.
    return jnp.where(p > 0.0, limit, floor)


def _ordered(x: Float[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Returns integers in the order of the floats: those of negative floats run backwards, below
    those of positive ones.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >= _SIGN, ~bits, bits | _SIGN)


def _float(key: UInt32[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns the float that `_ordered` maps to `key`."""
    return jax.lax.bitcast_convert_type(jnp.where(key >= _SIGN, key & ~_SIGN, ~key), jnp.float32)


def _least_with_less_above(
    above: Callable[[PerRow], PerRow],
    target: Float[Array, "*#batch"],
    floor: PerRow,
    top: PerRow,
) -> PerRow:
    """Returns the smallest x from floor to top with above(x) < target: the scaled logit of a token,
    or the floor.

    Args:
        above: count or mass strictly above x; falls as x grows.
        target: [...] greater than above(top).
        floor: [...] least x allowed; may be -inf.
        top: [...] largest scaled logit.
    """

    def halve(_, bounds):
        low, high = bounds  # x is in (low, high]
        middle = low + (high - low) // 2  # low + high may exceed 32 bits
        less = above(_float(middle)) < target
        # Once low and high are neighbours the middle is low itself, which is known to be below x.
        lower = less & (middle > low)
        return jnp.where(lower, low, middle), jnp.where(lower, middle, high)

    # One below, since low is exclusive and the floor may be the result.
    bounds = _ordered(floor) - 1, jnp.maximum(_ordered(top), _ordered(floor))
    return _float(jax.lax.fori_loop(0, 32, halve, bounds)[1])
