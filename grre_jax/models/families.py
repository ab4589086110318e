"""What the Hugging Face families call things: config.json to `ModelConfig` and back, and the names of the tensors.

Configurations in the layout of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and 5 (`rope_parameters`, `dtype`) are both read;
what is written carries both.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.models import rope_fields
from grre_jax.models.config import ModelConfig

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3", "Gemma3ForCausalLM": "gemma3"}
MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}

# Parameter of the model -> tensor of the checkpoint. Matrices named *_proj lie transposed there: [out, in].
TOP_NAMES = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    **{f"{p}_proj": f"self_attn.{p}_proj.weight" for p in "qkvo"},
    **{f"{p}_bias": f"self_attn.{p}_proj.bias" for p in "qkvo"},
    **{f"{p}_norm": f"self_attn.{p}_norm.weight" for p in "qk"},
    **{f"{p}_proj": f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")},
}
# Where there are norms after the halves of a block too, the names say which half they belong to.
FOUR_NORMS = {
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_attn_norm": "post_attention_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}
# Buffers that old checkpoints stored and that follow from the configuration.
IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

# What a family's architecture fixes, and what transformers takes for a field that a config.json leaves out.
_FIXED = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"qk_norm": True},
    "gemma3": {"qk_norm": True, "activation": "gelu_tanh", "unit_offset_norms": True, "post_norms": True, "scale_embeddings": True},
}
_GEMMA3_DEFAULTS = {"num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "pattern": 6}
_MAX_POSITIONS = {"llama": 2048, "qwen2": 32_768, "qwen3": 32_768, "gemma3": 131_072}

_MISSING = object()


def tensor_name(piece: str, layer: int | None = None, *, post_norms: bool = False) -> str:
    """The checkpoint's name for a piece of a parameter ("embed"; "q_proj" of a layer; ...), `post_norms` as in `ModelConfig`."""
    if layer is None:
        return TOP_NAMES[piece]
    return f"model.layers.{layer}.{(LAYER_NAMES | FOUR_NORMS if post_norms else LAYER_NAMES)[piece]}"


def _family(values: dict[str, Any], where: Path) -> str:
    supported = ", ".join(ARCHITECTURES)
    named = values.get("architectures") or []
    if named:
        if named[0] not in ARCHITECTURES:
            raise DataError(f"{where}: architecture {named[0]} is not supported: use a checkpoint of {supported}")
        return ARCHITECTURES[named[0]]
    kind = values.get("model_type")
    for family, model_type in MODEL_TYPES.items():
        if kind == model_type:
            return family
    raise DataError(f"{where}: model_type {kind!r} is not supported and no architecture is named: use a checkpoint of {supported}")


def _token_ids(field: str, value: Any, where: Path) -> tuple[int, ...]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise DataError(f"{where}: {field} must be a token id or a list of them, got {value!r}")
    return tuple(ids)


def _refuse_unsupported(values: dict[str, Any], family: str, where: Path) -> None:
    gemma = family == "gemma3"
    field, only = ("hidden_activation", "gelu_pytorch_tanh") if gemma else ("hidden_act", "silu")
    if (values.get(field) or only) != only:
        raise DataError(f"{where}: {field} {values[field]!r} is not supported: only {only!r} is")
    if gemma and values.get("use_bidirectional_attention"):
        raise DataError(f"{where}: use_bidirectional_attention is not supported: use a checkpoint with causal attention")
    if values.get("mlp_bias"):
        raise DataError(f"{where}: mlp_bias is not supported: use a checkpoint without biases in its feed-forward layers")
    if values.get("quantization_config"):
        method = values["quantization_config"].get("quant_method", "unnamed")
        raise DataError(f"{where}: quantization_config ({method}) is not supported: use the unquantized checkpoint")


