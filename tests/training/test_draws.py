"""One seed, one address a purpose."""

import itertools

import jax
import numpy as np

from grre_jax.training.draws import Purpose, run_key


def test_purposes_keep_their_numbers():
    # A stored run is repeated by these: a renumbering would change its draws.
    assert {p.name: int(p) for p in Purpose} == {
        "INIT": 0,
        "EXPLORE": 1,
        "EVALUATE": 2,
        "SHAPE": 3,
        "WARM_START": 4,
        "LORA": 5,
        "SAMPLE": 6,
        "REPLAY": 7,
        "MIX": 8,
    }


def test_no_two_purposes_or_seeds_share_a_draw():
    keys = [tuple(np.asarray(jax.random.key_data(run_key(seed, purpose)))) for seed, purpose in itertools.product(range(20), Purpose)]
    assert len(set(keys)) == len(keys)


def test_every_bit_of_a_seed_counts_whatever_kind_of_key_jax_makes():
    seeds = (0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 2**63 - 1)
    keys = [run_key(seed, Purpose.EXPLORE) for seed in seeds]
    assert len({tuple(np.asarray(jax.random.key_data(key))) for key in keys}) == len(seeds)
    # A stored run is repeated by these.
    np.testing.assert_array_equal(jax.random.key_data(keys[1]), jax.random.key_data(jax.random.fold_in(jax.random.key(1), 1)))
    with jax.default_prng_impl("rbg"):
        assert run_key(1, Purpose.EXPLORE) == keys[1]


def test_a_key_is_the_same_every_time():
    first, second = (jax.random.uniform(run_key(7, Purpose.EXPLORE), (4,)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
