"""The numbers of a shape and what does not fit together."""

import dataclasses

import pytest

from grre_jax.domains import ConfigError
from grre_jax.models.lora import LoraConfig

from .conftest import SHAPE


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
