"""Sizes of published models, as their config.json states them: to plan a run before any weights
are on disk.
"""

from __future__ import annotations

from typing import Any

from grre_jax.domains import ConfigError, nearest
from grre_jax.models.checkpoints.families import config_from_dict
from grre_jax.models.config import ModelConfig

# Fields of a config.json whose values differ within a family, in the order of the rows below.
_SIZES = (
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"
    " vocab_size tie_word_embeddings"
).split()
_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "eos_token_id": 151645,
}


def _llama3(factor: float) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "eos_token_id": [128001, 128008, 128009],
    }


_QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960,
    "eos_token_id": 151645,
}
# The config.json of the instruction-tuned checkpoints on the Hugging Face hub, in the fields that
# fix a shape.
PUBLISHED: dict[str, dict[str, Any]] = {
    name: family | dict(zip(_SIZES, sizes, strict=True))
    for name, family, *sizes in (
        ("qwen2.5-0.5b", _QWEN2, 896, 4864, 24, 14, 2, 151936, True),
        ("qwen2.5-1.5b", _QWEN2, 1536, 8960, 28, 12, 2, 151936, True),
        ("qwen2.5-3b", _QWEN2, 2048, 11008, 36, 16, 2, 151936, True),
        ("qwen2.5-7b", _QWEN2, 3584, 18944, 28, 28, 4, 152064, False),
        ("qwen3-30b-a3b", _QWEN3_MOE, 2048, 6144, 48, 32, 4, 151936, False),
        ("llama-3.2-1b", _llama3(32.0), 2048, 8192, 16, 32, 8, 128256, True),
        ("llama-3.2-3b", _llama3(32.0), 3072, 8192, 28, 24, 8, 128256, True),
        ("llama-3.1-8b", _llama3(8.0), 4096, 14336, 32, 32, 8, 128256, False),
    )
}


def published(name: str) -> ModelConfig:
    """Returns the shape of a published model.

    Raises:
        ConfigError: an unknown name; names the nearest.
    """
    if name not in PUBLISHED:
        domain = f"one of {', '.join(PUBLISHED)}{nearest(name, PUBLISHED)}"
        raise ConfigError("model.shape", domain, name)
    return config_from_dict(PUBLISHED[name])
