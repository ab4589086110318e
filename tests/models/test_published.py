"""Sizes of published models: their parameter counts are those that the model cards state."""

import pytest

from grre_jax.errors import UsageError
from grre_jax.models.published import PUBLISHED, published

# Weights in the checkpoints on the hub, tied heads counted once.
COUNTS = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
}


def test_parameter_counts():
    assert {name: published(name).num_parameters for name in PUBLISHED} == COUNTS


def test_an_unknown_shape_names_the_nearest():
    with pytest.raises(UsageError, match=r"model\.shape.*did you mean .qwen2\.5-7b"):
        published("qwen2.5-7")
