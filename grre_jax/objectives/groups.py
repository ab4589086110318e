"""Groups: which responses answer the same prompt.

Everything group-relative is a reduction over the responses of a group, read back at each of them. Group ids are arbitrary integers: they
need not be contiguous, sorted or adjacent, groups may have different sizes, and a negative id (-1 by convention) marks a padding
response, which belongs to no group.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Groups:
    """The partition of the responses of a batch into groups.

    Attributes:
      segments: [responses] the group of each response, numbered densely from 0 (padding responses have a number of their own).
      live: [responses] True where the response counts; False on padding.
    """

    segments: Int[Array, " responses"]
    live: Bool[Array, " responses"]

    def sum(self, values: Float[Array, " responses"]) -> Float[Array, " responses"]:
        """At every response, the sum of `values` over the live responses of its group."""
        total = jax.ops.segment_sum(jnp.where(self.live, values, 0), self.segments, self.segments.size)
        return total[self.segments]

    def mean(self, values: Float[Array, " responses"]) -> Float[Array, " responses"]:
        """At every response, the mean of `values` over the live responses of its group."""
        return self.sum(values) / jnp.maximum(self.sizes, 1).astype(values.dtype)

    def max(self, values: Float[Array, " responses"]) -> Float[Array, " responses"]:
        """At every response, the largest of `values` over the live responses of its group (-inf where there is none)."""
        largest = jax.ops.segment_max(jnp.where(self.live, values, -jnp.inf), self.segments, self.segments.size)
        return largest[self.segments]

    def min(self, values: Float[Array, " responses"]) -> Float[Array, " responses"]:
        """At every response, the smallest of `values` over the live responses of its group (inf where there is none)."""
        return -self.max(-values)

    @property
    def sizes(self) -> Int[Array, " responses"]:
        """At every response, the number of live responses of its group."""
        return self.sum(jnp.ones_like(self.segments))

    @property
    def count(self) -> Int[Array, ""]:
        """The number of groups with a live response."""
        present = jax.ops.segment_max(self.live.astype(jnp.int32), self.segments, self.segments.size)
        return jnp.sum(jnp.maximum(present, 0))  # an empty segment's maximum is the smallest integer

    def alike(self, values: Float[Array, " responses"]) -> Bool[Array, " responses"]:
        """True at the responses whose group has one value throughout (groups of one included).

        Decided by max = min: `values - mean(values) == 0` is false in floating point for most values.
        """
        return self.max(values) == self.min(values)


def segment_groups(group_ids: Int[Array, " responses"]) -> Groups:
    """Partitions responses by their group id.

    Args:
      group_ids: [responses] arbitrary integers, equal for the responses of one prompt; negative for padding.

    Returns:
      The `Groups`; jit-able, the number of groups need not be known.
    """
    group_ids = jnp.asarray(group_ids)
    _, segments = jnp.unique(group_ids, size=group_ids.size, return_inverse=True)
    return Groups(segments=segments.reshape(-1).astype(jnp.int32), live=group_ids >= 0)
