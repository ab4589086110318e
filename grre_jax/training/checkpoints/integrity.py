"""Checksums of a state's arrays, stored with a checkpoint and compared when it is read: neither
Orbax nor TensorStore notices a damaged bit in an array's data.

An array's checksum is the sum of its elements' bits, as unsigned integers modulo 2**32. It changes
with any single damaged bit. It does not depend on the order of the elements, so it is the same on
any mesh, is computed where the array's parts are, and costs one pass over them.
"""

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

SUFFIX = "_checksums"
# By bytes of an element; eight are two words.
UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


@jax.jit
def of(tree: Any) -> Any:
    """Returns for each array its checksum and a number for its dtype, uint32 [2]."""
    return jax.tree.map(_sum, tree)


def digest(params: Any) -> str:
    """Returns the SHA-256 (hexadecimal) over the name, dtype, shape and checksum of every array,
    which identifies a policy on any mesh.
    """
    arrays = jax.tree_util.tree_leaves_with_path(params)
    sums = jax.device_get(of(params))
    named = zip(arrays, jax.tree.leaves(sums), strict=True)
    text = "".join(
        f"{jax.tree_util.keystr(path)} {x.dtype} {x.shape} {int(checksum[0])}\n"
        for (path, x), checksum in named
    )
    return hashlib.sha256(text.encode()).hexdigest()


def abstract(tree: Any) -> Any:
    """Returns shapes, dtypes and shardings of `of(tree)`; the arrays may be deleted."""

    def one(x):
        whole = x.sharding
        if isinstance(whole, NamedSharding):
            # Two numbers, whole on every device however the array is cut.
            whole = NamedSharding(whole.mesh, PartitionSpec())
        return jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=whole)

    return jax.tree.map(one, tree)


def beside(parts: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts of a checkpoint, and beside each its checksums."""
    return parts | {name + SUFFIX: of(part) for name, part in parts.items()}


def asked_beside(parts: dict[str, Any], has: Callable[[str], bool]) -> dict[str, Any]:
    """Returns what to load from a checkpoint: parts as shapes, dtypes and shardings, and the
    checksums of those that have them (checkpoints of earlier versions have none).
    """
    return parts | {
        name + SUFFIX: abstract(part) for name, part in parts.items() if has(name + SUFFIX)
    }


def checked(loaded: dict[str, Any]) -> dict[str, Any]:
    """Returns the loaded parts, after a comparison with their checksums.

    Raises:
        ValueError: arrays differ from the stored ones; names them.
    """
    parts = {name: part for name, part in loaded.items() if not name.endswith(SUFFIX)}
    for name, part in parts.items():
        if name + SUFFIX in loaded:
            now, stored = jax.device_get((of(part), loaded[name + SUFFIX]))
            # An array that was converted to another dtype as it was read cannot be compared.
            differs = jax.tree.map(lambda a, b: a[1] == b[1] and a[0] != b[0], now, stored)
            named = jax.tree_util.tree_leaves_with_path(differs)
            if damaged := [jax.tree_util.keystr(path) for path, differs in named if differs]:
                raise ValueError(f"{name}: {damaged} are not what was stored, by their checksums")
    return parts


def _sum(x: jax.Array) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(x, UNSIGNED[x.dtype.itemsize])
    kind = jnp.uint32(zlib.crc32(str(x.dtype).encode()))
    # Unsigned sums wrap around, which is the modulus: the order of the elements does not matter.
    return jnp.stack([bits.astype(jnp.uint32).sum(dtype=jnp.uint32), kind])
