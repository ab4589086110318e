"""The device mesh, and the sharding of every array of a run over it.

One table maps the axes of parameters and activations to mesh axes; XLA's partitioner (`jax.jit`
over `NamedSharding`) does the rest. Programs traced under `use(mesh)` place their activations by
the same table; without it (one device, a test) nothing is constrained.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array

from grre_jax.domains import AtLeastMinusOne, Positive, Record

AXES = ("data", "fsdp", "expert", "tensor", "sequence")
ROWS = ("data", "fsdp", "expert")

# Mesh axes of each dimension, by name. Parameters: stacked layers have their (unsharded) layer axis
# first.
# Products that cut their outputs along tensor (qkv, gate, up) come before those that cut their
# inputs (o, down): what lies between is not exchanged.
RULES: dict[str, tuple[str | None, ...]] = {
    **dict.fromkeys(("embed", "head"), ("tensor", "fsdp")),
    **{f"{p}_proj": (None, "fsdp", "tensor") for p in ("qkv", "gate", "up")},
    **{f"{p}_proj": (None, "tensor", "fsdp") for p in ("o", "down")},
    "qkv_bias": (None, "tensor"),
    # Low-rank terms [layers, in, rank] and [layers, rank, out]: cut where their projection is.
    **{f"{p}_lora_a": (None, "fsdp", None) for p in ("q", "k", "v", "gate", "up")},
    **{f"{p}_lora_b": (None, None, "tensor") for p in ("q", "k", "v", "gate", "up")},
    **{f"{p}_lora_a": (None, "tensor", None) for p in ("o", "down")},
    **{f"{p}_lora_b": (None, None, "fsdp") for p in ("o", "down")},
}
# The same of all experts, [layers, experts, ...].
RULES |= {
    f"expert_{name}": (None, "expert", *rule[1:])
    for name, rule in RULES.items()
    if name.startswith(("gate_", "up_", "down_"))
}

# Activations: [rows, length, width], [rows, length, kv heads, ...], [rows, length], and the keys
# that a query attends to.
ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    "stream": (ROWS, "sequence", None),
    "heads": (ROWS, "sequence", "tensor"),
    # Whole along the row: a query attends to all keys before it.
    "keys": (ROWS, None, "tensor"),
    "whole_rows": (ROWS, None, None),
    "tokens": (ROWS, "sequence"),
    # Rows and length in one dimension, [rows * length, width].
    "flat": ((*ROWS, "sequence"), None),
    "cached": (ROWS, "tensor"),  # [rows, kv heads, ...] keys and values
    "rows": (ROWS,),
    "whole": (),
}

_PLATFORM: contextvars.ContextVar[str | None] = contextvars.ContextVar("platform", default=None)


@dataclasses.dataclass(frozen=True)
class MeshConfig(Record):
    """Sizes of the axes of the device mesh; their product is the number of devices.

    Args:
        data (at least 1, or -1): number of replicas of the parameters; -1 takes the devices that
            the other axes leave.
        fsdp: devices over which parameters and batches are both cut.
        expert: devices over which the experts of a mixture and batches are both cut.
        tensor: devices over which heads, hidden units and vocabulary are cut.
        sequence: devices over which the tokens of a row are cut.
    """

    data: AtLeastMinusOne = -1
    fsdp: Positive = 1
    expert: Positive = 1
    tensor: Positive = 1
    sequence: Positive = 1


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """Returns the device mesh.

    Args:
        config: sizes of the axes.
        devices: all visible devices if None.

    Raises:
        ValueError: the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    product = config.fsdp * config.expert * config.tensor * config.sequence
    data = len(devices) // product if config.data == -1 else config.data
    shape = (data, config.fsdp, config.expert, config.tensor, config.sequence)
    if np.prod(shape) != len(devices):
        raise ValueError(
            f"mesh data={data} x fsdp={config.fsdp} x expert={config.expert} x"
            f" tensor={config.tensor} x sequence={config.sequence} does not make the"
            f" {len(devices)} visible devices: change the mesh fields"
        )
    # JAX makes axes of type Explicit by default, along which its partitioner decides nothing.
    return jax.make_mesh(shape, AXES, devices=devices, axis_types=(AxisType.Auto,) * len(AXES))


def row_devices(mesh: Mesh) -> int:
    """Returns the number of parts into which the rows of a batch are cut."""
    return _size(mesh, ROWS)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays that are whole on every device."""
    return NamedSharding(mesh, P())


def rows(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Returns the sharding of arrays whose rows, along `axis`, are cut over the devices."""
    return NamedSharding(mesh, P(*(None,) * axis, ROWS))


def _size(mesh: Any, axes: Any) -> int:
    return int(np.prod([mesh.shape[a] for a in ((axes,) if isinstance(axes, str) else axes or ())]))


def spec(shape: tuple[int, ...], rule: tuple[Any, ...], mesh: Any) -> P:
    """Returns the partition of an array by a rule; a dimension that its mesh axes do not divide
    stays whole, and so do dimensions beyond the rule's.

    Args:
        shape: of the array.
        rule: mesh axes by dimension.
        mesh: a mesh or an abstract mesh; all dimensions are whole if None.
    """
    # JAX refuses to cut a dimension into unequal parts.
    cuts = [
        axes if axes and mesh is not None and size % _size(mesh, axes) == 0 else None
        for size, axes in zip(shape, rule, strict=False)
    ]
    return P(*cuts)


