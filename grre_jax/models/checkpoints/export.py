"""Export to Hugging Face folders: config.json, safetensors, the files of the tokenizer."""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from grre_jax.errors import DataError, UsageError
from grre_jax.models import lora
from grre_jax.models.checkpoints import config_json, layout, streaming
from grre_jax.models.checkpoints.huggingface import parameters, read_generation_config
from grre_jax.models.checkpoints.safetensors_files import write_files
from grre_jax.models.transformer import Transformer, join_groups
from grre_jax.parallel import processes

TOKENIZER_FILES = (
    "tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json"
    " merges.txt tokenizer.model chat_template.jinja chat_template.json"
).split()
MAX_FILE_BYTES = 1 << 30  # of tensors in one file, which the host holds


def save(
    model: Transformer,
    path: str | os.PathLike,
    *,
    tokenizer_from: str | os.PathLike | None = None,
) -> Path:
    """Writes a Hugging Face folder that `transformers.AutoModelForCausalLM` loads.

    It contains config.json, generation_config.json, the weights as safetensors in the dtype of the
    parameters, and the files of the tokenizer. Special ids that the model lacks (pad, bos) come
    from the tokenizer's folder. The folder is created atomically, and the host has the tensors
    of one file at a time in memory. All processes call this, and the first writes.

    Args:
        model: the model; low-rank terms are merged into their projections.
        path: the folder to create; it may exist if it is empty.
        tokenizer_from: a folder whose tokenizer files are copied; None for none.

    Returns:
        The folder.

    Raises:
        UsageError: the folder exists and is not empty, or the model's family cannot express its
            shape.
        DataError: `tokenizer_from` contains no tokenizer.

    Examples:
        A new model and the tokenizer that it is made for, in one folder:

        >>> from grre_jax import models, tasks
        >>> tokenizer = tasks.CharTokenizer("0123456789+=$")
        >>> tokenizer.save("tokenizer")
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, eos_ids=tokenizer.eos_ids,
        ... )
        >>> folder = models.save(models.init(config), "tiny", tokenizer_from="tokenizer")
        >>> models.load(folder).config == config, tasks.load_tokenizer(folder).decode([1, 10, 2])
        (True, '1+2')
    """
    model = merged(model)
    stored = streaming.stored_tensors(model.config, parameters(model))
    failure = None
    if processes.is_first():
        try:
            with new_folder(path) as temporary:
                _write(model, temporary, tokenizer_from, stored)
        except Exception as error:
            failure = error
    for _ in stored if processes.many() else ():
        continue  # all processes put each together, also those that a failed write left

    def raise_failure() -> None:
        if failure is not None:
            raise failure

    processes.on_first(raise_failure)
    return Path(path)


def _write(
    model: Transformer,
    folder: Path,
    tokenizer_from: str | os.PathLike | None,
    stored: Iterator[tuple[str, np.ndarray]],
) -> None:
    """Writes the files of `save`; `stored` are the model's `streaming.stored_tensors`."""
    arrays = parameters(model)
    values = config_json.config_to_dict(model.config, str(arrays["embed"].dtype))
    generation = {} if tokenizer_from is None else _copy_tokenizer(Path(tokenizer_from), folder)
    # The ids of the model take precedence over those of the tokenizer's folder.
    special = {field: values[field] for field in ("bos_token_id", "eos_token_id")}
    generation |= {field: ids for field, ids in special.items() if ids is not None}
    values["bos_token_id"] = generation.get("bos_token_id")
    write_files(folder, stored, MAX_FILE_BYTES)
    for name, content in (("config", values), ("generation_config", generation)):
        text = json.dumps(content, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def _copy_tokenizer(source: Path, folder: Path) -> dict[str, Any]:
    """Writes the files of a tokenizer; returns the generation configuration beside the source."""
    files = [source / name for name in TOKENIZER_FILES if (source / name).exists()]
    if not files:
        raise DataError(
            f"{source}: no tokenizer files (tokenizer.json, ...) to copy: give the folder the"
            " model's tokenizer is in"
        )
    for file in files:
        shutil.copyfile(file, folder / file.name)
    return read_generation_config(source)


@contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to `path` at the end, or removed after an error.

    Args:
        path: the folder to create; it may exist if it is empty.

    Raises:
        UsageError: `path` exists and is not an empty folder.
        OSError: it was filled meanwhile.
    """
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(
            f"{path} exists and is not empty: choose another folder or remove this one"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex[:12]}"
    temporary.mkdir()
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def merged(model: Transformer) -> Transformer:
    """Returns the model with every low-rank term added to its projection.

    The sum is computed in float32 or wider and cast to the dtype of the projection. The given model
    is not changed, and parameters without a term are shared with it.

    Returns:
        A model without low-rank terms; the given one if it has none.
    """
    if model.lora is None:
        return model
    result = nnx.merge(*nnx.split(model))
    layers = result.layers
    config = model.config
    for parameter in [name for name in vars(layers) if layout.is_transposed(name)]:
        stored = layout.FUSED.get(parameter, (parameter,))
        names = [piece.removesuffix("_proj") for piece in stored]
        factors = {
            p: (getattr(layers, f"{p}_lora_a")[...], getattr(layers, f"{p}_lora_b")[...])
            for p in names
            if hasattr(layers, f"{p}_lora_a")
        }
        if not factors:
            continue

        def add(weight: Array, factors: dict[str, tuple[Array, Array]], names=names) -> Array:
            parts = [
                jnp.matmul(*factors[name], precision="highest")
                if name in factors
                else jnp.zeros((*weight.shape[:2], lora.sizes(config, name)[1]), jnp.float32)
                for name in names
            ]
            delta = join_groups(config, *parts) if len(parts) > 1 else parts[0]
            return (weight.astype(delta.dtype) + model.lora.scale * delta).astype(weight.dtype)

        weight = getattr(layers, parameter)[...]
        add = jax.jit(add, out_shardings=weight.sharding)
        setattr(layers, parameter, nnx.Param(add(weight, factors)))
    for name in lora.parameter_names(config, model.lora):
        delattr(layers, name)
    layers.lora = None
    return result
