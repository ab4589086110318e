"""The flat layout and the counts of a batch."""

import numpy as np
import pytest

from grre_jax import objectives

GROUPS = np.array([5, 2, 5, 2, -1])
FIELDS = {"advantages": np.zeros(5), "mask": np.eye(5, 3), "groups": GROUPS}


def test_wide_group_ids_part_responses_as_they_are():
    """Ids beyond 32 bits, such as hashes, would wrap around on a device: two groups could meet,
    or one become padding.
    """
    wide = np.array([2**32 + 5, 2**33 + 5, 2**32 + 5, 2**33 + 5, -1, 0, 0])
    rewards = np.array([0.0, 1.0, 1.0, 3.0, np.nan, 2.0, 5.0])
    reinforce = objectives.algorithm("reinforce")
    np.testing.assert_array_equal(
        objectives.advantages(reinforce, rewards, wide),
        objectives.advantages(reinforce, rewards, np.append(GROUPS, [7, 7])),
    )


@pytest.mark.parametrize(
    "name, value",
    [
        ("advantages", np.array([0, 0, np.nan, 0, 0])),
        ("mask", np.full((5, 3), 0.5)),
        ("old_logprobs", np.zeros((5, 2))),
        ("staleness", np.array([0, 1, -1, 0, 0])),
    ],
)
def test_shapes_that_disagree_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"^{name}"):
        objectives.padded_batch(**FIELDS | {name: value})
