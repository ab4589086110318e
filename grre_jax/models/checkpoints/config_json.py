"""A config.json of Hugging Face to `ModelConfig` and back, and names of tensors, by `families`.

The configuration classes of transformers resolve a file: defaults of absent fields, and the
layouts of transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`). Files are
written in both layouts.
"""

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

from grre_jax.domains import ConfigError, checked
from grre_jax.errors import UsageError
from grre_jax.json_files import Tokens, check, fields_of
from grre_jax.models.checkpoints import config_fields
from grre_jax.models.checkpoints.families import FAMILIES, Row, model_type
from grre_jax.models.config import ModelConfig

# Option of `ModelConfig` -> field of config.json, in all families.
OPTIONS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "rms_norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
    "max_positions": "max_position_embeddings",
}

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
    return values.get("architectures") == [MULTIMODAL]


def text_tensor(stored: str) -> str | None:
    """Returns the name of a tensor in the text model of a model of text and images; None for one of
    another part.
    """
    for prefix, target in _TEXT_PREFIXES.items():
        if stored.startswith(prefix):
            return target + stored.removeprefix(prefix)
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


def _family(values: dict[str, Any]) -> str:
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


def _options(row: Row) -> dict[str, str]:
    """Returns the field of each option of `ModelConfig` that is the value of one."""
    return OPTIONS | {"intermediate_size": row.width} | row.options


def _resolved(values: dict[str, Any], family: str) -> Any:
    """Returns the configuration of transformers.

    Raises:
        ConfigError: a field is missing, unknown or outside its domain, or has an option that the
            family lacks here.
    """
    from transformers import CONFIG_MAPPING

    row = FAMILIES[family]
    kind: Any = CONFIG_MAPPING[model_type(family)]
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    domains = {name: config_fields.DOMAINS.get(name, Any) for name in defaults} | row.fields
    domains |= dict.fromkeys(config_fields.UNDECLARED, Any)
    check(
        values,
        config_fields.UNUSED | domains | config_fields.NAMES,
        required=config_fields.REQUIRED,
        unsupported=config_fields.UNSUPPORTED,
    )
    mapped = {*_options(row).values(), "intermediate_size", *config_fields.LAYERED}
    fields = {}
    skipped = {*config_fields.HARMLESS, *config_fields.NAMES, *_IDS} - mapped
    for name in sorted((domains.keys() & values.keys()) - skipped):
        default = defaults.get(name)
        is_other = values[name] != default and bool(values[name] or default)
        if name not in mapped and domains[name] is Any and name in defaults and is_other:
            raise ConfigError(name, f"{default!r}: this family has no other here", values[name])
        fields[name] = values[name]
    try:
        # It changes objects of rotary fields, and does so again for a model.
        resolved = kind(**copy.deepcopy(fields), **dict.fromkeys(_IDS))
        resolved.standardize_rope_params()
        return resolved
    except Exception as error:  # it validates values, and computes with them
        domain = f"what {kind.__name__} of transformers takes ({' '.join(str(error).split())})"
        raise ConfigError("fields", domain, fields) from error


def _layers(resolved: Any, row: Row) -> dict[str, Any]:
    """Returns the options by layer: which have the sliding window, and which rotate."""
    count = resolved.num_hidden_layers
    window = None
    if getattr(resolved, "use_sliding_window", True):
        window = getattr(resolved, "sliding_window", None)
    kinds = getattr(resolved, "layer_types", None)
    slides = (bool(window),) * count
    if kinds is not None:
        if not {config_fields.FULL, config_fields.SLIDING}.issuperset(kinds):
            raise ConfigError(
                "layer_types", f"{config_fields.FULL} or {config_fields.SLIDING}", kinds
            )
        slides = tuple(kind == config_fields.SLIDING for kind in kinds)
    rotates = (True,) * count
    if row.rotated == "listed":
        rotates = tuple(map(bool, resolved.no_rope_layers))
    elif row.rotated == "sliding" and window:
        rotates = slides
    return {
        "sliding_window": (window or 0) if any(slides) else 0,
        "sliding_layers": slides if any(slides) else (),
        "rotated_layers": () if all(rotates) else rotates,
    }


