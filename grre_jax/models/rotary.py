"""Rotary positions (arXiv 2104.09864): frequencies, tables of cosines and sines, rotations."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from grre_jax.models.config import ModelConfig, RopeScaling


def rope_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> Float[Array, " half"]:
    """Returns the radians per position of each pair of entries (arXiv 2104.09864).

    Args:
        head_dim: entries of a head that are rotated; even.
        theta: base of the frequencies.
        scaling: None for none.
    """
    frequency = 1.0 / (theta ** (jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim))
    if scaling is None:
        return frequency
    if scaling.kind == "linear":
        return frequency / scaling.factor
    if scaling.kind == "yarn":
        stretched = _yarn_ramp(head_dim, theta, scaling)
        return frequency / scaling.factor * stretched + frequency * (1 - stretched)
    # Waves per original length: few are all stretched, many are kept.
    waves = scaling.original_positions * frequency / (2 * math.pi)
    low = scaling.low_freq_factor
    high = scaling.high_freq_factor
    kept = jnp.clip((waves - low) / (high - low), 0.0, 1.0)
    return frequency * (kept + (1 - kept) / scaling.factor)


def _yarn_ramp(head_dim: int, theta: float, scaling: RopeScaling) -> Float[Array, " half"]:
    """Returns the share of each pair's frequency that is divided: from 0 to 1 over the pairs."""

    def pair(turns: float) -> float:
        """The pair, as a fraction, that turns so often within the original length."""
        wave = scaling.original_positions / (turns * 2 * math.pi)
        return head_dim * math.log(wave) / (2 * math.log(theta))

    first = pair(scaling.beta_fast)
    last = pair(scaling.beta_slow)
    if scaling.truncate:
        first = math.floor(first)
        last = math.ceil(last)
    first = max(first, 0)
    last = min(last, head_dim - 1)
    if first == last:
        last += 0.001  # a step, as in transformers
    pairs = jnp.arange(head_dim // 2, dtype=jnp.float32)
    return jnp.clip((pairs - first) / (last - first), 0.0, 1.0)


Tables = tuple[Float[Array, "*batch half"], Float[Array, "*batch half"]]


class Rotary(NamedTuple):
    """Cosines and sines of positions.

    Attributes:
        full: of layers without a window.
        local: of sliding layers; None if they are those of the others.
        none: of layers without rotation, ones and zeros; None without any.
    """

    full: Tables
    local: Tables | None
    none: Tables | None = None

    @classmethod
    def of(cls, config: ModelConfig, positions: Integer[Array, "*batch"]) -> Rotary:
        """Computes the tables of the positions."""

        def tables(theta, scaling):
            frequencies = rope_frequencies(config.rotary_dim, theta, scaling)
            angle = positions[..., None].astype(jnp.float32) * frequencies
            cos = jnp.cos(angle)
            sin = jnp.sin(angle)
            if scaling is None or scaling.attention_factor == 1.0:
                return cos, sin
            return cos * scaling.attention_factor, sin * scaling.attention_factor

        local = tables(config.local_rope_theta, None) if config.local_rope_theta else None
        full = tables(config.rope_theta, config.rope_scaling)
        if all(config.rotated_layers):
            return cls(full, local)
        cos, sin = full
        return cls(full, local, (jnp.ones_like(cos), jnp.zeros_like(sin)))

    def at(self, index: Integer[Array, "*some"]) -> Rotary:
        """Returns the tables of some entries of one axis of positions."""
        return jax.tree.map(lambda x: jnp.take(x, index, axis=0, mode="clip"), self)

    def tables(self, slides: Any, rotates: Any = True) -> Tables:
        """Returns cosines and sines of a layer.

        Args:
            slides: True if the layer has the sliding window; a bool or traced.
            rotates: True if it rotates; a bool or traced.
        """
        return _chosen(rotates, _chosen(slides, self.local, self.full), self.none)


def _chosen(flag: Any, yes: Tables | None, no: Tables | None) -> Any:
    if no is None or flag is True:
        return no if yes is None else yes
    if yes is None or flag is False:
        return no
    return tuple(jnp.where(flag, a, b) for a, b in zip(yes, no, strict=True))


def rotate(
    x: Float[Array, "*batch heads dim"],
    cos: Float[Array, "*#batch half"],
    sin: Float[Array, "*#batch half"],
    interleaved: bool = False,
) -> Float[Array, "*batch heads dim"]:
    """Applies the rotary embedding to the first entries, as many as the tables have.

    Args:
        x: [..., heads, dim].
        cos: [..., half] cosines.
        sin: [..., half] sines.
        interleaved: pairs are the entries 2i and 2i + 1, not i and i + half.

    Returns:
        [..., heads, dim], in the dtype of `x`.
    """
    turned = 2 * cos.shape[-1]
    cos = cos[..., None, :]
    sin = sin[..., None, :]
    y = x[..., :turned].astype(jnp.float32)
    if interleaved:
        a = y[..., 0::2]
        b = y[..., 1::2]
        pairs = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
        y = pairs.reshape(y.shape).astype(x.dtype)
    else:
        a, b = jnp.split(y, 2, axis=-1)
        y = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
    return y if turned == x.shape[-1] else jnp.concatenate([y, x[..., turned:]], axis=-1)


def rotate_groups(
    y: Float[Array, "rows length kv parts dim"],
    cos: Float[Array, "#rows length half"],
    sin: Float[Array, "#rows length half"],
    interleaved: bool = False,
) -> tuple[
    Float[Array, "rows length kv group dim"],
    Float[Array, "rows length kv dim"],
    Float[Array, "rows length kv dim"],
]:
    """Splits fused projections by key-value group and rotates queries and keys.

    By `split`, whose gradient is one concatenation; that of indexing is a sum of padded parts.

    Args:
        y: [rows, length, kv, group + 2, dim]; per group its queries, its key, its value.
        cos: [rows, length, half].
        sin: [rows, length, half].
        interleaved: as of `rotate`.

    Returns:
        Queries [rows, length, kv, group, dim]; keys and values [rows, length, kv, dim].
    """
    sizes = (y.shape[-2] - 2, 1)
    qk, v = jax.lax.split(y, (sum(sizes), 1), axis=-2)
    turned = rotate(qk, cos[..., None, :], sin[..., None, :], interleaved)
    q, k = jax.lax.split(turned, sizes, axis=-2)
    return q, k[..., 0, :], v[..., 0, :]
