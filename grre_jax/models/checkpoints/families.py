"""The model families of Hugging Face: config.json to `ModelConfig` and back, names of tensors.

Configurations in the layout of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and 5
(`rope_parameters`, `dtype`) are both read; files are written with both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grre_jax.domains import ConfigError, checked
from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import check, fields_of
from grre_jax.models.checkpoints import config_fields, rope_fields
from grre_jax.models.config import Family, ModelConfig

ARCHITECTURES: dict[Family, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}

# A model of text and images, of which the text model is read, and where transformers has stored
# the tensors of the text model.
MULTIMODAL = "Gemma3ForConditionalGeneration"
_TEXT_PREFIXES = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "lm_head.": "lm_head.",
}

# Parameter of the model -> tensor of the checkpoint, where *_proj matrices are [out, in].
TOP_NAMES = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    **{f"{p}_proj": f"self_attn.{p}_proj.weight" for p in "qkvo"},
    **{f"{p}_bias": f"self_attn.{p}_proj.bias" for p in "qkvo"},
    **{f"{p}_norm": f"self_attn.{p}_norm.weight" for p in "qk"},
    **{f"{p}_proj": f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")},
}
# Names in models that also have norms after the halves of a block.
FOUR_NORMS = {
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_attn_norm": "post_attention_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}
# Buffers that old checkpoints stored and that follow from the configuration.
IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

# Options that are the same in every model of a family.
_FIXED: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"qk_norm": True},
    "gemma3": {
        "qk_norm": True,
        "activation": "gelu_tanh",
        "unit_offset_norms": True,
        "post_norms": True,
        "scale_embeddings": True,
    },
}


def is_multimodal(values: dict[str, Any]) -> bool:
    """True if a config.json describes a model of text and images."""
    named = values.get("architectures")
    return named == [MULTIMODAL] if named else values.get("model_type") == "gemma3"


def text_tensors(names: Iterable[str]) -> dict[str, str]:
    """Returns the tensors of the text model of a model of text and images: stored name by name."""
    return {
        own + name.removeprefix(stored): name
        for name in names
        for stored, own in _TEXT_PREFIXES.items()
        if name.startswith(stored)
    }


def _text_values(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of the text model of a model of text and images."""
    values = _checked(values, config_fields.MULTIMODAL, ("text_config",))
    shared = ("eos_token_id", "bos_token_id", "tie_word_embeddings")
    own = {name: values[name] for name in shared if values.get(name) is not None}
    return config_fields.TEXT_DEFAULTS | values["text_config"] | own


def tensor_name(piece: str, layer: int | None = None, *, post_norms: bool = False) -> str:
    """Returns the name of a tensor in a checkpoint.

    Args:
        piece: name of the parameter, or of one projection of a fused one ("embed", "q_proj", ...).
        layer: index of the layer; None for parameters outside the layers.
        post_norms: `ModelConfig.post_norms`.
    """
    if layer is None:
        return TOP_NAMES[piece]
    names = LAYER_NAMES | FOUR_NORMS if post_norms else LAYER_NAMES
    return f"model.layers.{layer}.{names[piece]}"


def _family(values: dict[str, Any]) -> Family:
    """Returns the family that model_type names, or architectures if it is absent."""
    named, kind = (
        checked(name, annotation, values.get(name))
        for name, annotation in config_fields.NAMES.items()
    )
    for family, architecture in ARCHITECTURES.items():
        fits = not named or named == (architecture,)
        if (named or kind) and fits and kind in (None, MODEL_TYPES[family]):
            return family
    supported = ", ".join((*ARCHITECTURES.values(), MULTIMODAL))
    raise ConfigError("architectures and model_type", f"those of one of {supported}", [named, kind])


def _checked(
    values: dict[str, Any], fields: dict[str, Any], required: tuple[str, ...]
) -> dict[str, Any]:
    unsupported = config_fields.UNSUPPORTED
    fields = fields | config_fields.UNUSED
    return check(values, fields, required=required, unsupported=unsupported)


def _sliding(values: dict[str, Any], family: str) -> tuple[int, tuple[bool, ...]]:
    """Returns the window's length and one flag per layer; (0, ()) if no layer slides."""
    count, kinds, window = values["num_hidden_layers"], values.get("layer_types"), None
    if family == "gemma3" or values.get("use_sliding_window"):
        window = values["sliding_window"]
    if kinds is not None:
        allowed = {"full_attention"} | ({"sliding_attention"} if family != "llama" else set())
        if len(kinds) != count or not allowed.issuperset(kinds):
            domain = f"{' or '.join(sorted(allowed))} for each of num_hidden_layers={count} layers"
            raise ConfigError("layer_types", domain, kinds)
        slides = tuple(kind == "sliding_attention" for kind in kinds)
    elif family == "gemma3":
        slides = tuple(bool((i + 1) % values["sliding_window_pattern"]) for i in range(count))
    else:
        first = values["max_window_layers"] if window is not None else count
        slides = tuple(i >= first for i in range(count))
    if not any(slides):
        return 0, ()
    if not window:
        field = "sliding_window" if family == "gemma3" else "sliding_window and use_sliding_window"
        raise ConfigError(field, "a window for the layers with sliding_attention", None)
    return window, slides


