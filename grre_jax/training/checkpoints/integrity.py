"""Checksums of a state's arrays, stored with a checkpoint and compared when it is read: neither
Orbax nor TensorStore notices a damaged bit in an array's data.

An array's checksum is the sum of its elements' bits, as unsigned integers modulo 2**32. It changes
with any single damaged bit. It does not depend on the order of the elements, so it is the same on
any mesh, is computed where the array's parts are, and costs one pass over them.
"""

import hashlib
import zlib
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


def check(name: str, part: Any, sums: Any) -> None:
    """Compares a part of a checkpoint with its checksums.

    Args:
        name: of the part.
        part: its arrays, as they were read.
        sums: result of `of`, as it was stored.

    Raises:
        ValueError: arrays differ from the stored ones; names them.
    """
    now, stored = jax.device_get((of(part), sums))
    # An array that was converted to another dtype as it was read cannot be compared.
    differs = jax.tree.map(lambda a, b: a[1] == b[1] and a[0] != b[0], now, stored)
    named = jax.tree_util.tree_leaves_with_path(differs)
    if damaged := [jax.tree_util.keystr(path) for path, differs in named if differs]:
        raise ValueError(f"{name}: {damaged} are not what was stored, by their checksums")


def _sum(x: jax.Array) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(x, UNSIGNED[x.dtype.itemsize])
    kind = jnp.uint32(zlib.crc32(str(x.dtype).encode()))
    # Unsigned sums wrap around, which is the modulus: the order of the elements does not matter.
    return jnp.stack([bits.astype(jnp.uint32).sum(dtype=jnp.uint32), kind])
