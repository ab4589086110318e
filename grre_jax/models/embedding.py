"""The embedding lookup, on one device or a mesh.

The table is cut over tensor (tokens) and fsdp (width). Gathering it would move the whole vocabulary
for a few tokens; instead every device looks up its columns for the tokens of its fsdp group, and an
all-to-all sends each token's columns to the device of the token. The gradient takes the same way
back, in float32, and needs no reduction over fsdp.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from grre_jax.models.array_types import Ids, Stream
from grre_jax.parallel import mesh as meshes


def embed(table: Float[Array, "vocab width"], tokens: Ids, dtype: Any) -> Stream:
    """Looks up the embeddings of tokens.

    Args:
        table: [vocab, width].
        tokens: [rows, length] token ids.
        dtype: of the result.
    """
    part = meshes.spec(table.shape, meshes.RULES["embed"], meshes.current())
    ids = meshes.part(tokens.shape, "tokens")
    # The width is cut over the axis that the rows are cut over too.
    swaps = part[1] is not None and ids[0] is not None

    def local(table, tokens):
        if swaps:
            tokens = jax.lax.all_gather(tokens, part[1], axis=0, tiled=True)
        if part[0] is None:
            x = jnp.take(table, tokens, axis=0)
        else:
            index = tokens - table.shape[0] * jax.lax.axis_index(part[0])
            here = (index >= 0) & (index < table.shape[0])
            x = jnp.where(here[..., None], jnp.take(table, jnp.where(here, index, 0), axis=0), 0)
            x = jax.lax.psum(x, part[0])
        x = x.astype(dtype)
        if not swaps:
            return x
        return jax.lax.all_to_all(x, part[1], split_axis=0, concat_axis=2, tiled=True)

    out = P(*ids, None if swaps else part[1])
    return meshes.constrain(meshes.mapped(local, (part, ids), out)(table, tokens), "stream")
