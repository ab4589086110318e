"""The device mesh and where every array of a run lives on it.

One table maps the parameters' axes to mesh axes; XLA's partitioner (`jax.jit` over `NamedSharding`) does the rest.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXES = ("data", "fsdp", "tensor")

# Mesh axis of each dimension, by parameter name; stacked layers have their (unsharded) layer axis first.
RULES: dict[str, tuple[str | None, ...]] = {
    "embed": ("tensor", "fsdp"),
    "head": ("tensor", "fsdp"),
    "q_proj": (None, "fsdp", "tensor"),
    "k_proj": (None, "fsdp", "tensor"),
    "v_proj": (None, "fsdp", "tensor"),
    "gate_proj": (None, "fsdp", "tensor"),
    "up_proj": (None, "fsdp", "tensor"),
    "o_proj": (None, "tensor", "fsdp"),
    "down_proj": (None, "tensor", "fsdp"),
}


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Sizes of the mesh axes.

    Args:
        data: replicas of the parameters; -1 takes the devices that the other axes leave.
        fsdp: parameters and batches are both cut over this axis.
        tensor: heads, hidden units and vocabulary are cut over this axis.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """The mesh over the visible devices (or those given).

    Raises:
        ValueError: if the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    if config.fsdp < 1 or config.tensor < 1 or (config.data < 1 and config.data != -1):
        raise ValueError(f"mesh axes must be at least 1 (data may be -1), got {config}")
    data = len(devices) // (config.fsdp * config.tensor) if config.data == -1 else config.data
    shape = (data, config.fsdp, config.tensor)
    if np.prod(shape) != len(devices):
        raise ValueError(
            f"mesh data={data} x fsdp={config.fsdp} x tensor={config.tensor} does not make the {len(devices)} visible devices: change the mesh fields"
        )
    return jax.make_mesh(shape, AXES, devices=devices, axis_types=(AxisType.Auto,) * len(AXES))


def row_devices(mesh: Mesh) -> int:
    """How many ways the rows of a batch are cut."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def replicated(mesh: Mesh) -> NamedSharding:
    """The same array on every device."""
    return NamedSharding(mesh, P())


def rows(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Cut over data and fsdp along `axis`."""
    return NamedSharding(mesh, P(*(None,) * axis, ("data", "fsdp")))


def tree_shardings(tree: Any, mesh: Mesh) -> Any:
    """Shardings for parameters, or for any tree (an optimiser's state, say) that holds arrays under the parameters' names.

    A dimension that its mesh axis does not divide stays whole, and so do arrays that no rule names.
    """

    def one(path, leaf):
        for entry in reversed(path):
            rule = RULES.get(str(getattr(entry, "key", getattr(entry, "name", ""))))
            if rule is not None and len(rule) == np.ndim(leaf):
                return NamedSharding(mesh, P(*(a if a and leaf.shape[i] % mesh.shape[a] == 0 else None for i, a in enumerate(rule))))
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(one, tree)
