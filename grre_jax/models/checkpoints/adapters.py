"""LoRA adapters in the format of PEFT (adapter_config.json, adapter_model.safetensors)."""

import json
import os
import re
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from grre_jax.domains import AboveZero, Positive
from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import check, fields_of, read_object
from grre_jax.models import lora
from grre_jax.models.checkpoints import config_json
from grre_jax.models.checkpoints.export import new_folder
from grre_jax.models.checkpoints.families import FAMILIES
from grre_jax.models.checkpoints.huggingface import ADAPTER_CONFIG
from grre_jax.models.checkpoints.safetensors_files import SafetensorsSource
from grre_jax.models.config import ModelConfig
from grre_jax.models.lora import LoraConfig
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import processes

WEIGHTS_FILE = "adapter_model.safetensors"

# Domains of the fields of PEFT that determine the output of an adapter: alpha / rank * A @ B on
# every layer of some projections. Other adapters are refused.
_READ = {
    "peft_type": Literal["LORA"],
    "task_type": Literal["CAUSAL_LM", None],
    "r": Positive,
    "lora_alpha": AboveZero,
    "use_rslora": bool,
    "bias": Literal["none"],
    "layers_to_transform": Literal[None],  # 0 is a layer
    # PEFT subtracts the other initial values from the base, which then is not the checkpoint that
    # the adapter names.
    "init_lora_weights": Literal[True, False, "gaussian", "eva", "orthogonal"],
}
# Options of PEFT that must be off.
UNSUPPORTED = (
    "fan_in_fan_out use_dora use_qalora lora_bias exclude_modules layers_pattern layer_replication"
    " modules_to_save rank_pattern alpha_pattern"
    " trainable_token_indices target_parameters alora_invocation_tokens megatron_config"
    " velora_config monteclora_config use_bdlora arrow_config kasa_config"
).split()
# Fields that do not change the output of a trained adapter, and why. Any value is accepted.
HARMLESS = (
    # Names the origin of the adapter.
    " auto_mapping peft_version base_model_name_or_path revision inference_mode"
    # Is for training in PEFT.
    " lora_dropout runtime_config ensure_weight_tying"
    # Names the projections, as the tensors do.
    " target_modules"
    # Belongs to an option that is refused if it is on.
    " megatron_core qalora_group_size loftq_config eva_config corda_config lora_ga_config"
).split()
FIELDS = _READ | dict.fromkeys(HARMLESS, Any)
_TENSOR = re.compile(
    r"base_model\.model\.model\.layers\.\d+\.(?:self_attn|mlp)"
    rf"\.({'|'.join(lora.TARGETS)})\.lora_[AB]\.weight"
)


