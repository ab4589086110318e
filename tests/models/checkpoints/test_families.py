"""config.json to the model's shape and back, with the rotary fields of transformers 4 and 5."""

import math

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.models import ModelConfig, config_from_dict, config_to_dict
from grre_jax.models.checkpoints.families import FAMILIES
from grre_jax.models.config import RopeScaling

from .test_fields import SIZES


def shape(family, **changes):
    sizes = {
        "vocab_size": 11,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 6,
        "rope_theta": 123_456.0,
        "eos_ids": (1, 2),
    }
    return ModelConfig(**sizes | FAMILIES[family].fixed | changes, family=family)


LINEAR = {"rope_scaling": RopeScaling("linear", 8.0)}
LLAMA3 = {"rope_scaling": RopeScaling("llama3", 8.0, 1.5, 5.0, 64)}
BIASED = {"qkv_bias": True, "attention_out_bias": True}
MIXED = {"sliding_window": 3, "sliding_layers": (False, True)}
ALL = {"sliding_window": 3, "sliding_layers": (True, True)}
MULTIPLIED = {"embedding_multiplier": 0.7, "residual_multiplier": 0.3, "logit_divisor": 3.0}
LOCAL = MIXED | {"local_rope_theta": 9.0}
PARTIAL = {"head_dim": 10, "rotary_share": 0.4}
EXPRESSIBLE = [
    ("llama", {}),
    ("llama", LLAMA3 | BIASED | {"tie_embeddings": False, "eos_ids": ()}),
    ("qwen2", {"max_positions": 77, "eos_ids": (4,)}),
    ("qwen2", MIXED),
    ("qwen3", BIASED | ALL),
    ("gemma3", {}),
    ("gemma3", LOCAL | LINEAR | {"query_scale": 7.0, "logit_softcap": 30.0}),
    ("mistral", ALL | LLAMA3),
    ("ministral", MIXED),
    ("seed_oss", {"qkv_bias": False, "attention_out_bias": True}),
    ("gemma", BIASED),
    ("olmo2", BIASED),
    ("olmo3", LOCAL | LLAMA3),
    ("exaone4", MIXED | {"rotated_layers": (False, True)}),
    ("phi3", ALL | PARTIAL),
    ("glm", {"qkv_bias": True, **LLAMA3}),
    ("glm4", PARTIAL),
    ("granite", MULTIPLIED | {"attention_multiplier": 0.1}),
    ("gemma2", MIXED | {"attention_softcap": 5.0, "query_scale": 7.0}),
    ("vaultgemma", ALL | {"logit_softcap": 5.0}),
    ("smollm3", ALL | BIASED | {"rotated_layers": (True, False)}),
    ("helium", {"qkv_bias": True}),
    ("ernie4_5", {"tie_embeddings": False}),
]


@pytest.mark.parametrize("family, changes", EXPRESSIBLE)
def test_round_trip(family, changes):
    """In both layouts together, and in that of transformers 5 and of 4 alone."""
    config = shape(family, **changes)
    values = config_to_dict(config)
    new = ("rope_parameters", "dtype")
    old = ("rope_theta", "rope_local_base_freq", "rope_scaling", "torch_dtype")
    if family == "olmo3":  # transformers 4 had one base, whatever the layer
        old = new = ()
    for absent in ((), old, new):
        found = {name: value for name, value in values.items() if name not in absent}
        assert config_from_dict(found) == config


@pytest.mark.parametrize(
    "family, changes",
    [
        ("llama", {"qk_norm": True}),
        ("gemma3", {"query_scale": 2.5}),
        ("mistral", MIXED),
    ],
)
def test_what_no_architecture_expresses_is_refused(family, changes):
    with pytest.raises(UsageError):
        config_to_dict(shape(family, **changes))


def read(family, **values):
    return config_from_dict(SIZES | {"model_type": family} | values)


HALF = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
GROWTH = 0.1 * math.log(4)


@pytest.mark.parametrize(
    "rope, found",
    [
        ({"type": "linear", "factor": 2}, RopeScaling("linear", 2.0)),
        (HALF, RopeScaling("llama3", 8.0, 1.0, 4.0, 64)),
        (
            YARN,
            RopeScaling("yarn", 4.0, original_positions=64, attention_factor=GROWTH + 1),
        ),
    ],
)
def test_rotary_fields_are_read_with_their_defaults(rope, found):
    config = read("qwen2", rope_theta=3, rope_scaling=rope, max_position_embeddings=64)
    assert (config.rope_theta, config.rope_scaling) == (3.0, found)


SLIDING = ["sliding_attention"] * 2
SCALED = {"full_attention": {"rope_type": "default"}, "sliding_attention": HALF}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    "family, field, values",
    [
        ("llama", "rope_parameters.rope_theta", {"rope_parameters": {"rope_theta": -1.0}}),
        ("llama", "high_freq_factor", {"rope_scaling": HALF | {"high_freq_factor": 0.5}}),
        ("olmo3", "truncate", {"rope_scaling": YARN | {"truncate": False}}),
        ("gemma3_text", "sliding", {"rope_parameters": SCALED}),
        ("phi3", "rope_type", {"rope_scaling": LONGROPE}),
        ("mistral", "partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        ("ministral", "sliding_window", {"sliding_window": None, "layer_types": SLIDING}),
        ("olmo3", "rope_local_base_freq", {"rope_local_base_freq": 5.0}),
        ("smollm3", "no_rope_layers", {"no_rope_layers": [1]}),
        ("smollm3", "sliding_window", {"sliding_window": 3, "layer_types": SLIDING}),
    ],
)
def test_what_a_family_would_compute_otherwise_is_refused(family, field, values):
    with pytest.raises(DataError, match=field):
        read(family, **values)
