"""The rotary embedding's fields, in the layouts of transformers 4 and 5."""

import math

import pytest

from grre_jax.errors import DataError
from grre_jax.models import config_from_dict
from grre_jax.models.checkpoints import rope_fields
from grre_jax.models.config import ModelConfig, RopeScaling

SIZES = dict(vocab_size=9, hidden_size=8, intermediate_size=4, num_hidden_layers=2, head_dim=4)
SIZES |= dict(num_attention_heads=2, num_key_value_heads=2)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SCALED = RopeScaling("llama3", 8.0, 1.0, 4.0, 64)
HALF = {name: value for name, value in LLAMA3.items() if "original" not in name}
LAYERED = {
    "full_attention": LLAMA3 | {"rope_theta": 5.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 6.0},
}
OLD_LAYERED = {"rope_theta": 5.0, "rope_local_base_freq": 6.0, "rope_scaling": LLAMA3}
LINEAR = {"type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    "family, values, found",
    [
        ("llama", {}, (10_000.0, None, 0.0)),
        (
            "llama",
            {"rope_theta": 3, "rope_scaling": LINEAR},
            (3.0, RopeScaling("linear", 2.0), 0.0),
        ),
        ("llama", {"rope_scaling": HALF, "max_position_embeddings": 64}, (1e4, SCALED, 0.0)),
        ("gemma3_text", OLD_LAYERED, (5.0, SCALED, 6.0)),
        ("gemma3_text", {"rope_parameters": LAYERED}, (5.0, SCALED, 6.0)),
    ],
)
def test_both_layouts(family, values, found):
    config = config_from_dict(SIZES | {"model_type": family} | values)
    assert (config.rope_theta, config.rope_scaling, config.local_rope_theta) == found


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "fields, attention_factor",
    [
        ({}, 0.1 * math.log(4) + 1),
        (
            {"mscale": 2.0, "mscale_all_dim": 0.5},
            (0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1),
        ),
    ],
)
def test_yarn_is_read_with_its_defaults_and_written(fields, attention_factor):
    rope = YARN | fields | {"rope_theta": 7.0}
    theta, scaling = rope_fields.read(rope, "", ("yarn",))
    assert (theta, scaling.kind, scaling.original_positions) == (7.0, "yarn", 64)
    assert (scaling.beta_fast, scaling.beta_slow, scaling.truncate) == (32.0, 1.0, True)
    assert scaling.attention_factor == pytest.approx(attention_factor, rel=1e-12)
    shape = dict(vocab_size=9, hidden_size=4, intermediate_size=4, num_layers=1, num_heads=2)
    config = ModelConfig(**shape, num_kv_heads=2, head_dim=2, rope_theta=7.0, rope_scaling=scaling)
    written = rope_fields.write(config, layered=False)["rope_parameters"]
    assert rope_fields.read(written, "", ("yarn",)) == (theta, scaling)


@pytest.mark.parametrize(
    "family, named, values",
    [
        ("llama", "rope_parameters.rope_theta", {"rope_parameters": {"rope_theta": -1.0}}),
        ("llama", "high_freq_factor", {"rope_scaling": LLAMA3 | {"high_freq_factor": 0.5}}),
        ("llama", "mrope_section", {"rope_scaling": LINEAR | {"mrope_section": [1, 1]}}),
        ("gemma3_text", "sliding", {"rope_parameters": LAYERED | {"sliding_attention": LLAMA3}}),
    ],
)
def test_what_is_wrong_is_named(family, named, values):
    with pytest.raises(DataError, match=named):
        config_from_dict(SIZES | {"model_type": family} | values)
