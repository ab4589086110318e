"""Layout of parameters in checkpoints: separate tensors of each layer, projections transposed.

A parameter of the model ("embed", "layers.qkv_proj", ...) stacks all layers, a fused one joins
projections by key-value group, and one of experts stacks them. `join` and `split` convert between
one layer's slice of a parameter and its tensors.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from grre_jax.models.config import ModelConfig
from grre_jax.models.transformer import join_groups, split_groups
from grre_jax.parallel import mesh as meshes

# Projections and biases of the checkpoint that one fused parameter joins.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "qkv_bias": ("q_bias", "k_bias", "v_bias")}


def pieces(config: ModelConfig, parameter: str) -> tuple[str, ...]:
    """Returns the names of a parameter's stored pieces: q_proj, k_proj, v_proj of "qkv_proj", and
    expert_up_proj.0, expert_up_proj.1, ... of "expert_up_proj".
    """
    if _is_of_experts(parameter):
        return tuple(f"{parameter}.{expert}" for expert in range(config.num_experts))
    return FUSED.get(parameter, (parameter,))


def _is_of_experts(parameter: str) -> bool:
    return parameter.startswith("expert_")


def stored_shapes(
    config: ModelConfig, parameter: str, shape: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """Returns the stored shape of each piece of a parameter of `shape` (without the layer axis)."""
    q = config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    if parameter in FUSED:
        sizes = zip(FUSED[parameter], (q, kv, kv), strict=True)
        return {name: (size, *shape[:-1]) for name, size in sizes}
    if _is_of_experts(parameter):
        return dict.fromkeys(pieces(config, parameter), shape[:0:-1])
    return {parameter: shape[::-1] if is_transposed(parameter) else shape}


def stored_specs(
    config: ModelConfig, parameter: str, axes: tuple[Any, ...], mesh: Any
) -> list[tuple[Any, ...]]:
    """Returns the mesh axes of each stored piece, whose shards are on the parameter's devices.

    Pieces of a parameter that is cut within a key-value group are whole along the heads.

    Args:
        config: the shape of the model.
        parameter: its name.
        axes: mesh axes of the parameter without its layer axis.
        mesh: the mesh.
    """
    if parameter in FUSED:
        (groups,) = meshes.spec((config.num_kv_heads,), axes[-1:], mesh)
        return [(groups, *axes[:-1])] * len(FUSED[parameter])
    if _is_of_experts(parameter):
        return [axes[:0:-1]] * config.num_experts
    return [axes[::-1] if is_transposed(parameter) else axes]


def is_transposed(parameter: str) -> bool:
    """True if the pieces of a parameter are stored as [out, in]."""
    return parameter.endswith("_proj")


def join(config: ModelConfig, parameter: str, stored: list[Array]) -> Array:
    """Returns one layer's slice of a parameter from its stored pieces."""
    values = [value.T for value in stored] if is_transposed(parameter) else stored
    if _is_of_experts(parameter):
        return jnp.stack(values)
    return join_groups(config, *values) if parameter in FUSED else values[0]


def split(config: ModelConfig, parameter: str, value: Array) -> list[Array]:
    """Returns the stored pieces of one layer's slice of a parameter."""
    values = split_groups(config, value) if parameter in FUSED else (value,)
    values = tuple(value) if _is_of_experts(parameter) else values
    return [value.T for value in values] if is_transposed(parameter) else list(values)
