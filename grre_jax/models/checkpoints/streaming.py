"""Transfers between a checkpoint's tensors and the parameters on devices, a tensor at a time.

The shards of a tensor are read as stored and copied to the devices of the parameter, where the
pieces of a layer are cast, joined and written into the stacked parameter. The host never has all
layers in memory. Export takes the same way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P, Sharding
from jaxtyping import Array

from grre_jax.errors import DataError
from grre_jax.models import lora
from grre_jax.models.checkpoints import families, layout
from grre_jax.models.checkpoints.family_table import FAMILIES
from grre_jax.models.checkpoints.safetensors_files import SafetensorsSource
from grre_jax.models.config import ModelConfig


def _split_name(name: str) -> tuple[str, bool]:
    """Returns the name within its block, and True if the parameter has a layer axis."""
    return name.removeprefix("layers."), name.startswith("layers.")


def load_parameter(
    config: ModelConfig,
    name: str,
    shape: tuple[int, ...],
    dtype: Any,
    source: SafetensorsSource,
    sharding: NamedSharding | None,
) -> Array:
    """Loads a parameter of the model.

    Args:
        config: the shape of the model.
        name: of the parameter ("embed", "layers.qkv_proj", ...).
        shape: of the parameter.
        dtype: the tensors are cast to it.
        source: the checkpoint.
        sharding: of the parameter; the default device if None.

    Raises:
        DataError: a value is not finite, as stored or in `dtype`. Names the folder and the
            parameter.
    """
    parameter, layered = _split_name(name)
    shardings: list[Sharding | None] = [None] * len(layout.pieces(config, parameter))
    if sharding is not None:
        spec = (*sharding.spec, *(None,) * (len(shape) - len(sharding.spec)))
        specs = layout.stored_specs(config, parameter, spec[1:] if layered else spec, sharding.mesh)
        shardings = [NamedSharding(sharding.mesh, P(*one)) for one in specs]
    value = jnp.zeros(shape, dtype, device=sharding) if layered else None
    write = _write(config, parameter, jnp.dtype(dtype), sharding)
    for _, layer, tensors in order(config, {name: shape}):
        pieces = [_put(source, *piece) for piece in zip(tensors, shardings, strict=True)]
        # Blocks, so that no layer is read while another one is in the host's memory, which the
        # device may share.
        value = jax.block_until_ready(write(value, pieces, layer))
    if not bool(_all_finite(value)):
        raise DataError(
            f"{source.folder}: {name} contains values that are not finite in"
            f" {jnp.dtype(dtype).name}: load the model in float32, or download the files again"
        )
    return value


@jax.jit
def _all_finite(value: Array) -> Array:
    return jnp.isfinite(value).all()


def _put(source: SafetensorsSource, tensor: str, sharding: Sharding | None) -> Array:
    """Copies a tensor to its devices; each process reads the shards of its own."""
    if sharding is None:
        return jax.device_put(source.read(tensor))
    shape = source.shape(tensor)
    return jax.make_array_from_callback(shape, sharding, lambda index: source.read(tensor, index))


@cache
def _write(
    config: ModelConfig, parameter: str, dtype: Any, sharding: Sharding | None
) -> Callable[[Array | None, list[Array], int | None], Array]:
    """Returns a program that writes one layer's slice in place, or returns a parameter without
    layers; one compilation per parameter.
    """

    def write(stacked, pieces, layer):
        value = layout.join(config, parameter, [piece.astype(dtype) for piece in pieces])
        if stacked is None:
            return value
        return jax.lax.dynamic_update_index_in_dim(stacked, value, layer, 0)

    return jax.jit(write, donate_argnums=0, out_shardings=sharding)


def stored_tensors(
    config: ModelConfig, arrays: dict[str, Array]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the checkpoint's tensors of all parameters on the host, one at a time.

    Every process must iterate over all of them.

    Args:
        config: the shape of the model.
        arrays: the parameters by name.

    Yields:
        Names and tensors in the order of `stored_shapes`.
    """
    return families.fused(config, _pieces(config, arrays), np.concatenate)


