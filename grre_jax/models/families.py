"""What the Hugging Face families call things: config.json to `ModelConfig` and back, and the names of the tensors.

Configurations in the layout of transformers 4 (`rope_theta`, `torch_dtype`) and 5 (`rope_parameters`, `dtype`) are both read;
what is written carries both.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.models.config import ModelConfig

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}

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
# Buffers that old checkpoints stored and that follow from the configuration.
IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

_MISSING = object()


def tensor_names(parameter: str, num_layers: int) -> list[str]:
    """The checkpoint's tensors that make up a parameter ("embed", "layers.q_proj", ...): one, or one a layer."""
    if parameter.startswith("layers."):
        return [f"model.layers.{i}.{LAYER_NAMES[parameter.removeprefix('layers.')]}" for i in range(num_layers)]
    return [TOP_NAMES[parameter]]


def is_transposed(parameter: str) -> bool:
    """Whether the checkpoint stores the parameter as [out, in]."""
    return parameter.endswith("_proj")


def _family(values: dict[str, Any], where: Path) -> str:
    supported = ", ".join(ARCHITECTURES)
    named = values.get("architectures") or []
    if named:
        if named[0] not in ARCHITECTURES:
            raise DataError(f"{where}: architecture {named[0]} is not supported: use a checkpoint of {supported}")
        return ARCHITECTURES[named[0]]
    kind = values.get("model_type")
    if kind not in ARCHITECTURES.values():
        raise DataError(f"{where}: model_type {kind!r} is not supported and no architecture is named: use a checkpoint of {supported}")
    return kind


def _rope_theta(values: dict[str, Any], where: Path) -> float:
    """The rotary base; everything else about the rotary embedding must be the plain one."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = values.get(key) or {}
        if not isinstance(rope, dict):
            raise DataError(f"{where}: {key} must be an object or null, got {rope!r}")
        kind = rope.get("rope_type", rope.get("type", "default"))
        nested = [k for k, v in rope.items() if isinstance(v, dict)]
        if kind != "default" or nested:
            raise DataError(f"{where}: {key} of type {nested or kind} is not supported: only plain rotary embeddings (type 'default') are")
        if rope.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0)) != 1.0:
            raise DataError(f"{where}: partial_rotary_factor is not supported: only models that rotate the whole head are")
    theta = (values.get("rope_parameters") or {}).get("rope_theta", values.get("rope_theta")) or 10_000.0
    if not isinstance(theta, (int, float)):
        raise DataError(f"{where}: rope_theta must be a number, got {theta!r}")
    return float(theta)


def _eos_ids(value: Any, where: Path) -> tuple[int, ...]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise DataError(f"{where}: eos_token_id must be a token id or a list of them, got {value!r}")
    return tuple(ids)


def _refuse_unsupported(values: dict[str, Any], num_layers: int, where: Path) -> None:
    if values.get("hidden_act", "silu") != "silu":
        raise DataError(f"{where}: hidden_act {values['hidden_act']!r} is not supported: only 'silu' is")
    if values.get("mlp_bias"):
        raise DataError(f"{where}: mlp_bias is not supported: use a checkpoint without biases in its feed-forward layers")
    if values.get("quantization_config"):
        method = values["quantization_config"].get("quant_method", "unnamed")
        raise DataError(f"{where}: quantization_config ({method}) is not supported: use the unquantized checkpoint")
    layers = values.get("layer_types")
    windowed = values.get("use_sliding_window") and values.get("sliding_window") is not None
    if layers is None and windowed and values.get("max_window_layers", 28) < num_layers:
        raise DataError(f"{where}: sliding_window is in use and not supported: use a checkpoint with full attention")
    if any(kind != "full_attention" for kind in layers or ()):
        raise DataError(f"{where}: layer_types other than full_attention are not supported: use a checkpoint with full attention")


def config_from_dict(values: dict[str, Any], where: Path = Path("config.json"), eos_token_id: int | list[int] | None = None) -> ModelConfig:
    """The shape of a model from the contents of its config.json.

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

    hidden, heads, layers = number("hidden_size"), number("num_attention_heads"), number("num_hidden_layers")
    _refuse_unsupported(values, layers, where)
    eos = _eos_ids(values.get("eos_token_id") if eos_token_id is None else eos_token_id, where)
    bias = bool(values.get("attention_bias", False))
    try:
        return ModelConfig(
            vocab_size=number("vocab_size"),
            hidden_size=hidden,
            intermediate_size=number("intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            # Where the field is absent each family has its own default, as in transformers.
            num_kv_heads=number("num_key_value_heads", heads if family == "llama" else 32),
            head_dim=number("head_dim", 128 if family == "qwen3" else hidden // max(heads, 1)),
            rope_theta=_rope_theta(values, where),
            rms_norm_eps=number("rms_norm_eps", 1e-6, float),
            tie_embeddings=bool(values.get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2" or bias,
            attention_out_bias=family != "qwen2" and bias,
            qk_norm=family == "qwen3",
            max_positions=number("max_position_embeddings", 2048 if family == "llama" else 32_768),
            family=family,
            eos_ids=eos,
        )
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error


def config_to_dict(config: ModelConfig, dtype: str = "float32") -> dict[str, Any]:
    """The contents of the config.json that `transformers` reads back as this model.

    Args:
        config: the shape.
        dtype: of the stored tensors, as transformers spells it ("float32", "bfloat16", ...).

    Raises:
        UsageError: if `config.family` is unknown or its architecture cannot express the biases and norms of `config`.
    """
    architecture = next((name for name, family in ARCHITECTURES.items() if family == config.family), None)
    if architecture is None:
        known = ", ".join(ARCHITECTURES.values())
        raise UsageError(f"family={config.family!r} names no architecture that transformers loads: use one of {known}")
    options = {name: getattr(config, name) for name in ("qkv_bias", "attention_out_bias", "qk_norm")}
    out = config.attention_out_bias
    expressible = {"llama": [(out, out, False)], "qwen2": [(True, False, False)], "qwen3": [(out, out, True)]}
    if tuple(options.values()) not in expressible[config.family]:
        raise UsageError(
            f"{', '.join(f'{k}={v}' for k, v in options.items())} cannot be written as {architecture}: llama has both biases or none, "
            "qwen2 the qkv_bias alone, qwen3 the qk_norm with both biases or none"
        )
    eos = list(config.eos_ids)
    values: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "torch_dtype": dtype,
        "dtype": dtype,
    }
    if config.family != "qwen2":
        values["attention_bias"] = config.attention_out_bias
    if config.family == "llama":
        values["mlp_bias"] = False
    else:
        values["use_sliding_window"] = False
    return values
