"""The distribution of a token: temperature, then truncations.

Every number is traced, so another temperature or top-p compiles nothing. Truncation is computed
behind a `lax.cond` and costs nothing if it is off: a draw then reads the logits twice, for their
maximum and for the masses of the vocabulary's blocks.

Inside `grre_jax.parallel.mesh.use` the rows are cut over the data and fsdp axes and the vocabulary
over tensor, as the head's output is. No device ever holds another's columns of the logits.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from grre_jax.parallel import mesh as meshes
from grre_jax.sampling.distributions import vocabulary
from grre_jax.sampling.distributions.truncation import (
    min_p_threshold,
    top_k_threshold,
    top_p_threshold,
)
from grre_jax.sampling.distributions.vocabulary import invert
from grre_jax.sampling_params import SamplingParams

# Scopes of the conditionals that a draw computes only for some settings.
TRUNCATION = "truncation"
PLAIN_SCORE = "plain_score"


def idle_scopes(params: SamplingParams) -> tuple[str, ...]:
    """Returns the scopes whose conditionals compute nothing under these settings."""
    cuts = params.truncated or params.temperature == 0
    plain = params.temperature not in (0, 1)
    return (() if cuts else (TRUNCATION,)) + (() if plain else (PLAIN_SCORE,))


class SamplingDistribution(NamedTuple):
    """softmax(logits / temperature), cut by truncations.

    Every row of logits needs a finite one; a token whose logit is -inf is never drawn.

    Args:
        temperature: divides the logits, at least 0; 0, or too small a value to divide by, is greedy
            decoding.
        top_k, top_p, min_p: truncations, applied one after the other, each to the tokens that the
            one before kept. Tokens tied with the last one kept are kept too.
    """

    temperature: Float[Array, ""]
    top_k: Int[Array, ""]
    top_p: Float[Array, ""]
    min_p: Float[Array, ""]

    @classmethod
    def of(cls, params: SamplingParams) -> SamplingDistribution:
        """Returns the distribution of the parameters, with every number as an array."""
        return cls(
            jnp.float32(params.temperature),
            jnp.int32(params.top_k),
            jnp.float32(params.top_p),
            jnp.float32(params.min_p),
        )

    @property
    def greedy(self) -> Bool[Array, ""]:
        """True for greedy decoding."""
        # The reciprocal of a smaller, subnormal number may overflow, and XLA may flush it to 0.
        return self.temperature < jnp.finfo(jnp.float32).tiny

    def scaled(
        self, logits: Float[Array, "*#shape"], top: Float[Array, "*#shape"]
    ) -> Float[Array, "*#shape"]:
        """Returns (logits - top) / temperature in float32; logits - top under greedy decoding.

        Args:
            logits: of tokens.
            top: largest logit of the row. Subtracted before the division, it costs no digits at any
                temperature.
        """
        # XLA turns a division by a scalar into this product in some fusions. Written out, it is the
        # same number in all of them.
        return (logits.astype(jnp.float32) - top) * (
            1.0 / jnp.where(self.greedy, 1.0, self.temperature)
        )

    def keep_threshold(
        self, scaled: Float[Array, "*batch vocab"], axis: str | None = None
    ) -> Float[Array, "*batch"]:
        """Returns [...] the least scaled logit of a kept token; -inf if nothing is cut.

        Args:
            scaled: [..., vocab] result of `scaled`.
            axis: mesh axis that the vocabulary is cut over, inside `jax.shard_map`; None if it is
                whole.
        """
        threshold = jnp.full(scaled.shape[:-1], -jnp.inf, jnp.float32)
        threshold = top_k_threshold(self.top_k, scaled, threshold, axis)
        threshold = top_p_threshold(self.top_p, scaled, threshold, axis)
        return min_p_threshold(self.min_p, scaled, threshold, axis)

    def sample(
        self, uniforms: Float[Array, "rows 2"], logits: Float[Array, "rows vocab"]
    ) -> tuple[Int[Array, " rows"], dict[str, Float[Array, " rows"]]]:
        """Draws one token per row by inverting the cumulative distribution, and scores it.

        The cumulative distribution is inverted in two levels (a block of the vocabulary, then a
        token of the block), with a separate uniform for each: one float32 uniform against one flat
        float32 cumulative sum could not reach most tokens of a large vocabulary, and two short
        scans are cheaper than noise for every token.

        Args:
            uniforms: [rows, 2] in [0, 1).
            logits: [rows, vocab] of the policy.

        Returns:
            [rows] tokens and, each [rows], log-probs in float32 nats: "sampling" (under this
            distribution, after truncation), "behavior" (at the sampling temperature over the full
            vocabulary: what importance ratios use) and "policy" (the plain policy, temperature 1).
            Greedy decoding has no meaningful ratio: its "sampling" and "behavior" are 0.
        """
        mesh = meshes.current()
        # Rows or a vocabulary that the mesh's axes do not divide stay whole, as the head does.
        cut = meshes.spec(logits.shape, (meshes.ROWS, "tensor"), mesh)
        axis = cut[1] if mesh is not None and mesh.shape["tensor"] > 1 else None
        rows = P(cut[0])

        def local(distribution, logits, uniforms):
            return distribution._sample(logits, uniforms, axis)

        return meshes.mapped(local, (P(), cut, rows), rows)(self, logits, uniforms)

    def _sample(self, logits, uniforms, axis):
        """Draws and scores on each device's own part; `axis` is that of the vocabulary, or None."""
        blocks = vocabulary.Blocks(vocabulary.size(logits, axis), axis)
        greedy = self.greedy
        top = vocabulary.largest(logits, axis).astype(jnp.float32)
        masses = blocks.masses(jnp.exp(self.scaled(logits, top[:, None])))
        total = masses.sum(axis=-1)

        def cut():
            scaled = self.scaled(logits, top[:, None])
            # Greedy decoding keeps only the tokens at the top; a uniform of 0 draws the first.
            threshold = jax.lax.cond(
                greedy,
                lambda: vocabulary.largest(scaled, axis),
                lambda: self.keep_threshold(scaled, axis),
            )
            weights = jnp.where(scaled >= threshold[:, None], jnp.exp(scaled), 0.0)
            return threshold, blocks.masses(weights)

        cuts = greedy | ((self.top_k > 0) & (self.top_k < blocks.vocab))
        cuts = cuts | (self.top_p < 1.0) | (self.min_p > 0.0)
        everything = jnp.full_like(top, -jnp.inf), masses
        with jax.named_scope(TRUNCATION):
            threshold, kept_masses = jax.lax.cond(cuts, cut, lambda: everything)
        uniforms = jnp.where(greedy, 0.0, uniforms)
        block = invert(uniforms[:, 0], kept_masses)
        inside = blocks.take(logits, block)
        scaled = self.scaled(inside, top[:, None])
        weights = jnp.where(scaled >= threshold[:, None], jnp.exp(scaled), 0.0)
        within = invert(uniforms[:, 1], weights)

        def chosen(x):
            return jnp.take_along_axis(x, within[:, None], axis=-1)[:, 0]

        score = chosen(scaled)
        behavior = score - jnp.log(total)
        sampling = score - jnp.log(kept_masses.sum(axis=-1))

        def plain():
            masses = blocks.masses(jnp.exp(logits.astype(jnp.float32) - top[:, None]))
            return chosen(inside) - top - jnp.log(masses.sum(axis=-1))

        with jax.named_scope(PLAIN_SCORE):
            same = (self.temperature == 1.0) | greedy
            policy = jax.lax.cond(same, lambda: behavior, plain)
        scores = {
            "sampling": jnp.where(greedy, 0.0, sampling),
            "behavior": jnp.where(greedy, 0.0, behavior),
            "policy": policy,
        }
        return block * blocks.width + within, scores