def _special_ids(values: dict[str, Any], generation: dict[str, Any] | None) -> dict[str, Any]:
    """Returns eos_ids and bos_id; generation_config.json takes precedence over config.json."""
    found: dict[str, Any] = {}
    for field in ("eos_token_id", "bos_token_id"):
        name = f"{field} of generation_config.json"
        ids = (generation or {}).get(field)
        if ids is None:
            name = field
            ids = values.get(field)
        found[field] = [] if ids is None else [ids] if isinstance(ids, int) else ids
        if any(i >= values["vocab_size"] for i in found[field]):
            raise ConfigError(name, f"token ids below vocab_size={values['vocab_size']}", ids)
    bos = found["bos_token_id"]
    return {"eos_ids": tuple(found["eos_token_id"]), "bos_id": bos[0] if bos else None}


def config_from_dict(
    values: dict[str, Any],
    where: Path = Path("config.json"),
    generation: dict[str, Any] | None = None,
) -> ModelConfig:
    """Returns the shape of the model that a config.json describes.

    A field is read, known to change nothing (`config_fields.HARMLESS`), ignored with a warning if
    it is unknown and off (null, false, 0 or empty), or refused. Of a Gemma3ForConditionalGeneration
    the text model is read. `attn_logit_softcapping` has no effect in a Gemma3ForCausalLM of
    transformers (to 5.23), and therefore none here.

    Args:
        values: the parsed config.json.
        where: its path, for messages.
        generation: the parsed generation_config.json, whose eos_token_id and bos_token_id take
            precedence.

    Returns:
        The shape, with the defaults of transformers for fields that are absent.

    Raises:
        DataError: a field is missing, unknown or outside its domain, two fields contradict each
            other, or the model lacks the architecture or an option. Names the file and the field.
    """
    with fields_of(where):
        if is_multimodal(values):
            values = _text_values(values)
        family = _family(values)
        stored = _checked(values, config_fields.FIELDS[family], config_fields.REQUIRED)
        defaults: dict[str, Any] = config_fields.DEFAULTS[family]
        values = defaults | stored
        heads = values["num_attention_heads"]
        head_dim = values.get("head_dim") or max(1, values["hidden_size"] // heads)
        window, slides = _sliding(values, family)
        theta, scaling, local_theta = rope_fields.read(stored, layered=family == "gemma3")
        query_scale = values.get("query_pre_attn_scalar", 0)
        bias = values.get("attention_bias", False)
        return ModelConfig(
            vocab_size=values["vocab_size"],
            hidden_size=values["hidden_size"],
            intermediate_size=values["intermediate_size"],
            num_layers=values["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=values.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            rope_theta=theta,
            rms_norm_eps=values.get("rms_norm_eps", 1e-6),
            tie_embeddings=values.get("tie_word_embeddings", False),
            qkv_bias=family == "qwen2" or bias,
            attention_out_bias=family != "qwen2" and bias,
            rope_scaling=scaling,
            query_scale=0.0 if query_scale == head_dim else query_scale,
            logit_softcap=values.get("final_logit_softcapping") or 0.0,
            sliding_window=window,
            sliding_layers=slides,
            local_rope_theta=local_theta if slides else 0.0,
            max_positions=values["max_position_embeddings"],
            family=family,
            **_special_ids(values, generation),
            **_FIXED[family],
        )


def _check_expressible(config: ModelConfig, values: dict[str, Any], architecture: str) -> None:
    """Raises UsageError unless the model is read from a config.json as it is."""
    try:
        read = dataclasses.asdict(config_from_dict(values))
    except DataError as error:
        raise UsageError(f"the model cannot be written as {architecture}: {error}") from error
    if config.query_scale == config.head_dim:
        read["query_scale"] = config.query_scale
    if not any(config.sliding_layers):
        read |= {"sliding_window": config.sliding_window, "sliding_layers": config.sliding_layers}
    for field, value in dataclasses.asdict(config).items():
        if read[field] != value:
            raise UsageError(
                f"{field}={value} cannot be written as {architecture}, which has"
                f" {field}={read[field]} here: choose the family that fits"
            )


def config_to_dict(config: ModelConfig, dtype: str = "float32") -> dict[str, Any]:
    """Returns the contents of the config.json from which `transformers` makes the same model.

    Args:
        config: the shape.
        dtype: of the stored tensors ("float32", "bfloat16", ...).

    Raises:
        UsageError: the architecture of `config.family` cannot express an option.
    """
    architecture = ARCHITECTURES[config.family]
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
    values |= _written_sliding(config)
    if gemma:
        values["query_pre_attn_scalar"] = int(config.query_scale or config.head_dim)
        values["final_logit_softcapping"] = config.logit_softcap or None
        values["attn_logit_softcapping"] = None
    _check_expressible(config, values, architecture)
    return values


def _written_sliding(config: ModelConfig) -> dict[str, Any]:
    if config.family == "llama":
        return {}
    slides = [config.slides(i) for i in range(config.num_layers)]
    used = {} if config.family == "gemma3" else {"use_sliding_window": any(slides)}
    if not any(slides) and used:
        return used
    # For versions before layer_types, which had the first layer that slides instead.
    first = {} if config.family == "gemma3" else {"max_window_layers": slides.index(True)}
    kinds = ["sliding_attention" if one else "full_attention" for one in slides]
    # transformers requires a window of a Gemma 3 even if no layer slides.
    window = config.sliding_window or config.max_positions
    return used | first | {"sliding_window": window, "layer_types": kinds}
