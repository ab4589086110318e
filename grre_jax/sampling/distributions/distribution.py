"""The distribution of a token: temperature, then truncations.

Every number is traced, so another temperature or top-p compiles nothing. Truncation is computed
behind a `lax.cond` and costs nothing if it is off: a draw then reads the logits twice, for their
maximum and for the masses of the vocabulary's blocks.

Inside `grre_jax.parallel.mesh.use` the rows are cut over the data and fsdp axes and the vocabulary
over tensor, as the head's output is. No device ever holds another's columns of the logits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from grre_jax.parallel import mesh as meshes
from grre_jax.sampling.distributions import truncation, vocabulary
from grre_jax.sampling.distributions.truncation import Temperature, Truncation
from grre_jax.sampling.distributions.vocabulary import invert
from grre_jax.sampling.params import SamplingParams

# Scopes of the conditionals that a draw computes only for some settings.
TRUNCATION, PLAIN_SCORE = "truncation", "plain_score"


def idle_scopes(params: SamplingParams) -> tuple[str, ...]:
    """Returns the scopes whose conditionals compute nothing under these settings."""
    cuts = params.truncated or params.temperature == 0
    plain = params.temperature not in (0, 1)
    return (() if cuts else (TRUNCATION,)) + (() if plain else (PLAIN_SCORE,))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplingDistribution:
    """softmax(logits / temperature), cut by truncations.

    Every row of logits needs a finite one; a token whose logit is -inf is never drawn.

    Args:
        temperature: divides the logits.
        truncations: applied one after the other, each to the tokens that the one before kept.
            Tokens tied with the last one kept are kept too.
    """

    temperature: Temperature = Temperature()
    truncations: tuple[Truncation, ...] = ()

    @classmethod
    def of(cls, params: SamplingParams) -> SamplingDistribution:
        """Returns the distribution of the parameters, with every number as an array."""
        parts = [
            getattr(truncation, field.metadata["part"])(
                (jnp.int32 if isinstance(field.default, int) else jnp.float32)(
                    getattr(params, field.name)
                )
            )
            for field in dataclasses.fields(SamplingParams)
            if "part" in field.metadata
        ]
        return cls(parts[0], tuple(parts[1:]))

    def scaled(
        self, logits: Float[Array, "*shape"], top: Float[Array, "*shape"] | float = 0.0
    ) -> Float[Array, "*shape"]:
        """Returns (logits - top) / temperature in float32; see `Temperature.scaled`."""
        return self.temperature.scaled(logits, top)

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
        for part in self.truncations:
            threshold = part.threshold(scaled, threshold, axis)
        return threshold

    def log_prob(self, logits: Float[Array, "*batch vocab"]) -> Float[Array, "*batch vocab"]:
        """Returns [..., vocab] the log-prob of every token; -inf for tokens that were cut."""
        flat = logits.reshape(-1, logits.shape[-1])
        return _on_mesh(SamplingDistribution._log_prob, flat, (), keeps_vocab=True)(
            self, flat
        ).reshape(logits.shape)

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
        return _on_mesh(SamplingDistribution._sample, logits, (uniforms,), keeps_vocab=False)(
            self, logits, uniforms
        )

    def _log_prob(self, axis, logits):
        blocks, top = (
            vocabulary.Blocks.of(logits, axis),
            vocabulary.largest(logits, axis).astype(jnp.float32)[:, None],
        )
        scaled = self.scaled(logits, top)
        shifted = jnp.where(scaled >= self.keep_threshold(scaled, axis)[:, None], scaled, -jnp.inf)
        columns = vocabulary.first_column(scaled, axis) + jnp.arange(scaled.shape[-1])
        first = -vocabulary.largest(jnp.where(scaled == 0.0, -columns, -blocks.vocab), axis)
        greedy = jnp.where(columns == first[:, None], 0.0, -jnp.inf)
        normaliser = jnp.log(blocks.masses(jnp.exp(shifted)).sum(axis=-1, keepdims=True))
        return jnp.where(self.temperature.greedy, greedy, shifted - normaliser)

    def _sample(self, axis, logits, uniforms):
        blocks, greedy = vocabulary.Blocks.of(logits, axis), self.temperature.greedy
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
            return threshold, blocks.masses(
                jnp.where(scaled >= threshold[:, None], jnp.exp(scaled), 0.0)
            )

        active = [part.active(blocks.vocab) for part in self.truncations]
        everything = jnp.full_like(top, -jnp.inf), masses
        with jax.named_scope(TRUNCATION):
            threshold, kept_masses = jax.lax.cond(
                jnp.stack([greedy, *active]).any(), cut, lambda: everything
            )
        uniforms = jnp.where(greedy, 0.0, uniforms)
        block = invert(uniforms[:, 0], kept_masses)
        inside = blocks.take(logits, block)
        scaled = self.scaled(inside, top[:, None])
        within = invert(
            uniforms[:, 1], jnp.where(scaled >= threshold[:, None], jnp.exp(scaled), 0.0)
        )

        def chosen(x):
            return jnp.take_along_axis(x, within[:, None], axis=-1)[:, 0]

        score = chosen(scaled)
        behavior, sampling = score - jnp.log(total), score - jnp.log(kept_masses.sum(axis=-1))

        def plain():
            return (
                chosen(inside)
                - top
                - jnp.log(
                    blocks.masses(jnp.exp(logits.astype(jnp.float32) - top[:, None])).sum(axis=-1)
                )
            )

        with jax.named_scope(PLAIN_SCORE):
            policy = jax.lax.cond(
                (jnp.asarray(self.temperature.value) == 1.0) | greedy, lambda: behavior, plain
            )
        scores = {
            "sampling": jnp.where(greedy, 0.0, sampling),
            "behavior": jnp.where(greedy, 0.0, behavior),
            "policy": policy,
        }
        return block * blocks.width + within, scores


def _on_mesh(
    run: Callable,
    logits: Float[Array, "rows vocab"],
    others: tuple[Array, ...],
    *,
    keeps_vocab: bool,
) -> Callable:
    """Returns `run(distribution, axis, logits, *others)` as a function of all but the axis, in
    which each device of the current mesh works on its own part of the logits.

    Args:
        run: takes the mesh axis that the vocabulary is cut over, or None.
        logits: only their shape matters: rows or a vocabulary that the mesh's axes do not divide
            stay whole, as the head does.
        others: arrays [rows, ...].
        keeps_vocab: True if the result is [rows, vocab] rather than arrays [rows].
    """
    mesh = meshes.current()
    if mesh is None:
        return lambda distribution, *arrays: run(distribution, None, *arrays)
    cut = meshes.spec(logits.shape, (meshes.ROWS, "tensor"), mesh)
    axis = cut[1] if mesh.shape["tensor"] > 1 else None

    def local(distribution: SamplingDistribution, *arrays: Array) -> Any:
        return run(distribution, axis, *arrays)

    rows = P(cut[0])
    specs = (P(), cut, *(rows for _ in others))
    return jax.shard_map(
        local, mesh=mesh, in_specs=specs, out_specs=cut if keeps_vocab else rows, check_vma=False
    )
