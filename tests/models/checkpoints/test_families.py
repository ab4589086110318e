"""config.json to the model's shape and back."""

import dataclasses

import pytest

from grre_jax.errors import UsageError
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
EXPRESSIBLE = [
    BASE,
    GEMMA,
    dataclasses.replace(
        GEMMA,
        query_scale=7.0,
        logit_softcap=30.0,
        rope_scaling=RopeScaling("linear", 8.0),
        tie_embeddings=False,
    ),
    dataclasses.replace(GEMMA, sliding_window=0, sliding_layers=(), local_rope_theta=0.0),
    dataclasses.replace(BASE, rope_scaling=LLAMA3),
    dataclasses.replace(
        BASE, family="qwen2", qkv_bias=True, sliding_window=3, sliding_layers=(False, True)
    ),
    dataclasses.replace(
        BASE, qkv_bias=True, attention_out_bias=True, tie_embeddings=False, eos_ids=()
    ),
    dataclasses.replace(BASE, family="qwen2", qkv_bias=True, max_positions=77, eos_ids=(4,)),
    dataclasses.replace(
        BASE,
        family="qwen3",
        qk_norm=True,
        qkv_bias=True,
        attention_out_bias=True,
        rms_norm_eps=1e-5,
        sliding_window=3,
        sliding_layers=(True, True),
    ),
]


@pytest.mark.parametrize("config", EXPRESSIBLE)
def test_round_trip(config):
    values = config_to_dict(config)
    assert config_from_dict(values) == config
    new = {
        k: v
        for k, v in values.items()
        if k not in ("rope_theta", "rope_local_base_freq", "rope_scaling", "torch_dtype")
    }
    assert config_from_dict(new) == config
    old = {k: v for k, v in values.items() if k not in ("rope_parameters", "dtype")}
    assert config_from_dict(old) == config


INEXPRESSIBLE = [
    dict(qk_norm=True),
    dict(qkv_bias=True),
    dict(sliding_window=2, sliding_layers=(True, False)),
    dict(logit_softcap=3.0),
    dict(activation="gelu_tanh"),
    dict(local_rope_theta=3.0),
    dict(family="gemma3"),
    dict(family="gpt2"),
]


@pytest.mark.parametrize("changes", INEXPRESSIBLE)
def test_what_no_architecture_expresses_is_refused(changes):
    with pytest.raises(UsageError, match="cannot be written as|names no architecture"):
        config_to_dict(dataclasses.replace(BASE, **changes))


def test_an_attention_softcap_cannot_be_written_for_gemma():
    with pytest.raises(
        UsageError,
        match="query_scale=2.5 cannot be written as Gemma3ForCausalLM: it must be a whole number",
    ):
        config_to_dict(dataclasses.replace(GEMMA, query_scale=2.5))
    with pytest.raises(
        UsageError, match="attention_softcap=50.0 cannot be written as Gemma3ForCausalLM"
    ):
        config_to_dict(dataclasses.replace(GEMMA, attention_softcap=50.0))


def test_absent_fields_take_the_familys_own_defaults():
    required = dict(
        vocab_size=11,
        hidden_size=64,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=32,
    )
    llama = config_from_dict({"model_type": "llama", **required})
    assert (llama.head_dim, llama.num_kv_heads, llama.tie_embeddings) == (2, 32, False)
    assert (llama.rms_norm_eps, llama.rope_theta) == (1e-6, 10_000.0)
    assert config_from_dict({"model_type": "qwen2", **required}).qkv_bias
    qwen3 = config_from_dict({"model_type": "qwen3", **required})
    assert (qwen3.head_dim, qwen3.qk_norm, qwen3.qkv_bias) == (128, True, False)
    gemma = config_from_dict({"model_type": "gemma3_text", **required, "num_hidden_layers": 7})
    assert (gemma.head_dim, gemma.num_kv_heads, gemma.tie_embeddings, gemma.query_scale) == (
        256,
        4,
        True,
        0.0,
    )
    assert (gemma.rope_theta, gemma.local_rope_theta, gemma.sliding_window) == (1e6, 1e4, 4096)
    assert gemma.sliding_layers == (True,) * 5 + (False, True)
