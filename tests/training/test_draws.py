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


def test_a_key_is_the_same_every_time():
    first, second = (jax.random.uniform(run_key(7, Purpose.EXPLORE), (4,)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
