"""The numbers of a shape and what does not fit together."""

import dataclasses

import pytest

from grre_jax.domains import ConfigError
from grre_jax.models.lora import LoraConfig

from .conftest import SHAPE


def test_flops_are_those_of_the_matrices():
    # Without attention: two for every weight of a matrix, the head among them and the embedding's
    # look-up not.
    vectors = SHAPE.num_layers * 2 * SHAPE.hidden_size + SHAPE.hidden_size
    assert SHAPE.flops_per_token(0) == 2 * (SHAPE.num_parameters - vectors)
    per_key = SHAPE.flops_per_token(5) - SHAPE.flops_per_token(4)
    assert per_key == SHAPE.num_layers * 2 * 2 * SHAPE.num_heads * SHAPE.head_dim


@pytest.mark.parametrize(
    "config, name, value",
    [
        (SHAPE, "num_kv_heads", 3),
        (SHAPE, "head_dim", 5),
        (LoraConfig(2), "targets", ()),
    ],
)
def test_what_does_not_fit_is_named(config, name, value):
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(config, **{name: value})
    assert (caught.value.field, caught.value.value) == (name, value)
