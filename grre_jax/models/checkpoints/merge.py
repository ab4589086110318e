"""Merging of low-rank terms into their projections."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Sharding
from jaxtyping import Array

from grre_jax.models import lora
from grre_jax.models.checkpoints import layout
from grre_jax.models.transformer import Transformer, join_groups


def merged(model: Transformer) -> Transformer:
    """Returns the model with every low-rank term added to its projection.

    The sum is computed in float32 or wider and cast to the dtype of the projection. The given model
    is not changed, and parameters without a term are shared with it.

    Returns:
        A model without low-rank terms; the given one if it has none.
    """
    if model.lora is None:
        return model
    result = nnx.merge(*nnx.split(model))
    layers, config = result.layers, model.config
    for parameter in ("qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        names = [piece.removesuffix("_proj") for piece in layout.pieces(parameter)]
        pairs = {p: (f"{p}_lora_a", f"{p}_lora_b") for p in names if model.lora.has(p)}
        pairs = {p: tuple(getattr(layers, half)[...] for half in pairs[p]) for p in pairs}
        factors = [pairs.get(p) for p in names]
        if any(factors):
            weight = getattr(layers, parameter)[...]
            outputs = tuple(lora.sizes(config, p)[1] for p in names)
            fused = config if len(names) > 1 else None
            add = _add(model.lora.scale, outputs, fused, weight.sharding)
            setattr(layers, parameter, nnx.Param(add(weight, factors)))
    for name in lora.parameter_names(model.lora):
        delattr(layers, name)
    layers.lora, result.saved = None, frozenset()
    return result


@cache
def _add(scale: float, outputs: tuple[int, ...], config: Any, sharding: Sharding) -> Any:
    """Returns a program for weight + scale * A @ B of all layers.

    Several outputs are joined as in the fused product of `config`.
    """

    def add(weight: Array, factors: list[tuple[Array, Array] | None]) -> Array:
        none = [jnp.zeros((*weight.shape[:2], size), jnp.float32) for size in outputs]
        pairs = zip(factors, none, strict=True)
        parts = [zero if ab is None else jnp.matmul(*ab, precision="highest") for ab, zero in pairs]
        delta = parts[0] if config is None else join_groups(config, *parts)
        return (weight.astype(delta.dtype) + scale * delta).astype(weight.dtype)

    return jax.jit(add, out_shardings=sharding)