def _sliding(values: dict[str, Any], family: str, num_layers: int, number: Any, where: Path) -> tuple[int, tuple[bool, ...]]:
    """The window's length and which layers slide; (0, ()) if none does."""
    if family == "gemma3":
        window = number("sliding_window", _GEMMA3_DEFAULTS["sliding_window"])
        pattern = number("sliding_window_pattern", _GEMMA3_DEFAULTS["pattern"])
        slides = tuple(bool((i + 1) % max(pattern, 1)) for i in range(num_layers))
    else:
        used = family != "llama" and values.get("use_sliding_window") and values.get("sliding_window", _MISSING) is not None
        window = number("sliding_window", 4096) if used else 0
        slides = tuple(bool(used) and i >= number("max_window_layers", 28) for i in range(num_layers))
    kinds = values.get("layer_types")
    if kinds is not None:
        allowed = ("full_attention",) if family == "llama" else ("full_attention", "sliding_attention")
        unknown = [kind for kind in kinds if kind not in allowed]
        if unknown:
            raise DataError(f"{where}: layer_types {unknown[0]!r} is not supported in this architecture: only {', '.join(allowed)}")
        if len(kinds) != num_layers:
            raise DataError(f"{where}: layer_types must name all {num_layers} layers (num_hidden_layers), got {len(kinds)}")
        slides = tuple(kind == "sliding_attention" for kind in kinds)
    if any(slides) and window < 1:
        hint = "" if family == "gemma3" else " and use_sliding_window to true"
        raise DataError(f"{where}: layer_types has sliding_attention, but no window is set: set sliding_window{hint}")
    return (window, slides) if any(slides) else (0, ())


