"""Models from Hugging Face folders (config.json and safetensors), new models, fingerprints."""

import dataclasses
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array

from grre_jax.errors import DataError
from grre_jax.json_files import read_object
from grre_jax.models.checkpoints import config_json, streaming
from grre_jax.models.checkpoints.safetensors_files import SafetensorsSource
from grre_jax.models.config import ModelConfig
from grre_jax.models.transformer import Transformer

ADAPTER_CONFIG = "adapter_config.json"  # PEFT's; adapters.py reads it
_log = logging.getLogger(__name__)


def load_config(path: str | os.PathLike) -> ModelConfig:
    """Returns the shape of a checkpoint without reading its weights.

    Args:
        path: a Hugging Face folder.

    Raises:
        DataError: see `load`.

    Examples:
        >>> from grre_jax import models
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, eos_ids=(15,),
        ... )
        >>> folder = models.save(models.init(config), "tiny")
        >>> models.load_config(folder).num_layers, models.load_config(folder).eos_ids
        (1, (15,))
    """
    folder = locate(Path(path))
    file = folder / "config.json"
    return config_json.config_from_dict(read_object(file), file, read_generation_config(folder))


def read_generation_config(folder: Path) -> dict[str, Any]:
    """Returns a folder's generation_config.json; {} if it does not exist.

    Raises:
        DataError: the file is damaged.
    """
    file = folder / "generation_config.json"
    return read_object(file) if os.path.lexists(file) else {}


def load(
    path: str | os.PathLike,
    *,
    dtype: Any = jnp.float32,
    compute_dtype: Any = None,
    remat: str = "none",
    mesh: Mesh | None = None,
) -> Transformer:
    """Loads a model from a checkpoint.

    Tensors are copied to the devices one at a time, and are joined and cast there: the host needs
    memory for the shards of the largest tensor.

    Args:
        path: a Hugging Face folder of a family in `families`, or of a
            Gemma3ForConditionalGeneration, whose text model is loaded (config.json with one or
            several safetensors files).
        dtype: of the parameters; the checkpoint's tensors are cast to it.
        compute_dtype: see `Transformer`.
        remat: see `Transformer`.
        mesh: the parameters are sharded over it by the rules of `parallel.mesh`, and each process
            reads the shards of its devices; the default device if None.

    Returns:
        The model.

    Raises:
        DataError: a file is missing or damaged, the architecture or an option is not supported, or
            a tensor is missing, unexpected or of the wrong shape. Names the file, and the field or
            tensor.

    Examples:
        A small model is written and loaded in bfloat16; `grre fetch` gets a real one:

        >>> import jax.numpy as jnp
        >>> from grre_jax import models
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, eos_ids=(15,),
        ... )
        >>> folder = models.save(models.init(config), "tiny")
        >>> model = models.load(folder, dtype=jnp.bfloat16)
        >>> model.config == config, str(models.parameters(model)["embed"].dtype)
        (True, 'bfloat16')
    """
    folder = Path(path)
    config = load_config(folder)
    rename = None
    if config_json.is_multimodal(read_object(folder / "config.json")):
        _log.warning("%s: the text model is loaded, without the vision tower", folder)
        rename = config_json.text_tensor
    source = SafetensorsSource(folder, rename=rename)
    abstract = nnx.eval_shape(
        lambda: Transformer(
            config, rngs=nnx.Rngs(0), dtype=dtype, compute_dtype=compute_dtype, remat=remat
        )
    )
    graph, state = nnx.split(abstract)
    variables = {_dotted(keys): (keys, x) for keys, x in nnx.to_flat_state(state)}
    shapes = {name: x.shape for name, (_, x) in variables.items()}
    _check(config, source, shapes)
    values = streaming.load_parameters(config, shapes, dtype, source, mesh)
    loaded = [(keys, x.replace(values[name])) for name, (keys, x) in variables.items()]
    return nnx.merge(graph, nnx.from_flat_state(loaded))


def locate(path: Path) -> Path:
    """Returns the path, which must be a Hugging Face folder.

    Raises:
        DataError: the path is not a folder, contains no checkpoint, or an adapter.
    """
    if (path / ADAPTER_CONFIG).is_file():
        # transformers would load the base that the adapter names, and add the adapter to it.
        raise DataError(
            f"{path} contains {ADAPTER_CONFIG}, so it is an adapter, not a model: give a folder"
            " with the base model alone, and the adapter in a separate one as --model.adapter"
        )
    if not (path / "config.json").is_file():
        raise DataError(
            f"{path}: expected a folder with config.json and .safetensors files: give one, or"
            " download one with `grre fetch REPO`"
        )
    return path