def _rotary(resolved: Any, row: Row, slides: bool) -> dict[str, Any]:
    """Returns the options of the rotary embedding."""
    rope = checked("rope_parameters", dict, resolved.rope_parameters)
    prefix = "rope_parameters."
    local_theta = 0.0
    if row.layered:
        kinds = (config_fields.FULL, config_fields.SLIDING)
        check(rope, dict.fromkeys(kinds, dict), prefix, required=kinds)
        local_theta, _ = config_fields.read_rope(rope[kinds[1]], f"{prefix}{kinds[1]}.", ())
        rope = rope[kinds[0]]
        prefix = f"{prefix}{kinds[0]}."
        # transformers 5 reads it beside the kinds of layers alone, where it is true.
        if rope.get("truncate", True) is not True:
            raise ConfigError(f"{prefix}truncate", "true", rope["truncate"])
    theta, scaling = config_fields.read_rope(rope, prefix, row.scalings)
    share = rope.get(config_fields.PARTIAL)
    if share not in (None, 1) and not row.partial:
        raise ConfigError(config_fields.PARTIAL, "1: this family rotates whole heads", share)
    return {
        "rope_theta": theta,
        "rope_scaling": scaling,
        "local_rope_theta": local_theta if slides else 0.0,
        "rotary_share": 1.0 if share is None else share,
    }


_IDS = ("eos_token_id", "bos_token_id", "pad_token_id")


def _special_ids(values: dict[str, Any], generation: dict[str, Any] | None) -> dict[str, Any]:
    """Returns eos_ids and bos_id; generation_config.json takes precedence over config.json."""
    special_ids: dict[str, Any] = {}
    for field in ("eos_token_id", "bos_token_id"):
        ids = (generation or {}).get(field)
        ids = checked(field, Tokens, values.get(field) if ids is None else ids)
        special_ids[field] = [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
        if any(i >= values["vocab_size"] for i in special_ids[field]):
            raise ConfigError(field, f"token ids below vocab_size={values['vocab_size']}", ids)
    bos = special_ids["bos_token_id"]
    return {"eos_ids": tuple(special_ids["eos_token_id"]), "bos_id": bos[0] if bos else None}


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
        resolved = _resolved(values, family)
        fields = _options(row)
        resolved_values = {
            option: getattr(resolved, field, None) for option, field in fields.items()
        }
        options = {option: value for option, value in resolved_values.items() if value is not None}
        heads = options["num_heads"]
        options.setdefault("num_kv_heads", heads)
        options.setdefault("head_dim", max(1, options["hidden_size"] // max(1, heads)))
        options |= _layers(resolved, row)
        options |= _rotary(resolved, row, any(options["sliding_layers"]))
        query_scale = getattr(resolved, "query_pre_attn_scalar", 0)
        if query_scale != options["head_dim"]:
            options["query_scale"] = query_scale
        try:
            return ModelConfig(
                family=family, **options, **_special_ids(values, generation), **row.fixed
            )
        except ConfigError as error:
            fields |= {
                "rotary_share": config_fields.PARTIAL,
                "query_scale": "query_pre_attn_scalar",
            }
            field = fields.get(error.field, error.field)
            raise ConfigError(field, error.domain, error.value) from error


def _check_expressible(config: ModelConfig, values: dict[str, Any], architecture: str) -> None:
    """Raises UsageError or DataError unless the model is read from a config.json as it is."""
    read = dataclasses.asdict(config_from_dict(values))
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
        UsageError, DataError: the architecture of `config.family` cannot express an option.
    """
    row = FAMILIES[config.family]
    eos = list(config.eos_ids)
    activation = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}[config.activation]
    values: dict[str, Any] = {
        "architectures": [row.architecture],
        "model_type": model_type(config.family),
        "intermediate_size": config.intermediate_size,
        row.activation: activation,
        **config_fields.write_rope(config, layered=row.layered, partial=row.partial),
        "bos_token_id": config.bos_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "torch_dtype": dtype,
        "dtype": dtype,
        # Else transformers takes the id of the published models, which a small vocabulary lacks.
        "pad_token_id": None,
    }
    for option, field in _options(row).items():
        value = getattr(config, option)
        # Caps are 0 here and null there for none.
        values[field] = None if value == 0 and not isinstance(value, bool) else value
    values |= _written_layers(config, row)
    if row.activation == "hidden_activation":
        values["query_pre_attn_scalar"] = int(config.query_scale or config.head_dim)
    _check_expressible(config, values, row.architecture)
    return values


def _written_layers(config: ModelConfig, row: Row) -> dict[str, Any]:
    slides = [config.slides(i) for i in range(config.num_layers)]
    rotates = [int(config.rotates(i)) for i in range(config.num_layers)]
    values: dict[str, Any] = {"no_rope_layers": rotates} if row.rotated == "listed" else {}
    if row.windows == "none":
        return values
    if row.windows == "chosen":
        values |= {"use_sliding_window": any(slides)}
    if row.windows == "all" or (row.windows == "chosen" and not any(slides)):
        return values | {"sliding_window": config.sliding_window or None}
    kinds = [config_fields.SLIDING if one else config_fields.FULL for one in slides]
    # transformers requires a window even if no layer slides, but of an EXAONE 4 that rotates.
    window = config.sliding_window or config.max_positions
    if row.rotated == "sliding" and not any(slides) and all(rotates):
        window = None
    return values | {"sliding_window": window, "layer_types": kinds}
