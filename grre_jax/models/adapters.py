"""LoRA weights apart from their base: folders that PEFT reads and writes (adapter_config.json, adapter_model.safetensors)."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from grre_jax.errors import DataError, UsageError
from grre_jax.models import families, lora
from grre_jax.models.export import new_folder
from grre_jax.models.lora import LoraConfig
from grre_jax.models.safetensors_files import read_json
from grre_jax.models.transformer import Transformer
from grre_jax.parallel import processes

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"

# Options of PEFT that make of an adapter something else than alpha / rank * A @ B on every layer of some projections.
_REFUSED = (
    "use_dora",
    "bias",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "use_qalora",
)
# Initial values that PEFT takes out of the base: the base of such an adapter is not the checkpoint that it names.
_CHANGES_BASE = ("pissa", "olora", "loftq", "corda")
_TENSOR = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.lora_([AB])\.weight")


def save_adapter(model: Transformer, path: str | os.PathLike, *, base: str) -> Path:
    """Writes the low-rank terms alone as a folder that `peft.PeftModel.from_pretrained` loads; it appears whole or not at all.

    Where several processes run all of them call this, and the first writes.

    Args:
        model: with low-rank terms.
        path: the folder to make; it may exist if it is empty.
        base: the checkpoint that the terms belong to, as PEFT's `base_model_name_or_path`.

    Returns:
        The folder.

    Raises:
        UsageError: if the model has no low-rank terms, or the folder exists and is not empty.
    """
    if model.lora is None:
        raise UsageError("the model has no LoRA weights to write apart: write it whole")
    tensors: dict[str, np.ndarray] = {}
    for target in model.lora.targets:
        for half in "ab":
            values = processes.fetch(getattr(model.layers, f"{target.removesuffix('_proj')}_lora_{half}")[...])
            for layer, value in enumerate(values):
                tensors[_tensor_name(target, layer, half)] = np.ascontiguousarray(value.T)
    if processes.is_first():
        with new_folder(path) as temporary:
            safetensors.numpy.save_file(tensors, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
            (temporary / CONFIG_FILE).write_text(json.dumps(_written_config(model.lora, base), indent=2) + "\n", encoding="utf-8")
    return Path(path)


def _tensor_name(target: str, layer: int, half: str) -> str:
    return f"base_model.model.{families.tensor_name(target, layer).removesuffix('.weight')}.lora_{half.upper()}.weight"


def _written_config(config: LoraConfig, base: str) -> dict[str, Any]:
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
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "layers_to_transform": None,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def load_adapter_config(path: str | os.PathLike) -> LoraConfig:
    """What an adapter folder's adapter_config.json and tensors say of its low-rank terms.

    Rank-stabilised scaling (alpha / sqrt(rank)) is read as the alpha that gives the same numbers.

    Raises:
        DataError: naming the file, and the field or tensor: nothing there, an option this model does not have, a damaged file.
    """
    folder = Path(path)
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise DataError(
            f"{folder}: {CONFIG_FILE} is missing: give the folder of a LoRA adapter, as `grre export --adapter` or PEFT writes it"
        )
    values = read_json(file)
    if values.get("peft_type") != "LORA":
        raise DataError(f"{file}: peft_type {values.get('peft_type')!r} is not supported: only LORA is")
    for field in _REFUSED:
        if values.get(field) not in (None, False, "none", {}, []):
            raise DataError(
                f"{file}: {field} = {values[field]!r} is not supported: use an adapter trained without it, or merge it into its base"
            )
    start = values.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(_CHANGES_BASE):
        raise DataError(f"{file}: init_lora_weights = {start!r} changes the base model: convert the adapter to a plain one with PEFT first")
    rank, alpha = values.get("r"), values.get("lora_alpha", 8)
    if not isinstance(rank, int) or not isinstance(alpha, (int, float)):
        raise DataError(
            f"{file}: r must be a whole number and lora_alpha a number, got {rank!r} and {alpha!r}: restore the adapter's own file"
        )
    targets = {_parsed(name, folder)[1] for name in _open(folder).keys()}
    try:
        return LoraConfig(rank, alpha * rank**0.5 if values.get("use_rslora") else float(alpha), tuple(targets))
    except ValueError as error:
        raise DataError(f"{folder}: {error}") from error


def add_adapter(model: Transformer, path: str | os.PathLike) -> None:
    """Gives a model the low-rank terms of an adapter folder, in float32 at least.

    Raises:
        DataError: as `load_adapter_config`; or naming the tensor, one that is missing or of the wrong shape for the model.
    """
    folder, config = Path(path), load_adapter_config(path)
    weights, values = _open(folder), {}
    expected: dict[str, tuple[int, ...]] = {}
    for name in lora.parameter_names(config):
        projection, _, half = name.split("_")
        fan_in, fan_out = lora.sizes(model.config, projection)
        shape = (config.rank, fan_in) if half == "a" else (fan_out, config.rank)
        layers = [_tensor_name(f"{projection}_proj", i, half) for i in range(model.config.num_layers)]
        expected |= dict.fromkeys(layers, shape)
        for tensor in layers:
            found = tuple(weights[tensor].shape) if tensor in weights else "none"
            if found != shape:
                raise DataError(
                    f"{folder / WEIGHTS_FILE}: tensor {tensor} must have shape {shape} for this model, found {found}: give the base model that the adapter was made for"
                )
        dtype = jnp.promote_types(model.embed[...].dtype, jnp.float32)
        values[name] = jnp.asarray(np.stack([weights[tensor].T for tensor in layers]), dtype)
    if extra := sorted(weights.keys() - expected.keys()):
        raise DataError(
            f"{folder / WEIGHTS_FILE}: tensor {extra[0]} is unexpected, the model has {model.config.num_layers} layers: give the base model that the adapter was made for"
        )
    model.layers.add_lora(config, values)


def _open(folder: Path) -> dict[str, np.ndarray]:
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise DataError(f"{folder}: {WEIGHTS_FILE} is missing: put the adapter's safetensors file into the folder")
    try:
        return safetensors.numpy.load_file(file)
    except (safetensors.SafetensorError, OSError) as error:
        raise DataError(f"{file}: cannot be read as safetensors ({error}): copy or download the file again") from error


def _parsed(name: str, folder: Path) -> tuple[int, str, str]:
    """(layer, projection, half) of a tensor."""
    found = _TENSOR.fullmatch(name)
    if found is None or found.group(2) not in lora.TARGETS:
        known = ", ".join(lora.TARGETS)
        raise DataError(f"{folder / WEIGHTS_FILE}: tensor {name} is no A or B of a projection: use an adapter on some of {known} alone")
    return int(found.group(1)), found.group(2), found.group(3).lower()
