"""The model families as a table: options, fields of config.json and names of tensors of each.

To add a family, add a row here; `config_json` reads and writes its configurations by it. What
transformers computes decides: its class of the family reads the fields, and has the defaults of
those that are absent.
"""

import dataclasses
from typing import Any, Literal

from grre_jax.domains import AboveZero, Count

_SCALINGS = ("linear", "llama3", "yarn")
_BIASES = {"qkv_bias": "attention_bias", "attention_out_bias": "attention_bias"}


@dataclasses.dataclass(frozen=True)
class Row:
    """What distinguishes a family.

    Attributes:
        architecture: class in transformers.
        fixed: options of `ModelConfig` that are the same in every model of the family.
        options: options of `ModelConfig` that are the value of a field.
        fields: domains of fields beside `config_fields.DOMAINS`, or of fields that the class reads
            without having them.
        windows: which layers have the sliding window: "none"; "all", if there is a window; "listed"
            in layer_types; "chosen" there if use_sliding_window is true.
        rotated: which layers rotate: "all"; "listed" in no_rope_layers; "sliding", if there is a
            window.
        layered: True if full and sliding layers have separate rotary parameters.
        partial: True if the family may rotate a part of each head.
        scalings: kinds of scaling of the rotary frequencies.
        names: tensors of a layer with other names than `config_json.LAYER_NAMES`; projections with
            one name are rows of one tensor, in the order of the model.
        width: field of the width of a SwiGLU.
        activation: field of the activation.
        model_type: if it is not the family's name.
    """

    architecture: str
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)
    options: dict[str, str] = dataclasses.field(default_factory=lambda: _BIASES)
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    windows: Literal["none", "all", "listed", "chosen"] = "none"
    rotated: Literal["all", "listed", "sliding"] = "all"
    layered: bool = False
    partial: bool = False
    scalings: tuple[str, ...] = _SCALINGS
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    width: str = "intermediate_size"
    activation: str = "hidden_act"
    model_type: str = ""


_OLMO_FIXED = {"qk_norm": True, "whole_qk_norm": True, "pre_norms": False, "post_norms": True}
_GEMMA_FIXED = {"activation": "gelu_tanh", "unit_offset_norms": True, "scale_embeddings": True}
_QKV_BIAS = {"qkv_bias": "attention_bias"}
_CAPS = {"logit_softcap": "final_logit_softcapping", "attention_softcap": "attn_logit_softcapping"}
_GEMMA2 = Row(
    "Gemma2ForCausalLM",
    _GEMMA_FIXED,
    _BIASES | _CAPS,
    {"hidden_act": Any},  # the class reads hidden_activation
    windows="listed",
    activation="hidden_activation",
)
_EXPERTS = {"num_experts": "num_experts", "experts_per_token": "num_experts_per_tok"}
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
    partial=True,
    names=_GATE_UP,
)

FAMILIES: dict[str, Row] = {
    "llama": Row(
        "LlamaForCausalLM",
        fields={"layer_types": tuple[Literal["full_attention"], ...] | None},
    ),
    "qwen2": Row("Qwen2ForCausalLM", {"qkv_bias": True}, {}, windows="chosen"),
    "qwen3": Row("Qwen3ForCausalLM", {"qk_norm": True}, windows="chosen"),
    "gemma3": Row(
        "Gemma3ForCausalLM",
        _GEMMA_FIXED | {"qk_norm": True, "post_norms": True},
        _BIASES | {"logit_softcap": "final_logit_softcapping"},
        dict.fromkeys(("sliding_window_pattern", "rope_local_base_freq"), Any),
        "listed",
        layered=True,
        activation="hidden_activation",
        model_type="gemma3_text",
    ),
    "mistral": Row("MistralForCausalLM", {}, {}, windows="all"),
    "ministral": Row("MinistralForCausalLM", {}, {}, windows="listed"),
    "seed_oss": Row(
        "SeedOssForCausalLM",
        options={"qkv_bias": "attention_bias", "attention_out_bias": "attention_out_bias"},
    ),
    "gemma": Row(
        "GemmaForCausalLM",
        _GEMMA_FIXED,
        # "gelu" means the approximation by tanh too in this class.
        fields={
            "hidden_act": Literal["gelu_pytorch_tanh", "gelu"],
            "hidden_activation": Literal["gelu_pytorch_tanh", None],
        },
    ),
    "olmo2": Row("Olmo2ForCausalLM", _OLMO_FIXED),
    "olmo3": Row("Olmo3ForCausalLM", _OLMO_FIXED, windows="listed", layered=True),
    "exaone4": Row(
        "Exaone4ForCausalLM",
        {"qk_norm": True, "pre_norms": False, "post_norms": True},
        {},
        {"sliding_window_pattern": Count | None},
        "listed",
        "sliding",
    ),
    "phi3": Row(
        "Phi3ForCausalLM",
        {},
        {},
        {"auto_map": Any},  # published folders name a copy of the class
        "all",
        partial=True,
        scalings=(),
        names=dict.fromkeys(("q_proj", "k_proj", "v_proj"), "self_attn.qkv_proj.weight") | _GATE_UP,
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
        fields={"attention_multiplier": AboveZero},
    ),
    "gemma2": dataclasses.replace(_GEMMA2, fixed=_GEMMA_FIXED | {"post_norms": True}),
    "vaultgemma": dataclasses.replace(
        _GEMMA2,
        architecture="VaultGemmaForCausalLM",
        names={"mlp_norm": "pre_feedforward_layernorm.weight"},
    ),
    "smollm3": Row("SmolLM3ForCausalLM", windows="chosen", rotated="listed"),
    "helium": Row("HeliumForCausalLM", {"interleaved_rotary": True}, _QKV_BIAS),
    "ernie4_5": Row("Ernie4_5ForCausalLM", {"interleaved_rotary": True}, {}),
    "qwen3_moe": Row(
        "Qwen3MoeForCausalLM",
        {"qk_norm": True},
        _BIASES | _EXPERTS | {"normalise_experts": "norm_topk_prob"},
        # The first is another name of num_experts, the second belongs to layers that slide.
        dict.fromkeys(("num_local_experts", "max_window_layers"), Any),
        width="moe_intermediate_size",
    ),
    "olmoe": Row(
        "OlmoeForCausalLM",
        {"qk_norm": True, "whole_qk_norm": True},
        _BIASES | _EXPERTS | {"normalise_experts": "norm_topk_prob"},
    ),
    "mixtral": Row(
        "MixtralForCausalLM",
        {},
        {"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        windows="all",
        names={
            "router_proj": "block_sparse_moe.gate.weight",
            "expert_gate_proj": "block_sparse_moe.experts.*.w1.weight",
            "expert_up_proj": "block_sparse_moe.experts.*.w3.weight",
            "expert_down_proj": "block_sparse_moe.experts.*.w2.weight",
        },
    ),
}


def model_type(family: str) -> str:
    """Returns a family's `model_type` in config.json."""
    return FAMILIES[family].model_type or family
