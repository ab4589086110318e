"""The numbers of a shape and what does not fit together."""

import dataclasses

import pytest

from grre_jax.domains import ConfigError
from grre_jax.models import ModelConfig

BASE = ModelConfig(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
)


def test_flops_are_those_of_the_matrices():
    # Without attention: two for every weight of a matrix, the head among them and the embedding's
    # look-up not.
    vectors = BASE.num_layers * 2 * BASE.hidden_size + BASE.hidden_size
    assert BASE.flops_per_token(0) == 2 * (BASE.num_parameters - vectors)
    per_key = BASE.flops_per_token(5) - BASE.flops_per_token(4)
    assert per_key == BASE.num_layers * 2 * 2 * BASE.num_heads * BASE.head_dim


@pytest.mark.parametrize("name, value", [("num_layers", 0), ("num_kv_heads", 3), ("head_dim", 5)])
def test_what_does_not_fit_is_named(name, value):
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(BASE, **{name: value})
    assert (caught.value.field, caught.value.value) == (name, value)
