"""config.json to the model's shape and back."""

import dataclasses

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.models import ModelConfig, config_from_dict, config_to_dict
from grre_jax.models.checkpoints.family_table import FAMILIES
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
MIXED = dict(sliding_window=3, sliding_layers=(False, True))
ALL = dict(sliding_window=3, sliding_layers=(True, True))
MULTIPLIED = dict(embedding_multiplier=0.7, residual_multiplier=0.3, logit_divisor=3.0)
CHANGES += [
    (dataclasses.replace(BASE, family=family, **FAMILIES[family].fixed), changes)
    for family, changes in [
        ("mistral", {}),
        ("mistral", ALL | {"rope_scaling": LLAMA3}),
        ("ministral", MIXED),
        ("seed_oss", dict(qkv_bias=False, attention_out_bias=True)),
        ("gemma", BIASED),
        ("olmo2", BIASED),
        ("olmo3", MIXED | {"local_rope_theta": 9.0, "rope_scaling": LLAMA3}),
        ("exaone4", {}),
        ("exaone4", MIXED | {"rotated_layers": (False, True)}),
        ("exaone4", {"rotated_layers": (False, False)}),
        ("phi3", ALL | {"head_dim": 10, "rotary_share": 0.4}),
        ("glm", {"qkv_bias": True, "rope_scaling": LLAMA3}),
        ("glm4", {"head_dim": 10, "rotary_share": 0.4}),
        ("granite", MULTIPLIED | {"attention_multiplier": 0.1}),
        ("gemma2", MIXED | {"attention_softcap": 5.0, "query_scale": 7.0}),
        ("vaultgemma", ALL | {"logit_softcap": 5.0}),
        ("smollm3", {"rotated_layers": (True, False), **BIASED}),
        ("smollm3", ALL | {"rotated_layers": (True, False)}),
        ("helium", dict(qkv_bias=True)),
        ("ernie4_5", dict(tie_embeddings=False)),
    ]
]
EXPRESSIBLE = [dataclasses.replace(base, **changes) for base, changes in CHANGES]


@pytest.mark.parametrize("config", EXPRESSIBLE)
def test_round_trip(config):
    """In both layouts together, and in that of transformers 5 and of 4 alone."""
    values = config_to_dict(config)
    new = ("rope_parameters", "dtype")
    old = ("rope_theta", "rope_local_base_freq", "rope_scaling", "torch_dtype")
    if config.family == "olmo3":  # transformers 4 had one base, whatever the layer
        old = new = ()
    for absent in ((), old, new):
        found = {name: value for name, value in values.items() if name not in absent}
        assert config_from_dict(found) == config


@pytest.mark.parametrize(
    "base, changes",
    [
        (BASE, dict(qk_norm=True)),
        (GEMMA, dict(query_scale=2.5)),
        (BASE, dict(family="mistral", **MIXED)),
        (BASE, dict(rotary_share=0.5, head_dim=8)),
    ],
)
def test_what_no_architecture_expresses_is_refused(base, changes):
    with pytest.raises(UsageError):
        config_to_dict(dataclasses.replace(base, **changes))


SLIDING = ["sliding_attention"] * 2
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 2, "long_factor": [2.0] * 2}


@pytest.mark.parametrize(
    ("family", "field", "values"),
    [
        ("phi3", "rope_type", {"rope_scaling": LONGROPE}),
        ("phi3", "partial_rotary_factor", {"partial_rotary_factor": 1.5}),
        ("mistral", "partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        ("mistral", "layer_types", {"layer_types": ["full_attention"] * 2}),
        ("ministral", "sliding_window", {"sliding_window": None, "layer_types": SLIDING}),
        ("olmo3", "rope_local_base_freq", {"rope_local_base_freq": 5.0}),
        ("exaone4", "sliding_window_pattern", {"sliding_window_pattern": "LLLG"}),
        ("granite", "attention_multiplier", {"attention_multiplier": 0}),
        ("gemma2", "attn_logit_softcapping", {"attn_logit_softcapping": -1.0}),
        ("gemma", "hidden_act", {"hidden_act": "silu"}),
        ("smollm3", "no_rope_layers", {"no_rope_layers": [1]}),
        ("smollm3", "use_sliding_window", {"sliding_window": 3, "layer_types": SLIDING}),
    ],
)
def test_what_a_family_would_compute_otherwise_is_refused(family, field, values):
    required = dict(vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2)
    required |= dict(model_type=family, num_attention_heads=2, head_dim=8, num_key_value_heads=2)
    assert config_from_dict(required).family == family
    with pytest.raises(DataError, match=field):
        config_from_dict(required | values)
