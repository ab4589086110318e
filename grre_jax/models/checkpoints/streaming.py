"""Transfers between a checkpoint's tensors and the parameters on devices, a tensor at a time.

The shards of a tensor are read as stored and copied to the devices of the parameter, where the
pieces of a layer are cast, joined and written into the stacked parameter. The host never has all
layers in memory. Export takes the same way back.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, Sharding
from jaxtyping import Array

from grre_jax.errors import DataError
from grre_jax.models.checkpoints import config_json, layout
from grre_jax.models.checkpoints.safetensors_files import SafetensorsSource
from grre_jax.models.config import ModelConfig
from grre_jax.parallel import mesh as meshes


class Piece(NamedTuple):
    """A piece of a parameter, as rows of a stored tensor.

    Attributes:
        parameter: its name ("embed", "layers.qkv_proj", ...).
        layer: index of the layer; None for a parameter outside the layers.
        tensor: name of the stored tensor.
        start: first row.
        shape: of these rows.
    """

    parameter: str
    layer: int | None
    tensor: str
    start: int
    shape: tuple[int, ...]


def stored_pieces(config: ModelConfig, shapes: dict[str, tuple[int, ...]]) -> list[Piece]:
    """Returns the pieces of parameters in the order of an export: those without layers, then by
    layer.

    Args:
        config: the shape of the model.
        shapes: of the parameters by name.
    """
    pieces = []
    rows: Counter[str] = Counter()
    for layer in (None, *range(config.num_layers)):
        for name, shape in shapes.items():
            parameter = name.removeprefix("layers.")
            if (layer is None) != (parameter == name):
                continue
            full_shape = shape if layer is None else shape[1:]
            for piece, stored in layout.stored_shapes(config, parameter, full_shape).items():
                tensor = config_json.tensor_name(piece, layer, config)
                pieces.append(Piece(name, layer, tensor, rows[tensor], stored))
                rows[tensor] += stored[0]
    return pieces


def stored_shapes(pieces: list[Piece]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the stored tensors by name."""
    # The last piece of a tensor ends with it.
    return {p.tensor: (p.start + p.shape[0], *p.shape[1:]) for p in pieces}


def load_parameters(
    config: ModelConfig,
    shapes: dict[str, tuple[int, ...]],
    dtype: Any,
    source: SafetensorsSource,
    mesh: Mesh | None,
) -> dict[str, Array]:
    """Loads parameters.

    Args:
        config: the shape of the model.
        shapes: of the parameters by name.
        dtype: the tensors are cast to it.
        source: the checkpoint.
        mesh: the parameters are laid out over it; the default device if None.

    Raises:
        DataError: a value is not finite, as stored or in `dtype`. Names the folder and the
            parameter.
    """
    values = {}
    pieces = stored_pieces(config, shapes)
    for name, shape in shapes.items():
        parameter = name.removeprefix("layers.")
        layered = parameter != name
        sharding = None
        shardings: list[Sharding | None] = [None] * len(layout.pieces(config, parameter))
        if mesh is not None:
            leaf = jax.ShapeDtypeStruct(shape, dtype)
            sharding = meshes.tree_shardings({parameter: leaf}, mesh)[parameter]
            axes = (*sharding.spec, *(None,) * (len(shape) - len(sharding.spec)))
            axes = axes[1:] if layered else axes
            specs = layout.stored_specs(config, parameter, axes, mesh)
            shardings = [NamedSharding(mesh, P(*one)) for one in specs]
        value = jnp.zeros(shape, dtype, device=sharding) if layered else None
        write = _write(config, parameter, jnp.dtype(dtype), sharding)
        members = [piece for piece in pieces if piece.parameter == name]
        for layer, of_layer in groupby(members, key=lambda piece: piece.layer):
            parts = [_put(source, *pair) for pair in zip(of_layer, shardings, strict=True)]
            # Blocks, so that no layer is read while another one is in the host's memory, which the
            # device may share.
            value = jax.block_until_ready(write(value, parts, layer))
        if not bool(_all_finite(value)):
            raise DataError(
                f"{source.folder}: {name} contains values that are not finite in"
                f" {jnp.dtype(dtype).name}: load the model in float32, or download the files again"
            )
        values[name] = value
    return values


@jax.jit
def _all_finite(value: Array) -> Array:
    return jnp.isfinite(value).all()


def _put(source: SafetensorsSource, piece: Piece, sharding: Sharding | None) -> Array:
    """Copies a piece to its devices; each process reads the shards of its own."""

    def read(index: tuple[slice, ...]) -> np.ndarray:
        first, end, _ = index[0].indices(piece.shape[0])
        rows = slice(piece.start + first, piece.start + end)
        return source.read(piece.tensor, (rows, *index[1:]))

    if sharding is None:
        return jax.device_put(read((slice(None),)))
    return jax.make_array_from_callback(piece.shape, sharding, read)


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
    """
    pieces = stored_pieces(config, {name: array.shape for name, array in arrays.items()})
    shapes = stored_shapes(pieces)
    parts: dict[str, list[np.ndarray]] = {}  # of tensors that are not complete
    for (name, layer), several in groupby(pieces, key=lambda piece: piece[:2]):
        array = arrays[name]
        # A parameter that is sharded over several processes is gathered on each.
        sharding = None if array.is_fully_addressable else NamedSharding(array.sharding.mesh, P())
        values = _read_layer(config, name.removeprefix("layers."), sharding)(array, layer)
        for piece in several:
            rows = parts.setdefault(piece.tensor, [])
            rows.append(np.asarray(values.pop(0)))
            if piece.start + piece.shape[0] == shapes[piece.tensor][0]:
                del parts[piece.tensor]
                yield piece.tensor, rows[0] if len(rows) == 1 else np.concatenate(rows)


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
