"""LoRA adapters in the format of PEFT (adapter_config.json, adapter_model.safetensors).

The embedding and the head that an adapter holds as a whole (PEFT's `modules_to_save`) replace those
of the base and are frozen, as the rest of the base is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx
from jax.sharding import NamedSharding
from jaxtyping import Array

from grre_jax import json_files as fields
from grre_jax.errors import DataError, UsageError
from grre_jax.models import lora
from grre_jax.models.checkpoints import families, streaming
from grre_jax.models.checkpoints.export import new_folder
from grre_jax.models.checkpoints.huggingface import ADAPTER_CONFIG
from grre_jax.models.checkpoints.safetensors_files import SafetensorsSource
from grre_jax.models.config import ModelConfig
from grre_jax.models.lora import LoraConfig
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import processes

CONFIG_FILE, WEIGHTS_FILE = ADAPTER_CONFIG, "adapter_model.safetensors"

_off = partial(
    fields.off,
    remedy="use an adapter made without this option, or merge it into its base with PEFT first",
)
# Modules that an adapter may hold as a whole: names in PEFT's `modules_to_save` -> parameter. With
# `ensure_weight_tying` PEFT writes the long name.
_MODULES = {"embed_tokens": "embed", "model.embed_tokens": "embed", "lm_head": "head"}
# Domains of the fields of PEFT that determine the output of an adapter: alpha / rank * A @ B on
# every layer of some projections. Other adapters are refused.
_READ = {
    "peft_type": _off("LORA"),
    "task_type": fields.one_of("CAUSAL_LM", None),
    "r": fields.integer(1),
    "lora_alpha": fields.number(above=0),
    "use_rslora": fields.FLAG,
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), fields.OBJECT | fields.NULL),
    "target_modules": fields.TEXT | fields.list_of(fields.TEXT, "a list of names"),
    "bias": _off("none"),
    **dict.fromkeys(("fan_in_fan_out", "use_dora", "use_qalora", "lora_bias"), _off(False, None)),
    **dict.fromkeys(
        "exclude_modules layers_to_transform"
        " layers_pattern layer_replication trainable_token_indices target_parameters"
        " alora_invocation_tokens megatron_config velora_config monteclora_config use_bdlora"
        " arrow_config kasa_config".split(),
        _off(None, [], {}),
    ),
    "modules_to_save": _off(None, [], {})
    | fields.list_of(fields.one_of(*_MODULES), "a list of embed_tokens and lm_head"),
    # PEFT subtracts the other initial values from the base, which then is not the checkpoint that
    # the adapter names.
    "init_lora_weights": _off(True, False, "gaussian", "eva", "orthogonal"),
}
# Fields that do not change the output of a trained adapter, and why. Any value is accepted.
HARMLESS = {
    "names the origin of the adapter": (
        "auto_mapping peft_version base_model_name_or_path revision inference_mode"
    ),
    "is for training in PEFT": "lora_dropout runtime_config ensure_weight_tying",
    "belongs to an option that is refused if it is on": (
        "megatron_core qalora_group_size loftq_config eva_config corda_config lora_ga_config"
    ),
}
FIELDS = _READ | dict.fromkeys(" ".join(HARMLESS.values()).split(), fields.ANY)
_TENSOR = re.compile(
    r"base_model\.model\.model\.layers\.\d+\.(?:self_attn|mlp)\.(\w+)\.lora_[AB]\.weight"
)


def save_adapter(model: Transformer, path: str | os.PathLike, *, base: str) -> Path:
    """Writes the low-rank terms as a folder that `peft.PeftModel.from_pretrained` loads, with the
    embedding and the head that came with an adapter.

    The folder is created atomically. All processes call this, and the first writes.

    Args:
        model: a model with low-rank terms.
        path: the folder to create; it may exist if it is empty.
        base: the checkpoint that the terms belong to, for PEFT's `base_model_name_or_path`.

    Returns:
        The folder.

    Raises:
        UsageError: the model has no low-rank terms, or the folder exists and is not empty.
    """
    if model.lora is None:
        raise UsageError("the model has no LoRA weights to write apart: write the whole model")
    tensors: dict[str, np.ndarray] = {}
    for name in lora.parameter_names(model.lora):
        for layer, value in enumerate(processes.fetch(getattr(model.layers, name)[...])):
            tensors[_tensor_name(name, layer)] = np.ascontiguousarray(value.T)
    for name in sorted(model.saved):
        tensors[_saved_name(name)] = processes.fetch(getattr(model, name)[...])

    def write() -> None:
        with new_folder(path) as temporary:
            file = temporary / WEIGHTS_FILE
            safetensors.numpy.save_file(tensors, file, metadata={"format": "pt"})
            text = json.dumps(_written_config(model.lora, model.saved, base), indent=2) + "\n"
            (temporary / CONFIG_FILE).write_text(text, encoding="utf-8")

    processes.on_first(write)
    return Path(path)


def _tensor_name(parameter: str, layer: int) -> str:
    projection, _, half = parameter.split("_")
    module = families.tensor_name(f"{projection}_proj", layer).removesuffix(".weight")
    return f"base_model.model.{module}.lora_{half.upper()}.weight"


def _saved_name(parameter: str) -> str:
    return f"base_model.model.{families.TOP_NAMES[parameter]}"


def _written_config(config: LoraConfig, saved: frozenset[str], base: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": int(config.alpha) if config.alpha == int(config.alpha) else config.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(config.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": [name for name in ("embed_tokens", "lm_head") if _MODULES[name] in saved]
        or None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "layers_to_transform": None,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def load_adapter_config(path: str | os.PathLike) -> LoraConfig:
    """Returns rank, alpha and projections of an adapter folder.

    Rank-stabilised scaling (alpha / sqrt(rank)) is read as the alpha of the same scale. With
    `rank_pattern` or `alpha_pattern` the rank is the largest one, and alpha as large.

    Args:
        path: a folder with adapter_config.json and adapter_model.safetensors.

    Raises:
        DataError: a file is missing or damaged, or the adapter has an option that is not supported.
            Names the file, and the field or tensor.
    """
    folder = Path(path)
    file = folder / CONFIG_FILE
    if not os.path.lexists(file):
        raise DataError(
            f"{folder}: {CONFIG_FILE} is missing: give the folder of a LoRA adapter, as `grre"
            " export --adapter` or PEFT writes it"
        )
    values = fields.read_object(file)
    fields.check(values, FIELDS, file)
    for name in ("peft_type", "r", "target_modules"):
        if name not in values:
            raise DataError(f"{file}: the field {name} is missing: restore the adapter's own file")
    present = SafetensorsSource(folder, WEIGHTS_FILE).names()
    tensors = sorted(present - {_saved_name(name) for name in _saved(values, present, folder)})
    targets = {_projection(name, folder) for name in tensors}
    _check_targets(values["target_modules"], tensors, targets, file)
    rank, alpha = values["r"], float(values.get("lora_alpha", 8))
    alpha = alpha * rank**0.5 if values.get("use_rslora") else alpha
    if values.get("rank_pattern") or values.get("alpha_pattern"):
        # Terms are padded to the largest rank, and their scales are folded into B.
        rank = max(_rank_and_scale(values, tensor, file)[0] for tensor in tensors)
        alpha = float(rank)
    try:
        return LoraConfig(rank, alpha, tuple(targets))
    except ValueError as error:
        raise DataError(f"{folder}: {error}") from error


def saved_parameters(path: str | os.PathLike) -> frozenset[str]:
    """Returns those of "embed" and "head" that an adapter folder holds as a whole.

    Args:
        path: a folder as for `load_adapter_config`.

    Raises:
        DataError: see `load_adapter_config`.
    """
    folder = Path(path)
    values = fields.read_object(folder / CONFIG_FILE)
    return _saved(values, SafetensorsSource(folder, WEIGHTS_FILE).names(), folder)


def adapted_shape(shape: ModelConfig, path: str | os.PathLike) -> ModelConfig:
    """Returns the shape that a model has with an adapter: an embedding or a head of its own unties
    the two.

    Args:
        shape: of the base.
        path: a folder as for `load_adapter_config`.

    Raises:
        DataError: see `load_adapter_config`.
    """
    untied = dataclasses.replace(shape, tie_embeddings=False)
    return untied if saved_parameters(path) else shape


def _saved(values: dict[str, Any], present: set[str], folder: Path) -> frozenset[str]:
    named = frozenset(_MODULES[name] for name in values.get("modules_to_save") or ())
    for name in sorted(named):
        if _saved_name(name) not in present:
            raise DataError(
                f"{folder / WEIGHTS_FILE}: expected tensor {_saved_name(name)} of the field"
                " modules_to_save, got none. Use the whole adapter."
            )
    if named and values.get("ensure_weight_tying"):
        # PEFT names the embedding alone and writes the head beside it.
        return frozenset(name for name in _MODULES.values() if _saved_name(name) in present)
    return named


def _module(tensor: str) -> str:
    return tensor.removeprefix("base_model.model.").rsplit(".", 2)[0]


def _rank_and_scale(values: dict[str, Any], tensor: str, file: Path) -> tuple[int, float]:
    """Returns the rank of a tensor's term and the factor of A @ B, by the first pattern that
    matches its module, as PEFT does.
    """
    module = _module(tensor)
    found = {"rank_pattern": values["r"], "alpha_pattern": values.get("lora_alpha", 8)}
    domains = {"rank_pattern": fields.integer(1), "alpha_pattern": fields.number(above=0)}
    for name, domain in domains.items():
        for pattern, value in (values.get(name) or {}).items():
            fields.require(value, domain, file, f"{name}.{pattern}")
            try:
                matches = re.match(rf"(.*\.)?({pattern})$", module)
            except re.error as error:
                raise DataError(
                    f"{file}: the field {name}: expected names or regular expressions, got"
                    f" {pattern!r} ({error}). Restore the adapter's own file."
                ) from error
            if matches:
                found[name] = value
                break
    rank, alpha = found["rank_pattern"], float(found["alpha_pattern"])
    return rank, alpha / (rank**0.5 if values.get("use_rslora") else rank)


def _check_targets(
    named: str | list[str], tensors: list[str], targets: set[str], file: Path
) -> None:
    """Refuses tensors that PEFT would ignore, and names in target_modules without tensors."""
    # PEFT matches a pattern with the whole name of a module, or names with its last parts.
    names = [] if isinstance(named, str) else named
    ends = "|".join(map(re.escape, names))
    pattern = named if isinstance(named, str) else rf"(.*\.)?({ends})"
    try:
        ignored = [
            tensor
            for tensor in tensors
            if named != "all-linear" and not re.fullmatch(pattern, _module(tensor))
        ]
    except re.error as error:
        raise DataError(
            f"{file}: the field target_modules: expected a regular expression or a list of"
            f" names, got {fields.shown(named)} ({error}): restore the adapter's own file"
        ) from error
    missing = [name for name in names if name.rsplit(".", 1)[-1] not in targets]
    if ignored or missing:
        raise DataError(
            f"{file}: the field target_modules = {fields.shown(named)} and the tensors of"
            f" {WEIGHTS_FILE} differ in {(ignored + missing)[0]}: use the whole adapter"
        )


def add_adapter(model: Transformer, path: str | os.PathLike) -> None:
    """Adds the low-rank terms of an adapter folder to a model, in float32 or wider.

    An embedding and a head in it (`modules_to_save`) replace the model's, in their dtype, and are
    part of the frozen base in training. A tied head becomes a parameter of its own, as in PEFT.

    Args:
        model: a model without low-rank terms, which is changed.
        path: a folder as for `load_adapter_config`.

    Raises:
        UsageError: the model has low-rank terms.
        DataError: see `load_adapter_config`; or a tensor is missing, unexpected, not finite, or of
            the wrong shape for the model.
    """
    if model.lora is not None:
        raise UsageError(
            "the model has LoRA weights already: merge them first (models.merged), or load the base"
            " model again"
        )
    folder, config = Path(path), load_adapter_config(path)
    weights, values = SafetensorsSource(folder, WEIGHTS_FILE), {}
    stored = fields.read_object(folder / CONFIG_FILE)
    saved = _saved(stored, weights.names(), folder)
    patterned = stored.get("rank_pattern") or stored.get("alpha_pattern")
    file, expected = folder / WEIGHTS_FILE, {_saved_name(name) for name in saved}
    for name in lora.parameter_names(config):
        projection, _, half = name.split("_")
        fan_in, fan_out = lora.sizes(model.config, projection)
        layers = [_tensor_name(name, layer) for layer in range(model.config.num_layers)]
        expected |= set(layers)
        terms = [_rank_and_scale(stored, tensor, folder / CONFIG_FILE) for tensor in layers]
        for tensor, (rank, _) in zip(layers, terms, strict=True):
            shape = (rank, fan_in) if half == "a" else (fan_out, rank)
            found = weights.shape(tensor) if tensor in weights.names() else "none"
            if found != shape:
                raise DataError(
                    f"{file}: tensor {tensor}: expected shape {shape} for this model, got"
                    f" {found}: give the base model that the adapter was made for"
                )
        dtype = jnp.promote_types(model.embed[...].dtype, jnp.float32)
        read = [weights.read(tensor, (slice(None), slice(None))) for tensor in layers]
        for tensor, value in zip(layers, read, strict=True):
            if not np.isfinite(value).all():
                raise DataError(
                    f"{file}: tensor {tensor} contains values that are not finite: copy or train"
                    " the adapter again"
                )
        if patterned:
            read = [
                _padded(value, config.rank, scale / config.scale, half)
                for value, (_, scale) in zip(read, terms, strict=True)
            ]
        values[name] = jnp.asarray(np.stack([value.T for value in read]), dtype)
    if extra := sorted(weights.names() - expected):
        raise DataError(
            f"{file}: tensor {extra[0]} is unexpected, the model has {model.config.num_layers}"
            " layers: give the base model that the adapter was made for"
        )
    tables = _read_tables(model, weights, saved, stored, file)
    if saved and model.config.tie_embeddings:
        model.config = model.layers.config = adapted_shape(model.config, folder)
        model.head = nnx.Param(model.embed[...])
    for name, value in tables.items():
        setattr(model, name, nnx.Param(value))
    model.saved = saved
    model.layers.add_lora(config, values)


def _read_tables(
    model: Transformer,
    weights: SafetensorsSource,
    saved: frozenset[str],
    stored: dict[str, Any],
    file: Path,
) -> dict[str, Array]:
    """Reads the embedding and the head of an adapter, laid out as the model's embedding."""
    tied = model.config.tie_embeddings
    if saved and tied and stored.get("ensure_weight_tying") and len(saved) == 1:
        raise DataError(
            f"{file}: expected embed_tokens and lm_head, which the field ensure_weight_tying ties,"
            f" got {', '.join(saved)} alone. Save the adapter again with PEFT."
        )
    source = weights.renamed({families.TOP_NAMES[name]: _saved_name(name) for name in saved})
    table = model.embed[...]
    sharding = table.sharding if isinstance(table.sharding, NamedSharding) else None
    tables = {}
    for name in sorted(saved):
        if (found := weights.shape(_saved_name(name))) != table.shape:
            raise DataError(
                f"{file}: tensor {_saved_name(name)}: expected shape {table.shape} for this model,"
                f" got {found}: give the base model that the adapter was made for"
            )
        tables[name] = streaming.load_parameter(
            model.config, name, table.shape, table.dtype, source, sharding
        )
    return tables


def _padded(value: np.ndarray, rank: int, scale: float, half: str) -> np.ndarray:
    """Returns an A with rows of zeros, or a scaled B with columns of zeros, up to a rank."""
    value = value.astype(np.float32)
    if half == "a":
        return np.pad(value, ((0, rank - len(value)), (0, 0)))
    return np.pad(value * scale, ((0, 0), (0, rank - value.shape[1])))


def _projection(name: str, folder: Path) -> str:
    """Returns the projection of a tensor."""
    found = _TENSOR.fullmatch(name)
    if found is None or found[1] not in lora.TARGETS:
        known = ", ".join(lora.TARGETS)
        raise DataError(
            f"{folder / WEIGHTS_FILE}: expected the A and B of projections, got tensor {name}: use"
            f" an adapter on some of {known} alone, with embed_tokens and lm_head in"
            " modules_to_save or not at all"
        )
    return found[1]
