"""LoRA adapters in the format of PEFT (adapter_config.json, adapter_model.safetensors).

The embedding and the head that an adapter holds as a whole (PEFT's `modules_to_save`) replace those
of the base and are frozen, as the rest of the base is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx
from jax.sharding import NamedSharding

from grre_jax.domains import AboveZero, ConfigError, Positive
from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import check, fields_of, read_object
from grre_jax.models import lora
from grre_jax.models.checkpoints import families, streaming
from grre_jax.models.checkpoints.export import new_folder
from grre_jax.models.checkpoints.family_table import FAMILIES
from grre_jax.models.checkpoints.huggingface import ADAPTER_CONFIG
from grre_jax.models.checkpoints.safetensors_files import SafetensorsSource
from grre_jax.models.config import ModelConfig
from grre_jax.models.lora import LoraConfig
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import processes

CONFIG_FILE, WEIGHTS_FILE = ADAPTER_CONFIG, "adapter_model.safetensors"

# Modules that an adapter may hold as a whole: names in PEFT's `modules_to_save` -> parameter. With
# `ensure_weight_tying` PEFT writes the long name.
_MODULES = {"embed_tokens": "embed", "model.embed_tokens": "embed", "lm_head": "head"}
_Module = Literal["embed_tokens", "model.embed_tokens", "lm_head"]
# Domains of the fields of PEFT that determine the output of an adapter: alpha / rank * A @ B on
# every layer of some projections. Other adapters are refused.
_READ = {
    "peft_type": Literal["LORA"],
    "task_type": Literal["CAUSAL_LM", None],
    "r": Positive,
    "lora_alpha": AboveZero,
    "use_rslora": bool,
    "rank_pattern": dict[str, Positive] | None,
    "alpha_pattern": dict[str, AboveZero] | None,
    "target_modules": str | tuple[str, ...],
    "bias": Literal["none"],
    "layers_to_transform": Literal[None],  # 0 is a layer
    "modules_to_save": tuple[_Module, ...] | None,
    # PEFT subtracts the other initial values from the base, which then is not the checkpoint that
    # the adapter names.
    "init_lora_weights": Literal[True, False, "gaussian", "eva", "orthogonal"],
}
# Options of PEFT that must be off.
UNSUPPORTED = (
    "fan_in_fan_out use_dora use_qalora lora_bias exclude_modules layers_pattern layer_replication"
    " trainable_token_indices target_parameters alora_invocation_tokens megatron_config"
    " velora_config monteclora_config use_bdlora arrow_config kasa_config"
).split()
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
FIELDS = _READ | dict.fromkeys(" ".join(HARMLESS.values()).split(), Any)
_TENSOR = re.compile(
    r"base_model\.model\.model\.layers\.\d+\.(?:self_attn|mlp)"
    rf"\.({'|'.join(lora.TARGETS)})\.lora_[AB]\.weight"
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
        UsageError: the model has no low-rank terms, or they are on parts of a fused projection; or
            the folder exists and is not empty.
    """
    if model.lora is None:
        raise UsageError("the model has no LoRA weights to write apart: write the whole model")
    if parts := _fused_targets(model.config, model.lora):
        raise UsageError(
            f"{model.config.family} has one projection for {', '.join(parts)}, which no adapter in"
            " PEFT's format has apart: write the whole model"
        )
    tensors: dict[str, np.ndarray] = {}
    for name in lora.parameter_names(model.config, model.lora):
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


def _fused_targets(config: ModelConfig, terms: LoraConfig) -> list[str]:
    """Returns the projections with a term that are parts of a tensor of the family, or of experts,
    which are such parts in transformers.
    """
    parts = {part for whole in FAMILIES[config.family].fused.values() for part in whole}
    parts |= {"gate_proj", "up_proj", "down_proj"} if config.num_experts else set()
    return [name for name in terms.targets if name in parts]


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