def _spec(path: Any, leaf: Any, mesh: Any) -> P | None:
    """Returns the partition of the array at `path` of a tree, by the last name that has a rule."""
    # An optimizer has the tree of parameters below names of its own, and some have arrays of fewer
    # dimensions there (Adafactor): the rule must have as many.
    for entry in reversed(path):
        rule = RULES.get(str(getattr(entry, "key", getattr(entry, "name", ""))))
        if rule is not None and len(rule) == np.ndim(leaf):
            return spec(np.shape(leaf), rule, mesh)
    return None


def tree_shardings(tree: Any, mesh: Mesh) -> Any:
    """Returns the shardings of parameters, or of any tree that contains arrays under the
    parameters' names, such as an optimizer's state.

    A dimension that its mesh axis does not divide stays whole, and so do arrays without a rule.
    """

    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, _spec(path, leaf, mesh) or P()), tree
    )


def laid_out(tree: Any, mesh: Mesh) -> Any:
    """Returns a tree of parameters laid out over the mesh; arrays that are so already are not
    copied.
    """
    leaves, structure = jax.tree.flatten(tree)
    shardings = jax.tree.leaves(tree_shardings(tree, mesh))
    away = [i for i, x in enumerate(leaves) if x.sharding != shardings[i]]
    if away:
        move = jax.jit(lambda *xs: xs, out_shardings=tuple(shardings[i] for i in away))
        for i, x in zip(away, move(*(leaves[i] for i in away)), strict=True):
            leaves[i] = x
    return jax.tree.unflatten(structure, leaves)


@contextlib.contextmanager
def use(mesh: Mesh | None) -> Iterator[None]:
    """A context in which traced programs place their activations on the mesh, and choose kernels
    for its platform.
    """
    if mesh is None:
        yield
        return
    # `grre compile` traces for a TPU on a machine without one: the default backend is another.
    token = _PLATFORM.set(mesh.devices.flat[0].platform)
    try:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            yield
    finally:
        _PLATFORM.reset(token)


def platform() -> str:
    """Returns the platform to compile for, "cpu", "gpu" or "tpu": that of the mesh in use, or the
    default backend's.
    """
    name = _PLATFORM.get() or jax.default_backend()
    return "gpu" if name in ("cuda", "rocm") else name


def current() -> Any:
    """Returns the abstract mesh in use; None without one, or if it has one device."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh is None or mesh.empty or mesh.size == 1 else mesh


def part(shape: tuple[int, ...], kind: str) -> P:
    """Returns the partition of an activation over the mesh in use, by its kind in `ACTIVATIONS`."""
    return spec(shape, ACTIVATIONS[kind], current())


def mapped(call: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Returns a function that runs `call` on each device's parts of the arrays; `call` without a
    mesh in use.
    """
    mesh = current()
    if mesh is None:
        return call
    return jax.shard_map(call, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def constrain(x: Array, kind: str) -> Array:
    """Returns an activation laid out over the mesh in use, by its kind in `ACTIVATIONS`."""
    if current() is None:
        return x
    return jax.lax.with_sharding_constraint(x, part(x.shape, kind))


def constrain_parameters(tree: Any) -> Any:
    """Returns a tree of arrays under the parameters' names, such as gradients, laid out over the
    mesh in use like the parameters.
    """
    mesh = current()
    if mesh is None:
        return tree

    def one(path, leaf):
        part = _spec(path, leaf, mesh)
        return leaf if part is None else jax.lax.with_sharding_constraint(leaf, part)

    return jax.tree_util.tree_map_with_path(one, tree)


def gathered(parameter: Array, name: str, dtype: Any, *, layered: bool = True) -> Array:
    """Returns a parameter as it enters a product: in the compute dtype, and whole along fsdp.

    It is cast before it is gathered, so that half the bytes travel in bfloat16. Its gradient is cut
    in the same dtype as soon as it exists: such a reduction is a reduce-scatter, with half the
    bytes of an all-reduce.

    Args:
        parameter: the parameter or one layer of it.
        name: in `RULES`.
        dtype: of the product.
        layered: the rule's first axis, the layers, is not in `parameter`.
    """
    x = parameter.astype(dtype)
    mesh = current()
    rule = RULES.get(name)
    if mesh is None or rule is None:
        return x
    first = 1 if layered else 0
    cut = spec(x.shape, rule[first:], mesh)
    return _gather(x, cut, spec(x.shape, without_fsdp(name)[first:], mesh))


def without_fsdp(name: str) -> tuple[str | None, ...]:
    """Returns the rule of a parameter that is whole along fsdp."""
    return tuple(None if axes == "fsdp" else axes for axes in RULES[name])


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gather(x: Array, cut: P, whole: P) -> Array:
    return jax.lax.with_sharding_constraint(x, whole)


_gather.defvjp(
    lambda x, cut, whole: (_gather(x, cut, whole), None),
    # The transpose of a constraint is the same constraint: the gradient would be summed whole on
    # every device (all-reduce) and cut later.
    lambda cut, whole, _, g: (jax.lax.with_sharding_constraint(g, cut),),
)
