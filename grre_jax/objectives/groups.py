"""Groups: the responses that answer the same prompt.

Everything group-relative is a reduction over the responses of a group, read back at each of them.
Group ids are arbitrary integers: they need not be contiguous, sorted or adjacent, groups may have
different sizes, and a negative id (-1 by convention) marks a padding response without a group.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Groups:
    """The partition of the responses of a batch into groups.

    Attributes:
        segments: [responses] the group of each response, numbered densely from 0 (padding responses
            have a number of their own).
        live: [responses] True where the response counts; False on padding.
    """

    segments: Int[Array, " responses"]
    live: Bool[Array, " responses"]

    def sum(self, values: Num[Array, " responses"]) -> Num[Array, " responses"]:
        """Sums `values` over the live responses of each group, read at every response."""
        total = jax.ops.segment_sum(
            jnp.where(self.live, values, 0), self.segments, self.segments.size
        )
        return total[self.segments]

    def mean(self, values: Num[Array, " responses"]) -> Float[Array, " responses"]:
        """Averages `values` over the live responses of each group, read at every response."""
        return self.sum(values) / jnp.maximum(self.sizes, 1).astype(values.dtype)

    def max(self, values: Num[Array, " responses"]) -> Float[Array, " responses"]:
        """Takes the largest of `values` over the live responses of each group, read at every
        response; -inf without any.
        """
        largest = jax.ops.segment_max(
            jnp.where(self.live, values, -jnp.inf), self.segments, self.segments.size
        )
        return largest[self.segments]

    def min(self, values: Num[Array, " responses"]) -> Float[Array, " responses"]:
        """Takes the smallest of `values` over the live responses of each group, read at every
        response; inf without any.
        """
        return -self.max(-values)

    @property
    def sizes(self) -> Int[Array, " responses"]:
        """[responses] live responses of each response's group."""
        return self.sum(jnp.ones_like(self.segments))

    @property
    def count(self) -> Int[Array, ""]:
        """The number of groups with a live response."""
        present = jax.ops.segment_max(
            self.live.astype(jnp.int32), self.segments, self.segments.size
        )
        return jnp.sum(present > 0)  # an empty segment's maximum is the smallest integer

    def alike(self, values: Num[Array, " responses"]) -> Bool[Array, " responses"]:
        """Returns True at the responses whose group has one value throughout, groups of one
        included.

        Decided by max = min: `values - mean(values) == 0` is false in floating point for most
        values.
        """
        return self.max(values) == self.min(values)


def concrete(values) -> np.ndarray | None:
    """Returns the values as a NumPy array, or None if they are traced."""
    return None if values is None or isinstance(values, jax.core.Tracer) else np.asarray(values)


def group_ids_array(groups: Int[Array, " responses"]) -> Int[Array, " responses"]:
    """Converts group ids to the integers of a device: ids beyond 32 bits are numbered anew, which
    gives the same partition.

    Args:
        groups: [responses] integers, negative on padding.

    Raises:
        ValueError: if groups is None, or not integers.
    """
    if groups is None:
        raise ValueError(
            "groups is missing: every response needs the id of its group (-1 on padding)"
        )
    known = concrete(groups)
    dtype = groups.dtype if known is None else known.dtype
    if dtype.kind not in "iu" and not (known is not None and known.size == 0):
        raise ValueError(
            "groups must be integers, equal for the responses of one prompt and -1 on padding, not"
            f" {dtype}"
        )
    if known is not None and (known != known.astype(np.int32)).any():
        _, places = np.unique(known, return_inverse=True)
        groups = np.where(known < 0, -1, places.reshape(known.shape)).astype(np.int32)
    return jnp.asarray(groups)


def judged_groups(
    rewards: Float[Array, " responses"], group_ids: Int[Array, " responses"]
) -> Int[Array, " responses"]:
    """Returns group ids in which responses without a verdict are padding.

    Args:
        rewards: [responses] NaN for a response without a verdict.
        group_ids: [responses] negative on padding.

    Returns:
        [responses] -1 for those, and for the rest of a group that has fewer than two verdicts
        because of them, since it then has no signal.
    """
    absent = jnp.isnan(rewards) & (group_ids >= 0)
    groups = segment_groups(group_ids)
    lost = groups.sum(absent.astype(jnp.int32))
    return jnp.where(absent | ((lost > 0) & (groups.sizes - lost < 2)), -1, group_ids)


def check_finite(name: str, values, live: np.ndarray | None = None, *, nan: bool = False) -> None:
    """Checks that values that are not traced are finite real numbers, or NaN if `nan`, where
    `live`.

    Raises:
        ValueError: naming the array, the index and the value.
    """
    known = concrete(values)
    if known is None:
        return
    if known.dtype.kind not in "biufV":
        raise ValueError(f"{name} must be real numbers, not {known.dtype}")
    numbers = known.astype(np.float64)
    bad = ~(np.isfinite(numbers) | (nan & np.isnan(numbers)))
    if live is not None and live.shape == bad.shape:
        bad &= live
    if bad.any():
        index = np.flatnonzero(bad)[0]
        raise ValueError(f"{name}[{index}] is {known.reshape(-1)[index]}: {name} must be finite")


def segment_groups(group_ids: Int[Array, " responses"]) -> Groups:
    """Partitions responses by their group id.

    Args:
        group_ids: [responses] arbitrary integers, equal for the responses of one prompt; negative
            for padding.

    Returns:
        The `Groups`; jit-able, the number of groups need not be known.
    """
    group_ids = jnp.asarray(group_ids)
    _, segments = jnp.unique(group_ids, size=group_ids.size, return_inverse=True)
    return Groups(segments=segments.reshape(-1).astype(jnp.int32), live=group_ids >= 0)
