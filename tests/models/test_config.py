"""The numbers of a shape and what does not fit together."""

import dataclasses

import pytest

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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(num_layers=0), "num_layers: expected at least 1, got 0"),
        (dict(num_kv_heads=3), "num_kv_heads=3 must divide num_heads=4"),
        (dict(head_dim=5), "head_dim must be even"),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(BASE, **changes)