def config_from_dict(values: dict[str, Any], where: Path = Path("config.json"), eos_token_id: int | list[int] | None = None) -> ModelConfig:
    """The shape of a model from the contents of its config.json.

    `attn_logit_softcapping` has no effect in a Gemma3ForCausalLM of transformers (to 5.23), and therefore none here.

    Args:
        values: the parsed config.json.
        where: the file, for messages.
        eos_token_id: the generation configuration's, which takes precedence over `values`'.

    Raises:
        DataError: naming the file and the field, for a missing or malformed field, or an architecture or option this model does not have.
    """
    family = _family(values, where)

    def number(name, default=_MISSING, kind=int):
        value = values.get(name)
        if value is None:
            if default is _MISSING:
                raise DataError(f"{where}: the field {name} is missing: restore the checkpoint's own config.json")
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or kind(value) != value:
            raise DataError(f"{where}: the field {name} must be {'an integer' if kind is int else 'a number'}, got {value!r}")
        return kind(value)

    gemma = family == "gemma3"
    hidden, heads, layers = number("hidden_size"), number("num_attention_heads"), number("num_hidden_layers")
    _refuse_unsupported(values, family, where)
    bias = bool(values.get("attention_bias", False))
    head_dim = number("head_dim", _GEMMA3_DEFAULTS["head_dim"] if gemma else 128 if family == "qwen3" else hidden // max(heads, 1))
    query_scale = number("query_pre_attn_scalar", _GEMMA3_DEFAULTS["query_pre_attn_scalar"], float) if gemma else 0.0
    window, slides = _sliding(values, family, layers, number, where)
    theta, scaling, local_theta = rope_fields.read(values, layered=gemma, where=where)
    kv_heads = {"llama": heads, "gemma3": _GEMMA3_DEFAULTS["num_key_value_heads"]}.get(family, 32)
    try:
        return ModelConfig(
            vocab_size=number("vocab_size"),
            hidden_size=hidden,
            intermediate_size=number("intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=number("num_key_value_heads", kv_heads),
            head_dim=head_dim,
            rope_theta=theta,
            rms_norm_eps=number("rms_norm_eps", 1e-6, float),
            tie_embeddings=bool(values.get("tie_word_embeddings", gemma)),
            qkv_bias=family == "qwen2" or bias,
            attention_out_bias=family != "qwen2" and bias,
            rope_scaling=scaling,
            query_scale=0.0 if query_scale == head_dim else query_scale,
            logit_softcap=number("final_logit_softcapping", 0.0, float) if gemma else 0.0,
            sliding_window=window,
            sliding_layers=slides,
            local_rope_theta=local_theta if slides else 0.0,
            max_positions=number("max_position_embeddings", _MAX_POSITIONS[family]),
            family=family,
            eos_ids=_token_ids("eos_token_id", values.get("eos_token_id") if eos_token_id is None else eos_token_id, where),
            bos_id=next(iter(_token_ids("bos_token_id", values.get("bos_token_id"), where)), None),
            **_FIXED[family],
        )
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error


# What an architecture has where `_FIXED` does not say otherwise.
_PLAIN = {"qk_norm": False, "activation": "silu", "unit_offset_norms": False, "post_norms": False, "scale_embeddings": False}


def _check_expressible(config: ModelConfig, architecture: str) -> None:
    """UsageError naming the first option that the architecture does not have."""
    family, out = config.family, config.attention_out_bias
    wanted = {**_PLAIN, **_FIXED[family], "attention_softcap": 0.0}
    wanted |= {"qkv_bias": True, "attention_out_bias": False} if family == "qwen2" else {"qkv_bias": out}
    if family != "gemma3":
        wanted |= {"query_scale": 0.0, "logit_softcap": 0.0, "local_rope_theta": 0.0}
    if family == "llama":
        wanted["sliding_layers"] = (False,) * len(config.sliding_layers)
    for field, value in wanted.items():
        if getattr(config, field) != value:
            raise UsageError(
                f"{field}={getattr(config, field)} cannot be written as {architecture}, which has {field}={value} here: "
                "llama has both biases or none, qwen2 the qkv_bias alone, qwen3 the qk_norm, gemma3 its own norms; choose the family that fits"
            )


def config_to_dict(config: ModelConfig, dtype: str = "float32") -> dict[str, Any]:
    """The contents of the config.json that `transformers` reads back as this model.

    Args:
        config: the shape.
        dtype: of the stored tensors, as transformers spells it ("float32", "bfloat16", ...).

    Raises:
        UsageError: if `config.family` is unknown or its architecture cannot express an option of `config`.
    """
    architecture = next((name for name, family in ARCHITECTURES.items() if family == config.family), None)
    if architecture is None:
        known = ", ".join(ARCHITECTURES.values())
        raise UsageError(f"family={config.family!r} names no architecture that transformers loads: use one of {known}")
    _check_expressible(config, architecture)
    eos = list(config.eos_ids)
    gemma = config.family == "gemma3"
    values: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": MODEL_TYPES[config.family],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        **({"hidden_activation": "gelu_pytorch_tanh"} if gemma else {"hidden_act": "silu"}),
        "rms_norm_eps": config.rms_norm_eps,
        **rope_fields.write(config, layered=gemma),
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "torch_dtype": dtype,
        "dtype": dtype,
    }
    if config.family != "qwen2":
        values["attention_bias"] = config.attention_out_bias
    if config.family == "llama":
        values["mlp_bias"] = False
    return values | _written_sliding(config) | (_written_gemma(config) if gemma else {})


def _written_sliding(config: ModelConfig) -> dict[str, Any]:
    if config.family == "llama":
        return {}
    slides = [config.slides(i) for i in range(config.num_layers)]
    used = {} if config.family == "gemma3" else {"use_sliding_window": any(slides)}
    if not any(slides) and used:
        return used
    # Earlier than layer_types there was only a first layer that slides.
    first = {} if config.family == "gemma3" else {"max_window_layers": slides.index(True)}
    kinds = ["sliding_attention" if one else "full_attention" for one in slides]
    # transformers asks a Gemma 3 for a window even where no layer slides.
    return used | first | {"sliding_window": config.sliding_window or config.max_positions, "layer_types": kinds}


def _written_gemma(config: ModelConfig) -> dict[str, Any]:
    scale = config.query_scale or config.head_dim
    return {
        "query_pre_attn_scalar": int(scale) if scale == int(scale) else scale,
        "final_logit_softcapping": config.logit_softcap or None,
        "attn_logit_softcapping": None,
    }
