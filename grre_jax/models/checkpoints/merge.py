"""Merging of low-rank terms into their projections."""

import jax
import jax.numpy as jnp
from flax import nnx
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
    layers = result.layers
    config = model.config
    for parameter in [name for name in vars(layers) if layout.is_transposed(name)]:
        stored = layout.FUSED.get(parameter, (parameter,))
        names = [piece.removesuffix("_proj") for piece in stored]
        factors = {
            p: (getattr(layers, f"{p}_lora_a")[...], getattr(layers, f"{p}_lora_b")[...])
            for p in names
            if hasattr(layers, f"{p}_lora_a")
        }
        if not factors:
            continue

        def add(weight: Array, factors: dict[str, tuple[Array, Array]], names=names) -> Array:
            parts = [
                jnp.matmul(*factors[name], precision="highest")
                if name in factors
                else jnp.zeros((*weight.shape[:2], lora.sizes(config, name)[1]), jnp.float32)
                for name in names
            ]
            delta = join_groups(config, *parts) if len(parts) > 1 else parts[0]
            return (weight.astype(delta.dtype) + model.lora.scale * delta).astype(weight.dtype)

        weight = getattr(layers, parameter)[...]
        add = jax.jit(add, out_shardings=weight.sharding)
        setattr(layers, parameter, nnx.Param(add(weight, factors)))
    for name in lora.parameter_names(config, model.lora):
        delattr(layers, name)
    layers.lora = None
    return result