class _Adapter:
    """An adapter folder, checked.

    Attributes:
        values: of adapter_config.json.
        weights: the tensors.
        saved: those of "embed" and "head" that the folder holds as a whole.
        config: rank, alpha and projections.
    """

    def __init__(self, path: str | os.PathLike):
        folder = Path(path)
        self.file = folder / CONFIG_FILE
        if not os.path.lexists(self.file):
            raise DataError(
                f"{folder}: {CONFIG_FILE} is missing: give the folder of a LoRA adapter, as `grre"
                " export --adapter` or PEFT writes it"
            )
        required = ("peft_type", "r", "target_modules")
        values = read_object(self.file)
        self.weights = SafetensorsSource(folder, WEIGHTS_FILE)
        present = self.weights.names()
        with fields_of(self.file):
            self.values = check(values, FIELDS, required=required, unsupported=UNSUPPORTED)
            self.patterned = self.values.get("rank_pattern") or self.values.get("alpha_pattern")
            self.saved = self._saved(present)
            self.config = self._config(sorted(present - set(map(_saved_name, self.saved))))

    def _saved(self, present: set[str]) -> frozenset[str]:
        saved = {_MODULES[name] for name in self.values.get("modules_to_save") or ()}
        for name in sorted(saved):
            if _saved_name(name) not in present:
                domain = f"modules in {WEIGHTS_FILE}, which lacks {_saved_name(name)}"
                raise ConfigError("modules_to_save", domain, self.values["modules_to_save"])
        if saved and self.values.get("ensure_weight_tying"):
            # PEFT names the embedding alone and writes the head beside it.
            saved = {name for name in _MODULES.values() if _saved_name(name) in present}
        return frozenset(saved)

    def _config(self, tensors: list[str]) -> LoraConfig:
        projections = {name: _TENSOR.fullmatch(name) for name in tensors}
        unknown = [name for name, found in projections.items() if not found]
        if unknown:
            raise DataError(
                f"{self.file.with_name(WEIGHTS_FILE)}: expected the A and B of projections, got"
                f" tensor {unknown[0]}: use an adapter on some of {', '.join(lora.TARGETS)} alone,"
                " with embed_tokens and lm_head in modules_to_save or not at all"
            )
        found = {match[1] for match in projections.values() if match}
        targets = tuple(name for name in lora.TARGETS if name in found)
        self._check_targets(tensors, targets)
        rank, alpha = self.values["r"], self.values.get("lora_alpha", 8.0)
        alpha = alpha * rank**0.5 if self.values.get("use_rslora") else alpha
        if self.patterned:
            # Terms are padded to the largest rank, and their scales are folded into B.
            rank = max(self.rank_and_scale(tensor)[0] for tensor in tensors)
            alpha = float(rank)
        return LoraConfig(rank, alpha, targets)

    def _check_targets(self, tensors: list[str], targets: tuple[str, ...]) -> None:
        """Refuses tensors that PEFT would ignore, and names in target_modules without tensors."""
        # PEFT matches a pattern with the whole name of a module, or names with its last parts.
        named = self.values["target_modules"]
        names = () if isinstance(named, str) else named
        ends = "|".join(map(re.escape, names))
        pattern = named if isinstance(named, str) else rf"(.*\.)?({ends})"
        ignored = [
            tensor
            for tensor in tensors
            if named != "all-linear" and not self._matches(pattern, tensor, "target_modules")
        ]
        missing = [name for name in names if name.rsplit(".", 1)[-1] not in targets]
        if ignored or missing:
            domain = f"the modules of {WEIGHTS_FILE}, which differ in {[*ignored, *missing][0]}"
            raise ConfigError("target_modules", domain, named)

    def _matches(self, pattern: str, tensor: str, field: str) -> bool:
        try:
            return bool(re.fullmatch(pattern, _module(tensor)))
        except re.error as error:
            domain = f"names or regular expressions ({error})"
            raise ConfigError(field, domain, pattern) from error

    def rank_and_scale(self, tensor: str) -> tuple[int, float]:
        """Returns the rank of a tensor's term and the factor of A @ B, by the first pattern that
        matches its module, as PEFT does.
        """
        rank = self._by_pattern("rank_pattern", tensor, self.values["r"])
        alpha = self._by_pattern("alpha_pattern", tensor, self.values.get("lora_alpha", 8.0))
        return rank, alpha / (rank**0.5 if self.values.get("use_rslora") else rank)

    def _by_pattern(self, field: str, tensor: str, default: Any) -> Any:
        for pattern, value in (self.values.get(field) or {}).items():
            if self._matches(rf"(.*\.)?({pattern})", tensor, field):
                return value
        return default

    def read(self, tensor: str) -> np.ndarray:
        """Reads an A or B; with patterns padded with zeros to the rank of `config`, and scaled."""
        value = self.weights.read(tensor)
        if not np.isfinite(value).all():
            raise DataError(
                f"{self.weights.file(tensor)}: tensor {tensor} contains values that are not finite:"
                " copy or train the adapter again"
            )
        if not self.patterned:
            return value
        rank, scale = self.rank_and_scale(tensor)
        value = value.astype(np.float32)
        missing = (0, self.config.rank - rank)
        if "lora_A" in tensor:
            return np.pad(value, (missing, (0, 0)))
        return np.pad(value * scale, ((0, 0), missing))


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
    return _Adapter(path).config


