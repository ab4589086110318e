"""The draws are jax.random's own, and depend on their address only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grre_jax.errors import UsageError
from grre_jax.tasks import addressing


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
def test_fold_in_is_that_of_jax(seed):
    data = np.array([0, 1, 5, 2**16, 2**31, 2**32 - 1], dtype=np.uint32)
    ours = np.stack(addressing.fold_in(addressing.root_key(seed), data), axis=1)
    key = jax.random.key(seed, impl="threefry2x32")
    theirs = np.stack([jax.random.key_data(jax.random.fold_in(key, word)) for word in data])
    np.testing.assert_array_equal(ours, theirs)


def test_numpy_and_jax_agree_also_under_jit():
    data = np.arange(1000, dtype=np.uint32)
    ours = addressing.fold_in(addressing.purpose_key(3, addressing.QUESTION), data)
    theirs = jax.jit(lambda x: addressing.fold_in(addressing.purpose_key(3, addressing.QUESTION), x))(jnp.asarray(data))
    for left, right in zip(ours, theirs, strict=True):
        assert isinstance(left, np.ndarray) and isinstance(right, jax.Array) and left.dtype == right.dtype == np.uint32
        np.testing.assert_array_equal(left, right)


def test_a_seed_has_a_high_word_too():
    low, high = (np.stack(addressing.fold_in(addressing.root_key(seed), addressing.address(1))) for seed in (1, 2**32 + 1))
    assert (low != high).any()


def test_the_bits_are_spread_evenly():
    left, right = addressing.fold_in(addressing.purpose_key(0, addressing.QUESTION), np.arange(100_000, dtype=np.uint32))
    for word in (left, right):
        counts = np.bincount(word % 10, minlength=10)
        assert ((counts - 10_000) ** 2 / 10_000).sum() < 28  # chi-square with 9 degrees of freedom: p = 0.001
        assert abs(np.mean(word / 2**32) - 0.5) < 0.004


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, "1", True, None])
def test_no_seed(seed):
    with pytest.raises(UsageError, match="seed="):
        addressing.root_key(seed)


@pytest.mark.parametrize("positions", [[-1], [2**32], [0.5], ["1"], [3, -2]])
def test_no_positions(positions):
    with pytest.raises(UsageError, match="positions="):
        addressing.check_positions(positions)


def test_an_epoch_visits_everybody_once_in_an_order_of_its_own():
    stream = addressing.EpochStream(seed=5, size=23)
    epochs = [[stream[23 * epoch + place] for place in range(23)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(23)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [stream[23 + place] for place in reversed(range(23))] == epochs[1][::-1]  # in any order of asking
    assert [addressing.EpochStream(5, 23)[position] for position in range(23)] == epochs[0]
    assert [addressing.EpochStream(6, 23)[position] for position in range(23)] != epochs[0]


def test_a_stream_of_nothing_and_a_position_before_it():
    with pytest.raises(ValueError, match="size=0"):
        addressing.EpochStream(0, 0)
    with pytest.raises(UsageError, match="positions="):
        addressing.EpochStream(0, 3)[-1]