def _pieces(config: ModelConfig, arrays: dict[str, Array]) -> Iterator[tuple[str, np.ndarray]]:
    shapes = {name: array.shape for name, array in arrays.items()}
    for name, layer, tensors in order(config, shapes):
        parameter, _ = _split_name(name)
        array = arrays[name]
        # A parameter that is sharded over several processes is gathered on each.
        whole = None if array.is_fully_addressable else NamedSharding(array.sharding.mesh, P())
        pieces = _read_layer(config, parameter, whole)(array, layer)
        for tensor in tensors:
            yield tensor, np.asarray(pieces.pop(0))


def stored_shapes(config: ModelConfig, arrays: dict[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shape and dtype of a checkpoint's tensors by name, in the order of an export.

    Args:
        config: the shape of the model.
        arrays: the parameters by name, or what has their shape and dtype.
    """

    def join(parts: list[jax.ShapeDtypeStruct]) -> jax.ShapeDtypeStruct:
        rows = sum(part.shape[0] for part in parts)
        return jax.ShapeDtypeStruct((rows, *parts[0].shape[1:]), parts[0].dtype)

    pieces = (
        (tensor, jax.ShapeDtypeStruct(shape, arrays[name].dtype))
        for name, _, tensors in order(config, {name: x.shape for name, x in arrays.items()})
        for tensor, shape in tensors.items()
    )
    return dict(families.fused(config, pieces, join))


def unfused(config: ModelConfig, source: SafetensorsSource) -> SafetensorsSource:
    """Returns the source with a tensor for each part of the fused ones, which it must have.

    Args:
        config: the shape of the model.
        source: the checkpoint.
    """
    q, kv = lora.sizes(config, "q")[1], lora.sizes(config, "k")[1]
    rows = {"q_proj": q, "k_proj": kv, "v_proj": kv}
    parts: dict[str, tuple[str, int, int]] = {}
    for whole, projections in FAMILIES[config.family].fused.items():
        for layer in range(config.num_layers):
            start = 0
            for name in projections:
                end = start + rows.get(name, config.intermediate_size)
                stored = f"model.layers.{layer}.{whole}"
                parts[families.tensor_name(name, layer, config)] = (stored, start, end)
                start = end
    return source.cut(parts)


def order(
    config: ModelConfig, shapes: dict[str, tuple[int, ...]]
) -> list[tuple[str, int | None, dict[str, tuple[int, ...]]]]:
    """Returns the pieces of parameters in the order of an export: those without layers, then by
    layer.

    Args:
        config: the shape of the model.
        shapes: of the parameters by name ("embed", "layers.qkv_proj", ...).

    Returns:
        (parameter, layer or None, shapes by tensor, the parts of fused ones apart) in order.
    """
    entries = []
    for name, shape in shapes.items():
        parameter, layered = _split_name(name)
        pieces = layout.stored_shapes(config, parameter, shape[1:] if layered else shape)
        for layer in range(config.num_layers) if layered else [None]:
            tensors = {
                families.tensor_name(piece, layer, config): stored
                for piece, stored in pieces.items()
            }
            entries.append((name, layer, tensors))
    return sorted(entries, key=lambda entry: -1 if entry[1] is None else entry[1])


@cache
def _read_layer(
    config: ModelConfig, parameter: str, sharding: Sharding | None
) -> Callable[[Array, int | None], list[Array]]:
    """Returns a program for the stored pieces of one layer's slice of a parameter (all if None)."""

    def read(value, layer):
        if layer is not None:
            value = jax.lax.dynamic_index_in_dim(value, layer, 0, keepdims=False)
        return layout.split(config, parameter, value)

    return jax.jit(read, out_shardings=sharding)
