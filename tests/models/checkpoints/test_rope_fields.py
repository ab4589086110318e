"""The rotary embedding's fields in the layouts of transformers 4 and 5."""

import math

import pytest

from grre_jax.domains import ConfigError
from grre_jax.models.checkpoints import rope_fields
from grre_jax.models.checkpoints.rope_fields import read
from grre_jax.models.config import ModelConfig, RopeScaling

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SCALED = RopeScaling("llama3", 8.0, 1.0, 4.0, 64)


HALF = {name: value for name, value in LLAMA3.items() if "original" not in name}
FIVE = {"full_attention": LLAMA3 | {"rope_theta": 5.0}, "sliding_attention": {"rope_theta": 6.0}}
OLD_FIVE = {"rope_theta": 5.0, "rope_local_base_freq": 6.0, "rope_scaling": LLAMA3}
BOTH = {"rope_scaling": LLAMA3, "rope_parameters": LLAMA3 | {"rope_theta": 7.0}}
LINEAR = {"type": "linear", "factor": 2}


@pytest.mark.parametrize(
    "values, layered, found",
    [
        # one embedding for all layers
        ({}, False, (10_000.0, None, 0.0)),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, False, (7.0, None, 0.0)),
        ({"rope_theta": 3, "rope_scaling": LINEAR}, False, (3.0, RopeScaling("linear", 2.0), 0.0)),
        ({"rope_theta": 7.0, **BOTH}, False, (7.0, SCALED, 0.0)),
        (
            {"rope_scaling": HALF, "original_max_position_embeddings": 64},
            False,
            (1e4, SCALED, 0.0),
        ),
        # one for full and one for sliding layers
        ({}, True, (1e4, None, 1e4)),
        (OLD_FIVE, True, (5.0, SCALED, 6.0)),
        ({"rope_parameters": FIVE}, True, (5.0, SCALED, 6.0)),
        ({"rope_parameters": {"full_attention": None}, "rope_theta": 5.0}, True, (5.0, None, 1e4)),
    ],
)
def test_both_layouts(values, layered, found):
    assert read(values, layered=layered) == found


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "fields, attention_factor",
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 1.5, "mscale": 2.0, "mscale_all_dim": 1.0}, 1.5),
        (
            {"mscale": 2.0, "mscale_all_dim": 0.5},
            (0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1),
        ),
        ({"factor": 0.5}, 1.0),
    ],
)
def test_yarn_is_read_with_its_defaults_and_written(fields, attention_factor):
    theta, scaling, _ = read({"rope_scaling": YARN | fields}, layered=False)
    assert (scaling.kind, scaling.original_positions) == ("yarn", 64)
    assert (scaling.beta_fast, scaling.beta_slow, scaling.truncate) == (32.0, 1.0, True)
    assert scaling.attention_factor == pytest.approx(attention_factor, rel=1e-12)
    shape = dict(vocab_size=9, hidden_size=4, intermediate_size=4, num_layers=1, num_heads=2)
    config = ModelConfig(**shape, num_kv_heads=2, head_dim=2, rope_scaling=scaling)
    written = rope_fields.write(config, layered=False)
    assert read(written, layered=False) == (theta, scaling, 0.0)


@pytest.mark.parametrize(
    "layered, named, values",
    [
        (False, "rope_parameters.rope_theta", {"rope_parameters": {"rope_theta": -1.0}}),
        (False, "rope_theta", {"rope_theta": 7.0, "rope_parameters": {"rope_theta": 8.0}}),
        (
            False,
            "original_max_position_embeddings",
            {"rope_scaling": LLAMA3, "original_max_position_embeddings": 16},
        ),
        (False, "high_freq_factor", {"rope_scaling": LLAMA3 | {"high_freq_factor": 0.5}}),
        (True, "rope_scaling.type", {"rope_scaling": LINEAR}),
        (False, "rope_scaling.rope_type", {"rope_scaling": {"type": "dynamic"}}),
        (True, "rope_parameters.rope_type", {"rope_parameters": LLAMA3}),
        (True, "sliding", {"rope_parameters": {"sliding_attention": LLAMA3}}),
        (
            True,
            "sliding_attention.rope_theta and rope_local_base_freq",
            {"rope_local_base_freq": 5.0, "rope_parameters": FIVE},
        ),
    ],
)
def test_what_is_wrong_is_named(layered, named, values):
    with pytest.raises(ConfigError, match=named):
        read(values, layered=layered)
