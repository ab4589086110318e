"""The model families of Hugging Face: config.json to `ModelConfig` and back, names of tensors.

Configurations in the layout of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and 5
(`rope_parameters`, `dtype`) are both read; files are written with both.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from grre_jax.domains import ConfigError, checked
from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import check, fields_of
from grre_jax.models.checkpoints import config_fields, rope_fields
from grre_jax.models.checkpoints.family_table import FAMILIES, Row, model_type
from grre_jax.models.config import Family, ModelConfig

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
    "router_proj": "mlp.gate.weight",
    **{f"expert_{p}_proj": f"mlp.experts.*.{p}_proj.weight" for p in ("gate", "up", "down")},
}
# Names in models that also have norms after the halves of a block.
FOUR_NORMS = {
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_attn_norm": "post_attention_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}
# Buffers that old checkpoints stored and that follow from the configuration.
IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def is_multimodal(values: dict[str, Any]) -> bool:
    """True if a config.json describes a model of text and images."""
    named = values.get("architectures")
    return named == [MULTIMODAL] if named else values.get("model_type") == "gemma3"


def text_tensor(stored: str) -> str | None:
    """Returns the name of a tensor in the text model of a model of text and images; None for one of
    another part.
    """
    for prefix, own in _TEXT_PREFIXES.items():
        if stored.startswith(prefix):
            return own + stored.removeprefix(prefix)
    return None


def _text_values(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of the text model of a model of text and images."""
    text = checked("text_config", dict, values.get("text_config"))
    shared = {
        name: value
        for name, value in values.items()
        if value is not None and name not in config_fields.OF_IMAGES
    }
    return config_fields.TEXT_DEFAULTS | text | shared


def tensor_name(piece: str, layer: int | None = None, config: ModelConfig | None = None) -> str:
    """Returns the name of a tensor in a checkpoint.

    Args:
        piece: name of the parameter, or of one projection of a fused one ("embed", "q_proj", ...),
            or of one expert ("expert_up_proj.0", ...).
        layer: index of the layer; None for parameters outside the layers.
        config: the shape of the model; None for a name that is the same in all.
    """
    if layer is None:
        return TOP_NAMES[piece]
    names = LAYER_NAMES
    if config is not None:
        names = names | (FOUR_NORMS if config.post_norms else {}) | FAMILIES[config.family].names
    parameter, _, expert = piece.partition(".")
    return f"model.layers.{layer}.{names[parameter].replace('*', expert)}"


def _family(values: dict[str, Any]) -> Family:
    """Returns the family that model_type names, or architectures if it is absent."""
    named, kind = (
        checked(name, annotation, values.get(name))
        for name, annotation in config_fields.NAMES.items()
    )
    for family, row in FAMILIES.items():
        fits = not named or named == (row.architecture,)
        if (named or kind) and fits and kind in (None, model_type(family)):
            return family
    supported = ", ".join((*(row.architecture for row in FAMILIES.values()), MULTIMODAL))
    raise ConfigError("architectures and model_type", f"those of one of {supported}", [named, kind])


def _layers(values: dict[str, Any], row: Row) -> dict[str, Any]:
    """Returns the options by layer: which have the sliding window, and which rotate."""
    count = values["num_hidden_layers"]
    rotates = (True,) * count
    if row.rotated == "listed":
        rotates = _rotates(values, count)
    window = None
    if row.windows != "chosen" or values.get("use_sliding_window"):
        window = values.get("sliding_window")
    slides = _slides(values, row, rotates, window)
    if row.rotated == "sliding" and window:
        rotates = slides
    if any(slides) and not window:
        field = "sliding_window and use_sliding_window"
        raise ConfigError(field, "a window for the layers with sliding_attention", None)
    return {
        "sliding_window": window if any(slides) else 0,
        "sliding_layers": slides if any(slides) else (),
        "rotated_layers": () if all(rotates) else rotates,
    }


def _rotates(values: dict[str, Any], count: int) -> tuple[bool, ...]:
    given = values.get("no_rope_layers")
    if given is None:
        return tuple(bool((i + 1) % values["no_rope_layer_interval"]) for i in range(count))
    if len(given) != count:
        domain = f"one flag for each of num_hidden_layers={count} layers"
        raise ConfigError("no_rope_layers", domain, given)
    return tuple(map(bool, given))


def _slides(
    values: dict[str, Any], row: Row, rotates: tuple[bool, ...], window: int | None
) -> tuple[bool, ...]:
    """Returns one flag per layer, by layer_types or as the family does without it."""
    count = len(rotates)
    kinds = values.get("layer_types")
    full = "full_attention"
    sliding = "sliding_attention"
    if kinds is not None:
        allowed = {full} if row.windows == "none" else {full, sliding}
        if row.windows == "all":
            allowed = {sliding if window else full}
        if len(kinds) != count or not allowed.issuperset(kinds):
            domain = f"{' or '.join(sorted(allowed))} for each of num_hidden_layers={count} layers"
            raise ConfigError("layer_types", domain, kinds)
        return tuple(kind == sliding for kind in kinds)
    pattern = values.get("sliding_window_pattern", 0)
    if row.rotated == "sliding" and window and (isinstance(pattern, str) or not pattern):
        domain = f"layer_types for each of num_hidden_layers={count} layers beside it"
        raise ConfigError("sliding_window_pattern", domain, pattern)
    if row.windows == "chosen":
        # Qwen's last layers; SmolLM3's that do not rotate.
        first = values.get("max_window_layers", 0)
        by_rotation = row.rotated == "listed"
        chosen = (not rotates[i] if by_rotation else i >= first for i in range(count))
        return tuple(bool(window) and one for one in chosen)
    if row.windows == "none" or (not window and not pattern):
        return (False,) * count
    return tuple(not pattern or bool((i + 1) % pattern) for i in range(count))


