"""Groups need not be contiguous, sorted or equal in size, and padding belongs to none."""

import jax
import numpy as np

from grre_jax.objectives.groups import segment_groups

IDS = np.array([40, -1, 7, 40, 7, 7, 0])
VALUES = np.array([1.0, np.nan, 2.0, 3.0, 2.0, 5.0, -4.0], np.float32)


@jax.jit
def reductions(ids, values):
    groups = segment_groups(ids)
    return (
        groups.sum(values),
        groups.mean(values),
        groups.max(values),
        groups.min(values),
        groups.sizes,
        groups.count,
        groups.alike(values),
    )


def test_reductions_over_interleaved_groups():
    total, mean, largest, smallest, sizes, count, alike = (
        np.asarray(value) for value in reductions(IDS, VALUES)
    )
    live = IDS >= 0
    np.testing.assert_array_equal(total[live], [4, 9, 4, 9, 9, -4])
    np.testing.assert_array_equal(mean[live], [2, 3, 2, 3, 3, -4])
    np.testing.assert_array_equal(largest[live], [3, 5, 3, 5, 5, -4])
    np.testing.assert_array_equal(smallest[live], [1, 2, 1, 2, 2, -4])
    np.testing.assert_array_equal(sizes[live], [2, 3, 2, 3, 3, 1])
    np.testing.assert_array_equal(alike[live], [False, False, False, False, False, True])
    assert count == 3
