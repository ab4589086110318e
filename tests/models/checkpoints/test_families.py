"""config.json to the model's shape and back."""

import dataclasses

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.models import ModelConfig, config_from_dict, config_to_dict
from grre_jax.models.config import RopeScaling

SIZES = dict(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=6,
)
BASE = ModelConfig(**SIZES, rope_theta=123_456.0, eos_ids=(1, 2))
GEMMA = dataclasses.replace(
    BASE,
    family="gemma3",
    qk_norm=True,
    activation="gelu_tanh",
    unit_offset_norms=True,
    post_norms=True,
    scale_embeddings=True,
    sliding_window=5,
    sliding_layers=(True, False),
    local_rope_theta=77.0,
)
LLAMA3 = RopeScaling("llama3", 8.0, 1.5, 5.0, 64)
BIASED = dict(qkv_bias=True, attention_out_bias=True)
CHANGES = [
    (BASE, {}),
    (BASE, dict(rope_scaling=LLAMA3)),
    (BASE, dict(**BIASED, tie_embeddings=False, eos_ids=())),
    (BASE, dict(family="qwen2", qkv_bias=True, max_positions=77, eos_ids=(4,))),
    (GEMMA, {}),
    (GEMMA, dict(query_scale=7.0, logit_softcap=30.0, tie_embeddings=False)),
    (GEMMA, dict(rope_scaling=RopeScaling("linear", 8.0))),
    (GEMMA, dict(sliding_window=0, sliding_layers=(), local_rope_theta=0.0)),
    (BASE, dict(family="qwen2", qkv_bias=True, sliding_window=3, sliding_layers=(False, True))),
    (
        BASE,
        dict(**BIASED, family="qwen3", qk_norm=True, sliding_window=3, sliding_layers=(True, True)),
    ),
]
EXPRESSIBLE = [dataclasses.replace(base, **changes) for base, changes in CHANGES]


@pytest.mark.parametrize("config", EXPRESSIBLE)
def test_round_trip(config):
    """In both layouts together, and in that of transformers 5 and of 4 alone."""
    values = config_to_dict(config)
    new = ("rope_parameters", "dtype")
    old = ("rope_theta", "rope_local_base_freq", "rope_scaling", "torch_dtype")
    slid = ("layer_types",) if config.family.startswith("qwen") else ()
    for absent in ((), old, new, slid):
        found = {name: value for name, value in values.items() if name not in absent}
        assert config_from_dict(found) == config


def test_which_layers_slide_without_layer_types():
    values = config_to_dict(EXPRESSIBLE[8])
    del values["layer_types"]
    assert config_from_dict(values | {"max_window_layers": 2}).sliding_window == 0


def test_what_is_null_is_not_what_is_absent():
    values = config_to_dict(EXPRESSIBLE[-1])
    assert config_from_dict(values | {"num_key_value_heads": None}).num_kv_heads == 2  # absent: 32
    with pytest.raises(DataError, match="head_dim"):
        config_from_dict(values | {"head_dim": None})


@pytest.mark.parametrize(
    "base, changes",
    [
        (BASE, dict(qk_norm=True)),
        (BASE, dict(qkv_bias=True)),
        (BASE, dict(sliding_window=2, sliding_layers=(True, False))),
        (BASE, dict(logit_softcap=3.0)),
        (BASE, dict(activation="gelu_tanh")),
        (BASE, dict(local_rope_theta=3.0)),
        (BASE, dict(family="gemma3")),
        (GEMMA, dict(query_scale=2.5)),
    ],
)
def test_what_no_architecture_expresses_is_refused(base, changes):
    with pytest.raises(UsageError):
        config_to_dict(dataclasses.replace(base, **changes))


DEFAULTS = {
    "llama": dict(
        head_dim=2, num_kv_heads=32, tie_embeddings=False, rms_norm_eps=1e-6, rope_theta=10_000.0
    ),
    "qwen2": dict(qkv_bias=True),
    "qwen3": dict(head_dim=128, qk_norm=True, qkv_bias=False),
    "gemma3_text": dict(
        head_dim=256,
        num_kv_heads=4,
        tie_embeddings=True,
        query_scale=0.0,
        rope_theta=1e6,
        local_rope_theta=1e4,
        sliding_window=4096,
        sliding_layers=(True,) * 5 + (False, True),
    ),
}


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_absent_fields_take_the_familys_own_defaults(model_type):
    sizes = dict(hidden_size=64, num_hidden_layers=7, num_attention_heads=32)
    required = dict(model_type=model_type, vocab_size=11, intermediate_size=12, **sizes)
    found = dataclasses.asdict(config_from_dict(required))
    assert found.items() >= DEFAULTS[model_type].items()
