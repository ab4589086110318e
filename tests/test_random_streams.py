"""The draws are jax.random's own, and depend on their address only."""

import itertools

import jax
import jax.numpy as jnp
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
    ours = np.stack(random_streams.fold_in(random_streams.root_key(seed), data), axis=1)
    key = jax.random.key(seed, impl="threefry2x32")
    theirs = np.stack([jax.random.key_data(jax.random.fold_in(key, word)) for word in data])
    np.testing.assert_array_equal(ours, theirs)


def test_numpy_and_jax_agree_also_under_jit():
    data = np.arange(1000, dtype=np.uint32)
    ours = random_streams.fold_in(random_streams.purpose_key(3, Purpose.QUESTION), data)
    theirs = jax.jit(
        lambda x: random_streams.fold_in(random_streams.purpose_key(3, Purpose.QUESTION), x)
    )(jnp.asarray(data))
    for left, right in zip(ours, theirs, strict=True):
        assert (
            isinstance(left, np.ndarray)
            and isinstance(right, jax.Array)
            and left.dtype == right.dtype == np.uint32
        )
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, "1", True, None])
def test_no_seed(seed):
    with pytest.raises(UsageError, match="^seed: expected an integer"):
        random_streams.root_key(seed)


@pytest.mark.parametrize("positions", [[-1], [2**32], [0.5], ["1"], [3, -2]])
def test_no_positions(positions):
    with pytest.raises(UsageError, match="^positions: expected integers"):
        random_streams.check_positions(positions)


def test_an_epoch_visits_everybody_once_in_an_order_of_its_own():
    stream = random_streams.EpochStream(seed=5, size=23)
    epochs = [[stream[23 * epoch + place] for place in range(23)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(23)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [stream[23 + place] for place in reversed(range(23))] == epochs[1][
        ::-1
    ]  # in any order of asking
    assert [random_streams.EpochStream(5, 23)[position] for position in range(23)] == epochs[0]
    assert [random_streams.EpochStream(6, 23)[position] for position in range(23)] != epochs[0]


def test_a_stream_of_nothing_and_a_position_before_it():
    with pytest.raises(ValueError, match="^size: expected at least 1, got 0"):
        random_streams.EpochStream(0, 0)
    with pytest.raises(UsageError, match="^positions: expected integers"):
        random_streams.EpochStream(0, 3)[-1]


SEEDS = (0, 1, 2, 3, 13, 14, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 2**63 - 1)


def words(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_purposes_keep_their_numbers():
    # Stored data and runs are repeated by these: a renumbering would change their draws.
    assert random_streams.VERSION == 2
    assert {p.name: int(p) for p in Purpose} == {
        "INIT": 0,
        "QUESTION": 1,
        "CORRUPTION": 2,
        "SPLIT": 3,
        "ORDER": 4,
        "LORA": 5,
        "SAMPLE": 6,
        "REPLAY": 7,
        "MIX": 8,
        "EXPLORE": 9,
        "EVALUATE": 10,
        "SHAPE": 11,
        "WARM_START": 12,
        "STUDY": 13,
        "STUDY_START": 14,
        "FLAW": 15,
        "ENVIRONMENT": 16,
    }


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


@pytest.mark.parametrize("seed", SEEDS)
def test_a_question_shares_no_bits_with_its_completions(seed):
    positions = np.arange(50, dtype=np.uint32)
    question = random_streams.fold_in(random_streams.purpose_key(seed, Purpose.QUESTION), positions)
    question = set(zip(*(word.tolist() for word in question), strict=True))
    for purpose in (Purpose.EXPLORE, Purpose.EVALUATE, Purpose.SAMPLE):
        parents = jax.vmap(jax.random.fold_in, (None, 0))(run_key(seed, purpose), positions)
        parents = set(map(tuple, np.asarray(jax.random.key_data(parents)).tolist()))
        rows = {
            words(jax.random.fold_in(jax.random.fold_in(parent, attempt), index))
            for parent in [jax.random.fold_in(run_key(seed, purpose), 0)]
            for attempt in range(2)
            for index in range(4)
        }
        assert len(parents) == 50 and not question & (parents | rows)


def test_every_bit_of_a_seed_counts_whatever_kind_of_key_jax_makes():
    keys = [run_key(seed, Purpose.EXPLORE) for seed in SEEDS]
    assert len({words(key) for key in keys}) == len(SEEDS)
    # A stored run is repeated by these.
    assert words(keys[1]) == words(jax.random.fold_in(jax.random.key(1), 9))
    with jax.default_prng_impl("rbg"):
        assert run_key(1, Purpose.EXPLORE) == keys[1]
