"""The draws are jax.random's own, and depend on their address only."""

import itertools

import jax
import numpy as np
import pytest

from grre_jax import random_streams
from grre_jax.errors import UsageError
from grre_jax.random_streams import Purpose, run_key
from research.in_graph.run import run_keys
from research.in_graph.warm_start import start_keys


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1])
def test_fold_in_is_that_of_jax(seed):
    data = np.array([0, 1, 5, 2**16, 2**31, 2**32 - 1], dtype=np.uint32)
    root = random_streams.root_key(seed)
    key = jax.random.key(seed, impl="threefry2x32")
    theirs = np.stack([jax.random.key_data(jax.random.fold_in(key, word)) for word in data], 1)
    compiled = jax.jit(lambda x: random_streams.fold_in(root, x))(data)
    for ours, kind in ((random_streams.fold_in(root, data), np.ndarray), (compiled, jax.Array)):
        assert all(isinstance(half, kind) and half.dtype == np.uint32 for half in ours)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_no_seed(seed):
    with pytest.raises(UsageError, match="^seed"):
        random_streams.root_key(seed)


@pytest.mark.parametrize("positions", [[2**32], [0.5], [3, -2]])
def test_no_positions(positions):
    with pytest.raises(UsageError, match="^positions"):
        random_streams.check_positions(positions)


def test_an_epoch_visits_everybody_once_in_an_order_of_its_own():
    def epoch(number, order=range(23), seed=5):
        stream = random_streams.EpochStream(seed=seed, size=23)
        return [stream[23 * number + place] for place in order]

    epochs = [epoch(number) for number in range(3)]
    assert all(sorted(each) == list(range(23)) for each in epochs)
    assert len(set(map(tuple, epochs))) == 3 and epoch(0) == epochs[0] != epoch(0, seed=6)
    assert epoch(1, reversed(range(23))) == epochs[1][::-1]  # in any order of asking


SEEDS = (0, 1, 2, 3, 13, 14, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 2**63 - 1)


def words(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_purposes_keep_their_numbers():
    # Stored data and runs are repeated by these: a renumbering would change their draws.
    names = (
        "INIT QUESTION CORRUPTION SPLIT ORDER LORA SAMPLE REPLAY MIX EXPLORE EVALUATE SHAPE"
        " WARM_START STUDY STUDY_START FLAW ENVIRONMENT"
    )
    assert random_streams.VERSION == 2
    assert [(p.name, int(p)) for p in Purpose] == [(n, i) for i, n in enumerate(names.split())]


def test_no_two_purposes_or_seeds_or_studies_share_a_key():
    """Neither do the keys of numpy and jax, but for the same seed and purpose."""
    keys = {}
    for seed, purpose in itertools.product(SEEDS, Purpose):
        key = words(run_key(seed, purpose))
        assert key == tuple(int(word[0]) for word in random_streams.purpose_key(seed, purpose))
        keys.setdefault(key, []).append((seed, purpose))
    for seed in SEEDS:
        root = tuple(int(word[0]) for word in random_streams.root_key(seed))
        keys.setdefault(root, []).append(seed)
    for number in range(30):
        for key in (*run_keys(number), *start_keys(number)):
            keys.setdefault(words(key), []).append(number)
    assert len(keys) == len(SEEDS) * (len(Purpose) + 1) + 30 * 5
    assert all(len(users) == 1 for users in keys.values())


def test_a_key_is_the_same_whatever_kind_jax_makes():
    key = run_key(1, Purpose.EXPLORE)
    # A stored run is repeated by it.
    assert words(key) == words(jax.random.fold_in(jax.random.key(1), 9))
    with jax.default_prng_impl("rbg"):
        assert run_key(1, Purpose.EXPLORE) == key
