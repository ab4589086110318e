"""The model families as a table: options, fields of config.json and names of tensors of each.

A family is a row here and a name in `models.config.Family`. What transformers computes decides
(5.23): fields that it reads are read, and its defaults are taken where a field is absent.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from grre_jax.domains import AboveZero, Count, Positive
from grre_jax.models.checkpoints.config_fields import Names
from grre_jax.models.checkpoints.rope_fields import ORIGINAL
from grre_jax.models.config import Family

_SCALINGS = ("linear", "llama3", "yarn")
_BIASES = {"qkv_bias": "attention_bias", "attention_out_bias": "attention_bias"}


@dataclasses.dataclass(frozen=True)
class Row:
    """What distinguishes a family.

    Attributes:
        architecture: class in transformers.
        fixed: options of `ModelConfig` that are the same in every model of the family.
        options: options of `ModelConfig` that are the value of a field.
        fields: domains of the fields of config.json beside `config_fields.READ`.
        defaults: values of absent fields; `sliding_window_pattern` n is of families whose n-th
            layers are full if `layer_types` is absent, 0 if none is.
        windows: which layers have the sliding window: "none"; "all", if there is a window; "listed"
            in layer_types; "chosen" there if use_sliding_window is true.
        rotated: which layers rotate: "all"; "listed" in no_rope_layers; "sliding", if there is a
            window.
        theta: base of the rotary frequencies if the field is absent.
        local_theta: that of sliding layers with a base of their own; 0 if they have none.
        share: part of a head that is rotated if the field is absent; None if always the whole.
        scalings: kinds of scaling of the rotary frequencies.
        names: tensors of a layer with other names than `families.LAYER_NAMES`; projections with
            one name are rows of one tensor, in the order of the model.
        width: field of the width of a SwiGLU.
        aliases: fields by other names that files have for them.
        written: fields that are written for programs that need them.
        model_type: if it is not the family's name.
    """

    architecture: str
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)
    options: dict[str, str] = dataclasses.field(default_factory=lambda: _BIASES)
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    windows: Literal["none", "all", "listed", "chosen"] = "none"
    rotated: Literal["all", "listed", "sliding"] = "all"
    theta: float = 1e4
    local_theta: float = 0.0
    share: float | None = None
    scalings: tuple[str, ...] = _SCALINGS
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    width: str = "intermediate_size"
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)
    written: dict[str, Any] = dataclasses.field(default_factory=dict)
    model_type: str = ""


_KV = {"num_key_value_heads": Positive | None}
_SILU = {"hidden_act": Literal["silu", "swish"], ORIGINAL: Positive | None}
_HEADS = _SILU | _KV | {"head_dim": Positive | None}
_GELU = {"hidden_activation": Literal["gelu_pytorch_tanh"]}
_WINDOW = {"sliding_window": Positive | None, "layer_types": Names}
_QWEN = _SILU | _KV | _WINDOW | {"use_sliding_window": bool, "max_window_layers": Count}
_QWEN_DEFAULTS = {
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "max_position_embeddings": 32_768,
}
_MISTRAL_DEFAULTS = {
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "max_position_embeddings": 131_072,
}
_OLMO_DEFAULTS = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
_OLMO_FIXED = {"qk_norm": True, "whole_qk_norm": True, "pre_norms": False, "post_norms": True}
_GEMMA_FIXED = {"activation": "gelu_tanh", "unit_offset_norms": True, "scale_embeddings": True}
_GEMMA_DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA2 = Row(
    "Gemma2ForCausalLM",
    _GEMMA_FIXED,
    _BIASES
    | {"logit_softcap": "final_logit_softcapping", "attention_softcap": "attn_logit_softcapping"},
    _GELU
    | _WINDOW
    | {
        "hidden_act": Any,  # the class reads hidden_activation
        "query_pre_attn_scalar": Positive,
        "final_logit_softcapping": AboveZero | None,
        "attn_logit_softcapping": AboveZero | None,
    },
    _GEMMA_DEFAULTS
    | {
        "sliding_window_pattern": 2,
        "max_position_embeddings": 8192,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    windows="listed",
)
_QKV_BIAS = {"qkv_bias": "attention_bias"}
# Else transformers takes the id of the published models, which a small vocabulary lacks.
_NO_PAD = {"pad_token_id": None}
_EXPERTS = {"num_experts": "num_experts", "experts_per_token": "num_experts_per_tok"}
_MIXTURE = {"num_experts": Positive, "num_experts_per_tok": Positive, "norm_topk_prob": bool}
_MULTIPLIERS = {
    "embedding_multiplier": "embedding_multiplier",
    "residual_multiplier": "residual_multiplier",
    "attention_multiplier": "attention_multiplier",
    "logit_divisor": "logits_scaling",
}
_GATE_UP = dict.fromkeys(("gate_proj", "up_proj"), "mlp.gate_up_proj.weight")
_GLM = Row(
    "GlmForCausalLM",
    {"interleaved_rotary": True},
    _QKV_BIAS,
    _SILU,
    {
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1.5625e-7,
        "max_position_embeddings": 131_072,
        "attention_bias": True,
    },
    share=0.5,
    names=_GATE_UP,
    written=_NO_PAD,
)

FAMILIES: dict[Family, Row] = {
    "llama": Row(
        "LlamaForCausalLM",
        fields=_HEADS | {"layer_types": Names},
        defaults={"max_position_embeddings": 2048},
        written={"mlp_bias": False},
    ),
    "qwen2": Row("Qwen2ForCausalLM", {"qkv_bias": True}, {}, _QWEN, _QWEN_DEFAULTS, "chosen"),
    "qwen3": Row(
        "Qwen3ForCausalLM",
        {"qk_norm": True},
        fields=_QWEN,
        defaults=_QWEN_DEFAULTS | {"head_dim": 128},
        windows="chosen",
    ),
    "gemma3": Row(
        "Gemma3ForCausalLM",
        _GEMMA_FIXED | {"qk_norm": True, "post_norms": True},
        _BIASES | {"logit_softcap": "final_logit_softcapping"},
        _GELU
        | _WINDOW
        | {
            "query_pre_attn_scalar": Positive,
            "sliding_window_pattern": Positive,
            "rope_local_base_freq": AboveZero,
            "final_logit_softcapping": AboveZero | None,
        },
        _GEMMA_DEFAULTS | {"sliding_window_pattern": 6, "max_position_embeddings": 131_072},
        "listed",
        theta=1e6,
        local_theta=1e4,
        written={"attn_logit_softcapping": None},
        model_type="gemma3_text",
    ),
    "mistral": Row("MistralForCausalLM", {}, {}, _HEADS | _WINDOW, _MISTRAL_DEFAULTS, "all"),
    "ministral": Row(
        "MinistralForCausalLM",
        {},
        {},
        _SILU | _KV | _WINDOW,
        _MISTRAL_DEFAULTS | {"sliding_window_pattern": 0},
        "listed",
    ),
    "seed_oss": Row(
        "SeedOssForCausalLM",
        options={"qkv_bias": "attention_bias", "attention_out_bias": "attention_out_bias"},
        fields=_HEADS | {"attention_out_bias": bool},
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524_288,
            "attention_bias": True,
        },
    ),
    "gemma": Row(
        "GemmaForCausalLM",
        _GEMMA_FIXED,
        # "gelu" means the approximation by tanh too in this class.
        fields={
            "hidden_act": Literal["gelu_pytorch_tanh", "gelu"],
            "hidden_activation": Literal["gelu_pytorch_tanh", None],
        },
        defaults={
            "num_key_value_heads": 16,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2": Row("Olmo2ForCausalLM", _OLMO_FIXED, _BIASES, _SILU | _KV, _OLMO_DEFAULTS),
    "olmo3": Row(
        "Olmo3ForCausalLM",
        _OLMO_FIXED,
        fields=_SILU | _KV | _WINDOW,
        defaults=_OLMO_DEFAULTS | {"sliding_window": 4096, "sliding_window_pattern": 4},
        windows="listed",
        theta=5e5,
        local_theta=5e5,
    ),
    "exaone4": Row(
        "Exaone4ForCausalLM",
        {"qk_norm": True, "pre_norms": False, "post_norms": True},
        {},
        _SILU | _WINDOW | {"sliding_window_pattern": Count | str | None},
        _OLMO_DEFAULTS
        | {"num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4},
        "listed",
        "sliding",
    ),
    "phi3": Row(
        "Phi3ForCausalLM",
        {},
        {},
        # Published folders name a copy of the class in auto_map.
        _SILU | _KV | {"sliding_window": Positive | None, "auto_map": Any},
        {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "sliding_window": None},
        "all",
        share=1.0,
        scalings=(),
        names=dict.fromkeys(("q_proj", "k_proj", "v_proj"), "self_attn.qkv_proj.weight") | _GATE_UP,
        written=_NO_PAD,
    ),
    "glm": _GLM,
    "glm4": dataclasses.replace(
        _GLM,
        architecture="Glm4ForCausalLM",
        fixed=_GLM.fixed | {"post_norms": True},
        names=_GATE_UP
        | {
            "mlp_norm": "post_attention_layernorm.weight",
            "post_attn_norm": "post_self_attn_layernorm.weight",
            "post_mlp_norm": "post_mlp_layernorm.weight",
        },
    ),
    "granite": Row(
        "GraniteForCausalLM",
        options=_BIASES | _MULTIPLIERS,
        fields=_SILU | _KV | dict.fromkeys(_MULTIPLIERS.values(), AboveZero),
        defaults={"max_position_embeddings": 2048} | dict.fromkeys(_MULTIPLIERS.values(), 1.0),
    ),
    "gemma2": dataclasses.replace(_GEMMA2, fixed=_GEMMA_FIXED | {"post_norms": True}),
    "vaultgemma": dataclasses.replace(
        _GEMMA2,
        architecture="VaultGemmaForCausalLM",
        names={"mlp_norm": "pre_feedforward_layernorm.weight"},
    ),
    "smollm3": Row(
        "SmolLM3ForCausalLM",
        fields=_SILU
        | _KV
        | _WINDOW
        | {
            "use_sliding_window": bool,
            "no_rope_layers": tuple[Count, ...] | None,
            "no_rope_layer_interval": Positive,
        },
        defaults={
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": True,
            "sliding_window": None,
            "no_rope_layer_interval": 4,
        },
        windows="chosen",
        rotated="listed",
        theta=2e6,
        written=_NO_PAD,
    ),
    "helium": Row(
        "HeliumForCausalLM",
        {"interleaved_rotary": True},
        _QKV_BIAS,
        _SILU,
        {
            "num_key_value_heads": 20,
            "head_dim": 128,
            "rms_norm_eps": 1e-8,
            "max_position_embeddings": 4096,
        },
        theta=1e5,
    ),
    "ernie4_5": Row(
        "Ernie4_5ForCausalLM",
        {"interleaved_rotary": True},
        {},
        _HEADS | {"use_bias": Literal[False, None]},
        {
            "num_key_value_heads": 2,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131_072,
            "tie_word_embeddings": True,
        },
        theta=5e5,
    ),
    "qwen3_moe": Row(
        "Qwen3MoeForCausalLM",
        {"qk_norm": True},
        _BIASES | _EXPERTS | {"normalise_experts": "norm_topk_prob"},
        _SILU
        | _KV
        | _MIXTURE
        | {
            "moe_intermediate_size": Positive,
            "num_local_experts": Positive,
            "decoder_sparse_step": Literal[1],
            "max_window_layers": Any,  # no layer slides
        },
        {
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
            "moe_intermediate_size": 768,
        },
        width="moe_intermediate_size",
        aliases={"num_local_experts": "num_experts"},
    ),
    "olmoe": Row(
        "OlmoeForCausalLM",
        {"qk_norm": True, "whole_qk_norm": True},
        _BIASES | _EXPERTS | {"normalise_experts": "norm_topk_prob"},
        _SILU | _KV | _MIXTURE,
        {
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
        written=_NO_PAD,
    ),
    "mixtral": Row(
        "MixtralForCausalLM",
        {},
        {"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        _HEADS
        | {
            "num_local_experts": Positive,
            "num_experts_per_tok": Positive,
            "sliding_window": Positive | None,
        },
        {
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131_072,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
        "all",
        theta=1e6,
        names={
            "router_proj": "block_sparse_moe.gate.weight",
            "expert_gate_proj": "block_sparse_moe.experts.*.w1.weight",
            "expert_up_proj": "block_sparse_moe.experts.*.w3.weight",
            "expert_down_proj": "block_sparse_moe.experts.*.w2.weight",
        },
    ),
}


def model_type(family: Family) -> str:
    """Returns a family's `model_type` in config.json."""
    return FAMILIES[family].model_type or family
