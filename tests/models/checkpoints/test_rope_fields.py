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


@pytest.mark.parametrize(
    "values, found",
    [
        ({}, (10_000.0, None, 0.0)),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, (7.0, None, 0.0)),
        (
            {"rope_theta": 3, "rope_scaling": {"type": "linear", "factor": 2}},
            (3.0, RopeScaling("linear", 2.0), 0.0),
        ),
        (
            {
                "rope_theta": 7.0,
                "rope_scaling": LLAMA3,
                "rope_parameters": LLAMA3 | {"rope_theta": 7.0},
            },
            (7.0, SCALED, 0.0),
        ),
        (
            {
                "rope_scaling": {k: v for k, v in LLAMA3.items() if "original" not in k},
                "original_max_position_embeddings": 16,
            },
            (1e4, RopeScaling("llama3", 8.0, 1.0, 4.0, 16), 0.0),
        ),
    ],
)
def test_one_embedding_for_all_layers(values, found):
    assert read(values, layered=False) == found


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
    "values, found",
    [
        ({}, (1e6, None, 1e4)),
        (
            {"rope_theta": 5.0, "rope_local_base_freq": 6.0, "rope_scaling": LLAMA3},
            (5.0, SCALED, 6.0),
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": LLAMA3 | {"rope_theta": 5.0},
                    "sliding_attention": {"rope_theta": 6.0},
                }
            },
            (5.0, SCALED, 6.0),
        ),
        ({"rope_parameters": {"full_attention": None}, "rope_theta": 5.0}, (5.0, None, 1e4)),
    ],
)
def test_one_for_full_and_one_for_sliding_layers(values, found):
    assert read(values, layered=True) == found


@pytest.mark.parametrize(
    "values, layered, message",
    [
        ({"rope_parameters": {"rope_theta": -1.0}}, False, "rope_parameters.rope_theta"),
        (
            {"rope_theta": 7.0, "rope_parameters": {"rope_theta": 8.0}},
            False,
            "rope_parameters.rope_theta .* rope_theta",
        ),
        (
            {"rope_scaling": LLAMA3, "original_max_position_embeddings": 16},
            False,
            "original_max_position_embeddings.* got 16",
        ),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 0.5}}, False, "high_freq_factor"),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, True, "rope_scaling.type"),
        ({"rope_scaling": {"type": "dynamic"}}, False, "rope_scaling.rope_type: .*'dynamic'"),
        ({"rope_parameters": LLAMA3}, True, "rope_parameters.rope_type"),
        ({"rope_parameters": {"sliding_attention": LLAMA3}}, True, "in sliding layers"),
        (
            {
                "rope_local_base_freq": 5.0,
                "rope_parameters": {"sliding_attention": {"rope_theta": 6.0}},
            },
            True,
            "sliding_attention.rope_theta and rope_local_base_freq: .*6.0",
        ),
    ],
)
def test_what_is_wrong_is_named(values, layered, message):
    with pytest.raises(ConfigError, match=message):
        read(values, layered=layered)
