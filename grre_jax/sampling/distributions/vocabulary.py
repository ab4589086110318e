"""Reductions over the vocabulary, whole or cut over a mesh axis.

Sampling needs a sum, a maximum or one block of a row of logits. If the vocabulary is cut, each
device computes these over its own columns and the devices exchange only the results: the logits are
never gathered.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num


def invert(uniforms: Float[Array, " rows"], weights: Float[Array, "rows n"]) -> Int[Array, " rows"]:
    """Draws index i with probability weights[i] / sum: the smallest whose cumulative weight exceeds
    the uniform's share of the sum.

    Entries of weight 0 are never drawn; a uniform of 0 draws the first entry with weight.

    Args:
        uniforms: [rows] in [0, 1).
        weights: [rows, n], at least 0, with one above 0 in each row. A few thousand entries at
            most: a float32 uniform has 2**23 values.
    """
    cumulative = jnp.cumsum(weights, axis=-1)
    indices = jnp.arange(weights.shape[-1])
    # Parallel prefix sums are not monotone to the last bit, so entries without weight are excluded
    # explicitly, not by their sums.
    index = jnp.where(
        (cumulative > uniforms[:, None] * cumulative[:, -1:]) & (weights > 0), indices, indices.size
    ).min(axis=-1)
    # Rounding can raise the product to the sum itself: stay on the last entry with weight.
    return jnp.minimum(index, jnp.where(weights > 0, indices, 0).max(axis=-1))


def total(x: Float[Array, "*batch vocab"], axis: str | None) -> Float[Array, "*batch"]:
    """Sums over the vocabulary, which is cut over the mesh axis `axis`, or whole if None."""
    local = x.sum(axis=-1)
    return local if axis is None else jax.lax.psum(local, axis)


def largest(x: Num[Array, "*batch vocab"], axis: str | None) -> Num[Array, "*batch"]:
    """Returns the maximum over the vocabulary, cut over `axis`."""
    local = x.max(axis=-1)
    return local if axis is None else jax.lax.pmax(local, axis)


def size(x: Float[Array, "*batch vocab"], axis: str | None) -> int:
    """Returns the number of tokens of the whole vocabulary."""
    return x.shape[-1] * (1 if axis is None else jax.lax.axis_size(axis))


def first_column(x: Float[Array, "*batch vocab"], axis: str | None) -> Int[Array, ""] | int:
    """Returns the token id of this device's first column."""
    return 0 if axis is None else x.shape[-1] * jax.lax.axis_index(axis)


def _placed(
    x: Float[Array, "rows n"], start: Int[Array, ""] | int, length: int
) -> Float[Array, "rows {length}"]:
    """Returns zeros with x at `start`."""
    return jax.lax.dynamic_update_slice_in_dim(
        jnp.zeros((x.shape[0], length), x.dtype), x, start, axis=1
    )


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The vocabulary in blocks of about its square root.

    Block b contains tokens b * width to (b + 1) * width - 1, however the vocabulary is cut over
    devices.

    Attributes:
        vocab: tokens of the whole vocabulary.
        axis: mesh axis that the vocabulary is cut over; None if it is whole.
    """

    vocab: int
    axis: str | None = None

    @property
    def width(self) -> int:
        """Tokens per block, a power of two; the last block may have fewer."""
        return 1 << math.ceil(math.log2(self.vocab) / 2)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return -(-self.vocab // self.width)

    def masses(self, weights: Float[Array, "rows columns"]) -> Float[Array, "rows blocks"]:
        """Returns each block's sum of weights, over all devices.

        Args:
            weights: [rows, columns] of this device's columns.
        """
        columns = weights.shape[-1]
        # Every device's columns begin and end on a multiple of this, and so do the blocks: sums of
        # pieces are moved into place, not single weights.
        piece = math.gcd(columns, self.width)
        pieces = weights.reshape(-1, columns // piece, piece).sum(axis=-1)
        first = first_column(weights, self.axis)
        each = self.width // piece
        # A device's first column may lie inside a block, so that its columns touch one block more.
        touched = -(-(columns + (0 if self.axis is None else self.width - piece)) // self.width)
        sums = _placed(pieces, first % self.width // piece, touched * each)
        sums = sums.reshape(-1, touched, each).sum(axis=-1)
        if self.axis is None:
            # Separates this sum from the sum of the masses: XLA would merge them, write the weights
            # to memory and read them twice.
            return jax.lax.optimization_barrier(sums)
        # The last device may touch one block less than there is room for, so the blocks are laid
        # out with this room and cut afterwards.
        masses = _placed(sums, first // self.width, self.count + touched)[:, : self.count]
        return jax.lax.psum(masses, self.axis)

    def take(
        self, logits: Float[Array, "rows columns"], block: Int[Array, " rows"]
    ) -> Float[Array, "rows width"]:
        """Returns the logits of one block per row, on every device, in float32; -inf beyond the end
        of the vocabulary.

        Args:
            logits: [rows, columns] of this device's columns.
            block: [rows] index of the block.
        """
        columns = (block * self.width)[:, None] + jnp.arange(self.width)
        columns = columns - first_column(logits, self.axis)
        values = jnp.take_along_axis(logits, columns, axis=1, mode="clip").astype(jnp.float32)
        local = jnp.where((columns >= 0) & (columns < logits.shape[-1]), values, -jnp.inf)
        # Every column is on one device; the others have -inf there.
        return local if self.axis is None else jax.lax.pmax(local, self.axis)
