"""The distribution that completions are drawn from: temperature, then top-k, then top-p, every number traced.

A value is never a compile-time constant here: another temperature or top-p compiles nothing. Truncation needs a sort of the vocabulary, so it sits
behind a `lax.cond` and costs nothing when top_k and top_p are off.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplingDistribution:
    """softmax(logits / temperature), cut to its top_k tokens and then to the smallest set holding top_p of what is left.

    Args:
        temperature: 0 is greedy; else the logits are divided by it.
        top_k: how many tokens are kept; 0 keeps all. Tokens tied with the last one kept are kept too.
        top_p: the mass that the kept tokens must reach, in (0, 1]; 1 keeps all.
    """

    temperature: Float[Array, ""] | float = 1.0
    top_k: Int[Array, ""] | int = 0
    top_p: Float[Array, ""] | float = 1.0

    def scaled(self, logits: Float[Array, "*batch vocab"]) -> Float[Array, "*batch vocab"]:
        """Logits at the sampling temperature, in float32. Under greedy decoding (temperature 0) they are left as they are."""
        temperature = jnp.asarray(self.temperature, jnp.float32)
        return logits.astype(jnp.float32) / jnp.where(temperature > 0, temperature, 1.0)

    def keep_threshold(self, scaled: Float[Array, "*batch vocab"]) -> Float[Array, "*batch"]:
        """The smallest scaled logit that truncation keeps; -inf where nothing is cut."""
        vocab = scaled.shape[-1]
        top_k, top_p = jnp.asarray(self.top_k), jnp.asarray(self.top_p, jnp.float32)
        k = jnp.where((top_k <= 0) | (top_k > vocab), vocab, top_k)

        def cut(scaled):
            descending = -jnp.sort(-scaled, axis=-1)
            kth = jnp.take_along_axis(descending, jnp.broadcast_to(k - 1, (*scaled.shape[:-1], 1)), axis=-1)
            probability = jnp.where(descending >= kth, jnp.exp(descending - descending[..., :1]), 0.0)
            mass = jnp.cumsum(probability, axis=-1)
            # A token is kept while the mass before it is still short of top_p, so the first always is.
            kept = (mass - probability < top_p * mass[..., -1:]) & (probability > 0)
            last = jnp.take_along_axis(descending, kept.sum(-1, keepdims=True) - 1, axis=-1)
            return jnp.where(top_p < 1.0, last, kth)[..., 0]

        return jax.lax.cond((k < vocab) | (top_p < 1.0), cut, lambda s: jnp.full(s.shape[:-1], -jnp.inf, s.dtype), scaled)

    def log_prob(self, logits: Float[Array, "*batch vocab"]) -> Float[Array, "*batch vocab"]:
        """Log-probability of every token under this distribution; -inf for tokens that truncation removed."""
        scaled = self.scaled(logits)
        kept = scaled >= self.keep_threshold(scaled)[..., None]
        greedy = jnp.where(jnp.arange(scaled.shape[-1]) == scaled.argmax(-1, keepdims=True), 0.0, -jnp.inf)
        return jnp.where(jnp.asarray(self.temperature) > 0, jax.nn.log_softmax(jnp.where(kept, scaled, -jnp.inf), axis=-1), greedy)

    def sample(
        self, uniforms: Float[Array, "rows 2"], logits: Float[Array, "rows vocab"]
    ) -> tuple[Int[Array, " rows"], dict[str, Float[Array, " rows"]]]:
        """Draws one token a row by inverting the cumulative distribution, and scores it.

        The cumulative distribution is inverted in two levels (a block of the vocabulary, then a token of the block), each with a uniform of its own:
        one float32 uniform against one flat float32 cumulative sum could not reach most tokens of a large vocabulary, and two short scans are
        cheaper than noise for every token.

        Args:
            uniforms: [rows, 2] in [0, 1).
            logits: [rows, vocab] of the policy.

        Returns:
            tokens [rows] and, each [rows], float32 nats: "sampling" (under this distribution, after truncation), "behavior" (at the sampling
            temperature over the full vocabulary: what importance ratios use) and "policy" (the plain policy, temperature 1). Greedy decoding has no
            meaningful ratio: its "sampling" and "behavior" are 0.
        """
        scaled = self.scaled(logits)
        greedy = jnp.asarray(self.temperature) <= 0
        top = scaled.max(axis=-1, keepdims=True)
        weights = jnp.exp(scaled - top)
        total = weights.sum(axis=-1)
        kept = jnp.where(scaled >= self.keep_threshold(scaled)[:, None], weights, 0.0)
        tokens, kept_total = _invert(uniforms, kept)
        tokens = jnp.where(greedy, scaled.argmax(axis=-1), tokens)

        def chosen(x):
            return jnp.take_along_axis(x, tokens[:, None], axis=-1)[:, 0]

        behavior = chosen(scaled) - top[:, 0] - jnp.log(total)
        sampling = behavior + jnp.log(total) - jnp.log(kept_total)
        plain = jax.lax.cond(
            (jnp.asarray(self.temperature) == 1.0) | greedy,
            lambda: behavior,
            lambda: chosen(logits.astype(jnp.float32)) - jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1),
        )
        zero = jnp.zeros_like(behavior)
        return tokens, {"sampling": jnp.where(greedy, zero, sampling), "behavior": jnp.where(greedy, zero, behavior), "policy": plain}


def _invert(uniforms: Float[Array, "rows 2"], weights: Float[Array, "rows vocab"]) -> tuple[Int[Array, " rows"], Float[Array, " rows"]]:
    """Index i with probability weights[i] / sum, and the sum. Entries of weight 0 are never drawn."""
    rows, vocab = weights.shape
    width = 1 << math.ceil(math.log2(max(vocab, 1)) / 2)
    blocks = -(-vocab // width)
    table = jnp.pad(weights, ((0, 0), (0, blocks * width - vocab))).reshape(rows, blocks, width)

    def draw(uniform, mass):
        cumulative, places = jnp.cumsum(mass, axis=-1), jnp.arange(mass.shape[-1])
        # Parallel prefix sums are not monotone to the last bit, so an entry without mass is passed over by name, not by its sum.
        index = jnp.where((cumulative > uniform[:, None] * cumulative[:, -1:]) & (mass > 0), places, places.size).min(axis=-1)
        # Rounding can push the product up to the total itself: stay on the last entry that has mass.
        return jnp.minimum(index, jnp.where(mass > 0, places, 0).max(axis=-1)), cumulative[:, -1]

    block, total = draw(uniforms[:, 0], table.sum(axis=-1))
    within, _ = draw(uniforms[:, 1], jnp.take_along_axis(table, block[:, None, None], axis=1)[:, 0])
    return block * width + within, total