def save_adapter(model: Transformer, path: str | os.PathLike, *, base: str) -> Path:
    """Writes the low-rank terms as a folder that `peft.PeftModel.from_pretrained` loads.

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
    _check_apart(model.config, model.lora)
    alpha = model.lora.alpha
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": model.lora.rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "target_modules": list(model.lora.targets),
    }
    tensors: dict[str, np.ndarray] = {}
    for name in lora.parameter_names(model.config, model.lora):
        for layer, value in enumerate(processes.fetch(getattr(model.layers, name)[...])):
            tensors[_tensor_name(name, layer)] = np.ascontiguousarray(value.T)

    def write() -> None:
        with new_folder(path) as temporary:
            file = temporary / WEIGHTS_FILE
            safetensors.numpy.save_file(tensors, file, metadata={"format": "pt"})
            text = json.dumps(values, indent=2) + "\n"
            (temporary / ADAPTER_CONFIG).write_text(text, encoding="utf-8")

    processes.on_first(write)
    return Path(path)


def _check_apart(config: ModelConfig, terms: LoraConfig) -> None:
    """Raises UsageError if projections with a term are parts of a tensor of the family, or of
    experts, which are such parts in transformers.
    """
    parts = set(FAMILIES[config.family].names)
    parts |= {"gate_proj", "up_proj", "down_proj"} if config.num_experts else set()
    if parts := parts.intersection(terms.targets):
        raise UsageError(
            f"{config.family} has one projection for {', '.join(sorted(parts))}, which no adapter"
            " in PEFT's format has apart: merge the adapter into the model"
        )


def _tensor_name(parameter: str, layer: int) -> str:
    projection, _, half = parameter.split("_")
    module = config_json.tensor_name(f"{projection}_proj", layer).removesuffix(".weight")
    return f"base_model.model.{module}.lora_{half.upper()}.weight"


def _read(path: str | os.PathLike) -> tuple[SafetensorsSource, LoraConfig]:
    """Returns the tensors of an adapter folder, and rank, alpha and projections."""
    folder = Path(path)
    file = folder / ADAPTER_CONFIG
    if not os.path.lexists(file):
        raise DataError(
            f"{folder}: {ADAPTER_CONFIG} is missing: give the folder of a LoRA adapter, as `grre"
            " export --adapter` or PEFT writes it"
        )
    stored = read_object(file)
    with fields_of(file):
        values = check(stored, FIELDS, required=("peft_type", "r"), unsupported=UNSUPPORTED)
    weights = SafetensorsSource(folder, WEIGHTS_FILE)
    present = set()
    for name in sorted(weights.shapes):
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise DataError(
                f"{folder / WEIGHTS_FILE}: expected the A and B of projections, got tensor {name}:"
                f" use an adapter on some of {', '.join(lora.TARGETS)} alone"
            )
        present.add(match[1])
    rank = values["r"]
    alpha = values.get("lora_alpha", 8.0)
    if values.get("use_rslora"):
        alpha *= rank**0.5
    targets = tuple(name for name in lora.TARGETS if name in present)
    return weights, LoraConfig(rank, alpha, targets)


def load_adapter_config(path: str | os.PathLike) -> LoraConfig:
    """Returns rank, alpha and projections of an adapter folder.

    Rank-stabilised scaling (alpha / sqrt(rank)) is read as the alpha of the same scale.

    Args:
        path: a folder with adapter_config.json and adapter_model.safetensors.

    Raises:
        DataError: a file is missing or damaged, or the adapter has an option that is not supported.
            Names the file, and the field or tensor.
    """
    return _read(path)[1]


def add_adapter(model: Transformer, path: str | os.PathLike) -> None:
    """Adds the low-rank terms of an adapter folder to a model, in float32 or wider.

    Args:
        model: a model without low-rank terms, which is changed.
        path: a folder as for `load_adapter_config`.

    Raises:
        UsageError: the model has low-rank terms, or the adapter those of parts of a fused
            projection.
        DataError: see `load_adapter_config`; or a tensor is missing, unexpected, not finite, or of
            the wrong shape for the model.
    """
    if model.lora is not None:
        raise UsageError(
            "the model has LoRA weights already: merge them first (models.merged), or load the base"
            " model again"
        )
    weights, config = _read(path)
    _check_apart(model.config, config)
    names = lora.parameter_names(model.config, config)
    layers = range(model.config.num_layers)
    expected = {}
    for name in names:
        projection, _, half = name.split("_")
        fan_in, fan_out = lora.sizes(model.config, projection)
        shape = (config.rank, fan_in) if half == "a" else (fan_out, config.rank)
        expected |= {_tensor_name(name, layer): shape for layer in layers}
    weights.check(expected, "give the base model that the adapter was made for")
    dtype = jnp.promote_types(model.embed[...].dtype, jnp.float32)
    values = {}
    for name in names:
        parts = []
        for layer in layers:
            tensor = _tensor_name(name, layer)
            part = weights.read(tensor)
            if not np.isfinite(part).all():
                raise DataError(
                    f"{weights.file(tensor)}: tensor {tensor} contains values that are not finite:"
                    " copy or train the adapter again"
                )
            parts.append(part.T)
        values[name] = jnp.asarray(np.stack(parts), dtype)
    model.layers.add_lora(config, values)