def _special_ids(values: dict[str, Any], generation: dict[str, Any] | None) -> dict[str, Any]:
    """Returns eos_ids and bos_id; generation_config.json takes precedence over config.json."""
    found: dict[str, Any] = {}
    for field in ("eos_token_id", "bos_token_id"):
        ids = (generation or {}).get(field)
        ids = values.get(field) if ids is None else ids
        found[field] = [] if ids is None else [ids] if isinstance(ids, int) else ids
        if any(i >= values["vocab_size"] for i in found[field]):
            raise ConfigError(field, f"token ids below vocab_size={values['vocab_size']}", ids)
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
        row = FAMILIES[family]
        stored = check(
            values,
            config_fields.UNUSED | config_fields.READ | row.fields,
            required=config_fields.REQUIRED,
            unsupported=config_fields.UNSUPPORTED,
        )
        for alias, field in row.aliases.items():
            if alias in stored and stored.setdefault(field, stored[alias]) != stored[alias]:
                raise ConfigError(alias, f"{field}={stored[field]}, or none", stored[alias])
        values = row.defaults | stored
        heads = values["num_attention_heads"]
        head_dim = values.get("head_dim") or max(1, values["hidden_size"] // heads)
        layers = _layers(values, row)
        layered = row.local_theta > 0
        theta, scaling, local_theta = rope_fields.read(
            stored, layered=layered, theta=row.theta, local_theta=row.local_theta
        )
        if scaling is not None and scaling.kind not in row.scalings:
            raise ConfigError("rope_type", "default: this family has no other here", scaling.kind)
        query_scale = values.get("query_pre_attn_scalar", 0)
        options = {
            option: values[field]
            for option, field in row.options.items()
            if values.get(field) is not None
        }
        return ModelConfig(
            vocab_size=values["vocab_size"],
            hidden_size=values["hidden_size"],
            intermediate_size=values[row.width],
            num_layers=values["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=values.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            rope_theta=theta,
            rms_norm_eps=values.get("rms_norm_eps", 1e-6),
            tie_embeddings=values.get("tie_word_embeddings", False),
            rope_scaling=scaling,
            query_scale=0.0 if query_scale == head_dim else query_scale,
            local_rope_theta=local_theta if layers["sliding_layers"] else 0.0,
            rotary_share=rope_fields.rotary_share(stored, row.share),
            max_positions=values["max_position_embeddings"],
            family=family,
            **layers,
            **options,
            **_special_ids(values, generation),
            **row.fixed,
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
    row = FAMILIES[config.family]
    eos = list(config.eos_ids)
    activation = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}[config.activation]
    values: dict[str, Any] = {
        "architectures": [row.architecture],
        "model_type": model_type(config.family),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        **dict.fromkeys(("intermediate_size", row.width), config.intermediate_size),
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        **{f: activation for f in ("hidden_act", "hidden_activation") if f in row.fields},
        "rms_norm_eps": config.rms_norm_eps,
        **rope_fields.write(config, layered=row.local_theta > 0, partial=row.share is not None),
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "torch_dtype": dtype,
        "dtype": dtype,
        **row.written,
    }
    for option, field in row.options.items():
        value = getattr(config, option)
        # Caps are 0 here and null there for none.
        values[field] = None if value == 0 and not isinstance(value, bool) else value
    values |= _written_layers(config, row)
    if "query_pre_attn_scalar" in row.fields:
        values["query_pre_attn_scalar"] = int(config.query_scale or config.head_dim)
    _check_expressible(config, values, row.architecture)
    return values


def _written_layers(config: ModelConfig, row: Row) -> dict[str, Any]:
    slides = [config.slides(i) for i in range(config.num_layers)]
    rotates = [int(config.rotates(i)) for i in range(config.num_layers)]
    values: dict[str, Any] = {"no_rope_layers": rotates} if row.rotated == "listed" else {}
    if row.windows == "none":
        return values
    if row.windows == "all":
        return values | {"sliding_window": config.sliding_window or None}
    if row.windows == "chosen":
        values |= {"use_sliding_window": any(slides)}
        if not any(slides):
            return values
        if "max_window_layers" in row.fields:
            # For versions before layer_types, which had the first layer that slides instead.
            values |= {"max_window_layers": slides.index(True)}
    kinds = ["sliding_attention" if one else "full_attention" for one in slides]
    # transformers requires a window even if no layer slides, but of an EXAONE 4 that rotates.
    window = config.sliding_window or config.max_positions
    if row.rotated == "sliding" and not any(slides) and all(rotates):
        window = None
    return values | {"sliding_window": window, "layer_types": kinds}