def saved_parameters(path: str | os.PathLike) -> frozenset[str]:
    """Returns those of "embed" and "head" that an adapter folder holds as a whole.

    Args:
        path: a folder as for `load_adapter_config`.

    Raises:
        DataError: see `load_adapter_config`.
    """
    return _Adapter(path).saved


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


def _module(tensor: str) -> str:
    return tensor.removeprefix("base_model.model.").rsplit(".", 2)[0]


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
            the wrong shape for the model; or it is of a part of a fused projection.
    """
    if model.lora is not None:
        raise UsageError(
            "the model has LoRA weights already: merge them first (models.merged), or load the base"
            " model again"
        )
    adapter = _Adapter(path)
    config = adapter.config
    saved = adapter.saved
    if parts := _fused_targets(model.config, config):
        raise DataError(
            f"{adapter.file}: the base {model.config.family} has one projection for"
            f" {', '.join(parts)}: use an adapter on others, or merge it with PEFT"
        )
    table = model.embed[...]
    expected = {_saved_name(name): table.shape for name in saved}
    layers = range(model.config.num_layers)
    for name in lora.parameter_names(model.config, config):
        projection, _, half = name.split("_")
        fan_in, fan_out = lora.sizes(model.config, projection)
        for layer in layers:
            tensor = _tensor_name(name, layer)
            rank, _ = adapter.rank_and_scale(tensor)
            expected[tensor] = (rank, fan_in) if half == "a" else (fan_out, rank)
    adapter.weights.check(expected, "give the base model that the adapter was made for")
    tied = model.config.tie_embeddings
    if len(saved) == 1 and tied and adapter.values.get("ensure_weight_tying"):
        raise DataError(
            f"{adapter.file}: expected embed_tokens and lm_head, which the field"
            f" ensure_weight_tying ties, got {', '.join(saved)} alone. Save the adapter again with"
            " PEFT."
        )
    dtype = jnp.promote_types(table.dtype, jnp.float32)
    values = {
        name: jnp.asarray(
            np.stack([adapter.read(_tensor_name(name, layer)).T for layer in layers]), dtype
        )
        for name in lora.parameter_names(model.config, config)
    }
    source = adapter.weights.renamed({families.TOP_NAMES[n]: _saved_name(n) for n in saved})
    # Laid out as the model's embedding.
    sharding = table.sharding if isinstance(table.sharding, NamedSharding) else None
    tables = {
        name: streaming.load_parameter(
            model.config, name, table.shape, table.dtype, source, sharding
        )
        for name in sorted(saved)
    }
    if saved and tied:
        model.config = dataclasses.replace(model.config, tie_embeddings=False)
        model.layers.config = model.config
        model.head = nnx.Param(table)
    for name, value in tables.items():
        setattr(model, name, nnx.Param(value))
    model.saved = saved
    model.layers.add_lora(config, values)
