"""The flat layout and the counts of a batch."""

import dataclasses

import jax
import numpy as np
import pytest

from grre_jax import objectives

MASK = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1]])
GROUPS = np.array([5, 2, 5, 2, -1])
DROPPED = np.array([False, False, True, False, False])


def batch(**changes):
    return objectives.padded_batch(
        **{"advantages": np.zeros(5), "mask": MASK, "groups": GROUPS, "dropped": DROPPED, **changes}
    )


def test_padded_batch_is_flat():
    flat = batch(old_logprobs=np.arange(15.0).reshape(5, 3), rewards=np.ones(5))
    np.testing.assert_array_equal(flat.response_ids, np.repeat(np.arange(5), 3))
    np.testing.assert_array_equal(flat.mask, MASK.reshape(-1).astype(bool))
    np.testing.assert_array_equal(flat.old_logprobs, np.arange(15))
    assert flat.ref_logprobs is None and flat.mask.dtype == bool


def test_nothing_is_asked_of_padding():
    assert (
        batch(
            advantages=np.array([0, 0, 0, 0, np.nan]), rewards=np.array([0, 0, 0, 0, np.nan])
        ).advantages.size
        == 5
    )


def test_wide_group_ids_part_responses_as_they_are():
    """Ids beyond 32 bits, such as hashes, would wrap around on a device: two groups could meet,
    or one become padding.
    """
    wide = np.array([2**32 + 5, 2**33 + 5, 2**32 + 5, 2**33 + 5, -1])
    rewards = np.array([0.0, 1.0, 1.0, 3.0, np.nan])
    reinforce = objectives.algorithm("reinforce")
    np.testing.assert_array_equal(
        objectives.advantages(reinforce, rewards, wide),
        objectives.advantages(reinforce, rewards, GROUPS),
    )
    np.testing.assert_array_equal(
        objectives.batch_stats(batch(groups=wide)).all.group_sizes,
        objectives.batch_stats(batch()).all.group_sizes,
    )


def test_counts():
    stats = objectives.batch_stats(batch(expert=np.array([0, 0, 1, 0, 1])))
    assert (stats.tokens, stats.kept.tokens, stats.expert.tokens, stats.own.tokens) == (6, 3, 3, 3)
    assert (
        stats.all.responses,
        stats.kept.responses,
        stats.expert.responses,
        stats.own.responses,
    ) == (4, 3, 1, 3)
    assert stats.all.groups == 2
    np.testing.assert_array_equal(stats.response_tokens, [2, 1, 3, 0, 0])
    np.testing.assert_array_equal(stats.all.group_sizes, [2, 2, 2, 2, 0])
    np.testing.assert_array_equal(stats.kept.group_sizes, [1, 2, 1, 2, 0])


def test_counts_of_micro_batches_add_up_under_jit():
    whole = batch()
    count = jax.jit(objectives.batch_stats)
    added = count(whole.select_tokens(slice(0, 6))) + count(whole.select_tokens(slice(6, None)))
    jax.tree.map(np.testing.assert_array_equal, added, count(whole))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": None}, "groups is missing"),
        ({"groups": GROUPS[:4]}, r"advantages must be \[responses\]"),
        ({"advantages": np.zeros((5, 3))}, r"advantages must be \[responses\]"),
        ({"old_logprobs": np.zeros((5, 2))}, "old_logprobs must be"),
        ({"ref_logprobs": np.zeros(15)}, "ref_logprobs must be"),
        ({"rewards": np.zeros(4)}, "rewards must be"),
        ({"mask": np.ones(15)}, "mask must be"),
        ({"mask": np.where(MASK == 1, 0.5, 0.0)}, "mask must hold 0 and 1.*not 0.5"),
        ({"advantages": None}, "advantages of shape .responses., got None"),
        ({"advantages": np.array([0, 0, np.nan, 0, 0])}, r"advantages\[2\] is nan"),
        ({"rewards": np.array([0, np.inf, 0, 0, 0])}, r"rewards\[1\] is inf"),
        ({"staleness": np.zeros(4)}, "staleness must be"),
        ({"staleness": np.array([0, 1, -1, 0, 0])}, "staleness must be at least 0"),
        ({"groups": GROUPS / 2}, "groups must be integers"),
        ({"groups": np.array(["a", "b", "a", "b", "c"])}, "groups must be integers"),
    ],
)
def test_shapes_that_disagree_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        batch(**changes)


def test_counts_check_shapes_too():
    with pytest.raises(ValueError, match="response_ids must be"):
        objectives.batch_stats(dataclasses.replace(batch(), response_ids=np.zeros(3, int)))
