"""Temperature, top-k, top-p and min-p, each a pytree of one traced number.

A truncation computes a threshold per row, the least scaled logit of a kept token, so that tokens
tied with the last one kept are kept too. `floor` is the threshold of the truncations before, and
the returned threshold is never below it: truncations compose by passing it on.

    scaled = Temperature(0.8).scaled(logits)
    threshold = TopP(0.9).threshold(scaled, TopK(50).threshold(scaled))  # top_p of what top_k left
    kept = scaled >= threshold[..., None]

The vocabulary is not sorted. The number of tokens above x and their mass only fall as x grows, and
float32 numbers are ordered as 32-bit integers are, so bisection over the integers finds the exact
threshold in 32 masked sums. (A sum of non-negative floats in one fixed order is monotone in its
mask, rounding included.) If the vocabulary is cut over a mesh axis, the devices exchange one number
per row and sum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from grre_jax.sampling.distributions import vocabulary

_SIGN = np.uint32(1 << 31)
_NOTHING_CUT = -jnp.inf


class Truncation(Protocol):
    """Interface of a truncation."""

    def active(self, vocab: int) -> Bool[Array, ""]:
        """Returns True if anything can be cut from a vocabulary of this size."""

    def threshold(
        self,
        scaled: Float[Array, "*batch vocab"],
        floor: Float[Array, "*batch"] | float = _NOTHING_CUT,
        axis: str | None = None,
    ) -> Float[Array, "*batch"]:
        """Returns [...] the least scaled logit of a kept token.

        Args:
            scaled: [..., vocab] logits at the sampling temperature, float32; -inf for a token that
                cannot be drawn. One of each row must be finite.
            floor: [...] threshold of the truncations before; -inf if there are none.
            axis: mesh axis that the vocabulary is cut over, inside `jax.shard_map`; None if it is
                whole.
        """


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Temperature:
    """Division of the logits by `value`, at least 0; 0, or too small a value to divide by, is
    greedy decoding.
    """

    value: Float[Array, ""] | float = 1.0

    @property
    def greedy(self) -> Bool[Array, ""]:
        """True for greedy decoding."""
        return jnp.asarray(self.value) < jnp.finfo(jnp.float32).tiny

    def scaled(
        self, logits: Float[Array, "*shape"], top: Float[Array, "*shape"] | float = 0.0
    ) -> Float[Array, "*shape"]:
        """Returns (logits - top) / temperature in float32; logits - top under greedy decoding.

        Args:
            logits: of tokens.
            top: largest logit of the row. Subtracted before the division, it costs no digits at any
                temperature.
        """
        # XLA turns a division by a scalar into this product in some fusions. Written out, it is the
        # same number in all of them.
        return (logits.astype(jnp.float32) - top) * (
            1.0 / jnp.where(self.greedy, 1.0, jnp.asarray(self.value, jnp.float32))
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TopK:
    """Keeps the k most probable tokens; 0, or the vocabulary's size and more, keeps all.

    "Hierarchical Neural Story Generation" (https://arxiv.org/abs/1805.04833).
    """

    k: Int[Array, ""] | int = 0

    def active(self, vocab: int) -> Bool[Array, ""]:
        """Returns True if 0 < k < vocab."""
        return (jnp.asarray(self.k) > 0) & (jnp.asarray(self.k) < vocab)

    def threshold(self, scaled, floor=_NOTHING_CUT, axis=None):
        """Returns the k-th largest scaled logit; see `Truncation.threshold`."""

        def above(x):
            # Counted in float32, exact to 2**24 tokens: a masked sum of floats is faster than one
            # of integers.
            return vocabulary.total(jnp.where(scaled > x[..., None], 1.0, 0.0), axis)

        def cut():
            target, top = jnp.asarray(self.k, jnp.float32), vocabulary.largest(scaled, axis)
            return _least_with_less_above(above, target, floor, top)

        floor = jnp.broadcast_to(jnp.float32(floor), scaled.shape[:-1])
        return jax.lax.cond(self.active(vocabulary.size(scaled, axis)), cut, lambda: floor)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TopP:
    """Keeps the most probable tokens until they have the share p, in (0, 1], of the mass of those
    kept before; 1 keeps all.

    A token is kept while the tokens above it are still short of p, so the most probable one always
    is. "The Curious Case of Neural Text Degeneration" (https://arxiv.org/abs/1904.09751).
    """

    p: Float[Array, ""] | float = 1.0

    def active(self, vocab: int) -> Bool[Array, ""]:
        """Returns True if p < 1."""
        return jnp.asarray(self.p) < 1.0

    def threshold(self, scaled, floor=_NOTHING_CUT, axis=None):
        """Returns the last scaled logit needed to reach p; see `Truncation.threshold`."""

        def cut():
            top = vocabulary.largest(scaled, axis)
            weights = jnp.where(scaled >= floor[..., None], jnp.exp(scaled - top[..., None]), 0.0)

            def above(x):
                return vocabulary.total(jnp.where(scaled > x[..., None], weights, 0.0), axis)

            target = jnp.float32(self.p) * vocabulary.total(weights, axis)
            return _least_with_less_above(above, target, floor, top)

        floor = jnp.broadcast_to(jnp.float32(floor), scaled.shape[:-1])
        return jax.lax.cond(self.active(scaled.shape[-1]), cut, lambda: floor)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MinP:
    """Keeps the tokens that are at least p times as probable as the most probable one, p in [0,
    1]; 0 keeps all.

    "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs"
    (https://arxiv.org/abs/2407.01082).
    """

    p: Float[Array, ""] | float = 0.0

    def active(self, vocab: int) -> Bool[Array, ""]:
        """Returns True if p > 0."""
        return jnp.asarray(self.p) > 0.0

    def threshold(self, scaled, floor=_NOTHING_CUT, axis=None):
        """Returns the largest scaled logit plus log p; see `Truncation.threshold`."""
        p = jnp.float32(self.p)
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
    above: Callable[[Float[Array, "*batch"]], Float[Array, "*batch"]],
    target: Float[Array, "*#batch"],
    floor: Float[Array, "*batch"],
    top: Float[Array, "*batch"],
) -> Float[Array, "*batch"]:
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
        middle = low + (high - low) // 2
        less = above(_float(middle)) < target
        # Once low and high are neighbours the middle is low itself, which is known to be below x.
        lower = less & (middle > low)
        return jnp.where(lower, low, middle), jnp.where(lower, middle, high)

    bounds = _ordered(floor) - 1, jnp.maximum(_ordered(top), _ordered(floor))
    return _float(jax.lax.fori_loop(0, 32, halve, bounds)[1])
