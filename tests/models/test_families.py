"""config.json to the model's shape and back."""

import dataclasses
from pathlib import Path

import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.models import ModelConfig, config_from_dict, config_to_dict
from grre_jax.models.families import is_transposed, tensor_names

SIZES = dict(vocab_size=11, hidden_size=8, intermediate_size=12, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=6)
BASE = ModelConfig(**SIZES, rope_theta=123_456.0, eos_ids=(1, 2))
EXPRESSIBLE = [
    BASE,
    dataclasses.replace(BASE, qkv_bias=True, attention_out_bias=True, tie_embeddings=False, eos_ids=()),
    dataclasses.replace(BASE, family="qwen2", qkv_bias=True, max_positions=77, eos_ids=(4,)),
    dataclasses.replace(BASE, family="qwen3", qk_norm=True, rms_norm_eps=1e-5),
    dataclasses.replace(BASE, family="qwen3", qk_norm=True, qkv_bias=True, attention_out_bias=True),
]


@pytest.mark.parametrize("config", EXPRESSIBLE)
def test_round_trip(config):
    assert config_from_dict(config_to_dict(config)) == config
    values = config_to_dict(config)
    del values["rope_theta"]
    assert config_from_dict(values) == config
    values["rope_theta"] = values.pop("rope_parameters")["rope_theta"]
    assert config_from_dict(values) == config


INEXPRESSIBLE = [dict(qk_norm=True), dict(qkv_bias=True), dict(attention_out_bias=True)]
INEXPRESSIBLE += [dict(family=family) for family in ("qwen2", "qwen3", "gpt2")]


@pytest.mark.parametrize("changes", INEXPRESSIBLE)
def test_what_no_architecture_expresses_is_refused(changes):
    with pytest.raises(UsageError, match="cannot be written as|names no architecture"):
        config_to_dict(dataclasses.replace(BASE, **changes))


def test_absent_fields_take_the_familys_own_defaults():
    required = dict(vocab_size=11, hidden_size=64, intermediate_size=12, num_hidden_layers=1, num_attention_heads=32)
    llama = config_from_dict({"model_type": "llama", **required})
    assert (llama.head_dim, llama.num_kv_heads, llama.tie_embeddings) == (2, 32, False)
    assert (llama.rms_norm_eps, llama.rope_theta) == (1e-6, 10_000.0)
    assert config_from_dict({"model_type": "qwen2", **required}).qkv_bias
    qwen3 = config_from_dict({"model_type": "qwen3", **required})
    assert (qwen3.head_dim, qwen3.qk_norm, qwen3.qkv_bias) == (128, True, False)


def test_a_missing_field_names_the_file():
    with pytest.raises(DataError, match="^some/config.json: the field hidden_size is missing"):
        config_from_dict({"model_type": "llama"}, Path("some/config.json"))


def test_names_of_tensors():
    assert tensor_names("embed", 2) == ["model.embed_tokens.weight"]
    assert tensor_names("layers.k_bias", 2) == ["model.layers.0.self_attn.k_proj.bias", "model.layers.1.self_attn.k_proj.bias"]
    assert is_transposed("layers.gate_proj") and not is_transposed("head") and not is_transposed("layers.q_norm")