def _check(
    config: ModelConfig, source: SafetensorsSource, shapes: dict[str, tuple[int, ...]]
) -> None:
    """Raises DataError if a tensor is missing, unexpected or of the wrong shape."""
    expected = streaming.stored_shapes(streaming.stored_pieces(config, shapes))
    head = config_json.TOP_NAMES["head"]
    embed = config_json.TOP_NAMES["embed"]
    # A tied checkpoint may store the head too, if it is the embedding.
    tied = {head} & source.shapes.keys() if config.tie_embeddings else set()
    buffers = filter(config_json.IGNORED.fullmatch, source.shapes)
    remedy = "take config.json and all weight files from one checkpoint"
    source.check(expected, remedy, {*tied, *buffers})
    if tied and not np.array_equal(source.read(head), source.read(embed)):
        differs = f"tensor {head} differs from {embed} though tie_word_embeddings is true"
        raise DataError(f"{source.file(head)}: {differs}: set it to false in config.json")


def init(
    config: ModelConfig, seed: int = 0, *, dtype: Any = jnp.float32, **options: Any
) -> Transformer:
    """Returns a new model, whose random weights depend on (config, seed, dtype) only.

    Args:
        config: the shape.
        seed: of the weights.
        dtype: of the parameters.
        options: further arguments of `Transformer`.

    Examples:
        >>> from grre_jax import models
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, eos_ids=(15,),
        ... )
        >>> model = models.init(config, seed=3)
        >>> models.parameters(model)["layers.o_proj"].shape
        (1, 8, 8)
        >>> models.fingerprint(model) == models.fingerprint(models.init(config, seed=3))
        True
    """
    return Transformer(config, rngs=nnx.Rngs(seed), dtype=dtype, **options)


def parameters(model: Transformer) -> dict[str, Array]:
    """Returns the parameters by dotted name ("embed", "layers.qkv_proj", ...), sorted.

    Layers are stacked, so projections are [layers, in, out].

    Examples:
        >>> from grre_jax import models
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, eos_ids=(15,),
        ... )
        >>> arrays = models.parameters(models.init(config))
        >>> sum(array.size for array in arrays.values()), arrays["layers.qkv_proj"].shape
        (728, (1, 8, 16))
    """
    return {
        _dotted(keys): variable[...]
        for keys, variable in sorted(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    }


def _dotted(keys: tuple[Any, ...]) -> str:
    return ".".join(keys)


# Options that ModelConfig did not always have, whose defaults change nothing.
_LATER = (
    "whole_qk_norm pre_norms embedding_multiplier residual_multiplier attention_multiplier"
    " logit_divisor rotary_share interleaved_rotary rotated_layers num_experts experts_per_token"
    " normalise_experts"
).split()


def fingerprint(model: Transformer) -> str:
    """Returns a SHA-256 (hexadecimal) of everything that determines the log-probs.

    That is the shape, and the name, dtype, shape and bytes of each parameter. A saved and reloaded
    model has the same fingerprint; family, eos_ids, bos_id and max_positions have no effect on it.
    """
    declared = ("family", "eos_ids", "bos_id", "max_positions")
    shape = {k: v for k, v in dataclasses.asdict(model.config).items() if k not in declared}
    # Fingerprints are stored: models without a later option have those from before it.
    shape = {k: v for k, v in shape.items() if k not in _LATER or v != getattr(ModelConfig, k)}
    scaling = model.config.rope_scaling
    if scaling is not None and scaling.kind != "yarn":
        names = ("kind", "factor", "low_freq_factor", "high_freq_factor", "original_positions")
        shape["rope_scaling"] = {name: getattr(scaling, name) for name in names}
    if model.lora is not None:
        shape |= {"lora_scale": model.lora.scale}
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True).encode())
    for name, value in parameters(model).items():
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        # A layer at a time, to save memory of the host.
        for part in value if name.startswith("layers.") else (value,):
            digest.update(np.ascontiguousarray(jax.device_get(part)).view(np.uint8).data)
    return digest.hexdigest()
