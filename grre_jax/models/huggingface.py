"""Models from Hugging Face folders (config.json and safetensors), new models, and a model's fingerprint.

Tensors are read one at a time, turned to [in, out], stacked over the layers on the host and handed to the device parameter
by parameter, so that a model never lies twice on the device, and with a `place` hook never whole on one of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from flax import nnx
from jaxtyping import Array

from grre_jax.errors import DataError
from grre_jax.models import families
from grre_jax.models.config import ModelConfig
from grre_jax.models.transformer import Transformer

Place = Callable[[str, np.ndarray], jax.Array]


class TensorSource(Protocol):
    """A checkpoint's tensors under their Hugging Face names."""

    def names(self) -> set[str]:
        """All of them."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one, [out, in] for a projection."""

    def read(self, name: str) -> np.ndarray:
        """One, on the host."""

    def file(self, name: str) -> Path:
        """The file it is in, for messages."""


class SafetensorsSource:
    """The tensors of a folder's safetensors files, opened lazily.

    Raises:
        DataError: naming the file, where one is missing or damaged, repeats a tensor or lacks one that the index promises.
    """

    def __init__(self, folder: Path):
        self._files: dict[str, Path] = {}
        self._handles: dict[Path, Any] = {}
        index = folder / "model.safetensors.index.json"
        weight_map = read_json(index).get("weight_map", {}) if index.exists() else {}
        paths = [folder / name for name in sorted(set(weight_map.values()))] or _weight_files(folder)
        for path in paths:
            try:
                self._handles[path] = safetensors.safe_open(path, framework="numpy")
            except (safetensors.SafetensorError, OSError) as error:
                raise DataError(f"{path}: cannot be read as safetensors ({error}): copy or download the file again") from error
            for name in self._handles[path].keys():
                if name in self._files:
                    other = self._files[name].name
                    raise DataError(f"{path}: tensor {name} is also in {other}: keep one set of weight files in the folder")
                self._files[name] = path
        for name, file in weight_map.items():
            if self._files.get(name) != folder / file:
                raise DataError(f"{folder / file}: tensor {name} is missing though {index.name} names it: copy or download the file again")

    def names(self) -> set[str]:
        """All tensors of all files."""
        return set(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, from its file's header."""
        return tuple(self._handles[self._files[name]].get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        """A tensor in the dtype it is stored in."""
        return self._handles[self._files[name]].get_tensor(name)

    def file(self, name: str) -> Path:
        """The file a tensor is in."""
        return self._files[name]


def _weight_files(folder: Path) -> list[Path]:
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    found = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    if not found:
        pickled = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pth"))
        held = f"its weights are pickled ({pickled[0].name})" if pickled else "it holds no weights"
        raise DataError(f"{folder}: {held}: put the checkpoint's .safetensors files into the folder")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; DataError naming the file if it is not one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}): restore the checkpoint's own file") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: must hold a JSON object, got {type(values).__name__}: restore the checkpoint's own file")
    return values


def load_config(path: str | os.PathLike) -> ModelConfig:
    """The shape of a checkpoint (a Hugging Face folder, a .gguf file or a folder with one) without its weights; raises as `load`."""
    folder, gguf_path = locate(Path(path))
    if gguf_path is not None:
        from grre_jax.models.gguf import GGUFFile

        return GGUFFile(gguf_path).config
    generation = folder / "generation_config.json"
    eos = read_json(generation).get("eos_token_id") if generation.exists() else None
    return families.config_from_dict(read_json(folder / "config.json"), folder / "config.json", eos)


def load(
    path: str | os.PathLike,
    *,
    dtype: Any = jnp.float32,
    compute_dtype: Any = None,
    remat: bool = False,
    unroll: bool | None = None,
    place: Place | None = None,
) -> Transformer:
    """A model from a checkpoint.

    Args:
        path: a Hugging Face folder of a LlamaForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM (config.json with one or several
            safetensors files), a .gguf file of one of these, or a folder with one such file.
        dtype: of the parameters; the checkpoint's tensors are cast to it.
        compute_dtype, remat, unroll: as for `Transformer`.
        place: called with each parameter's name ("embed", "layers.q_proj", ...) and its value on the host, returns it on the device
            or devices; the default puts everything on the default device.

    Raises:
        DataError: naming the file, and the field or tensor: nothing there, an unsupported architecture or option, a damaged file,
            a tensor that is missing, unexpected or of the wrong shape.
    """
    folder, gguf_path = locate(Path(path))
    if gguf_path is not None:
        from grre_jax.models.gguf import GGUFFile

        source: TensorSource = GGUFFile(gguf_path)
        config = source.config
    else:
        config, source = load_config(folder), SafetensorsSource(folder)
    return from_tensors(config, source, folder, dtype=dtype, compute_dtype=compute_dtype, remat=remat, unroll=unroll, place=place)


def locate(path: Path) -> tuple[Path, Path | None]:
    """(folder, None) for a Hugging Face folder, (folder, file) for a GGUF."""
    if path.is_file():
        if path.suffix == ".gguf":
            return path.parent, path
        raise DataError(f"{path} is a file: give the checkpoint's folder (with config.json and .safetensors files) or a .gguf file")
    if not path.is_dir():
        raise DataError(f"{path}: no such folder: give one with a Hugging Face checkpoint, or obtain one with `grre fetch smollm2-135m`")
    if (path / "config.json").exists():
        return path, None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise DataError(f"{path} holds several GGUF files ({', '.join(f.name for f in found)}): give the path of one")
    if not found:
        raise DataError(f"{path}: config.json is missing: give a Hugging Face folder (config.json and .safetensors files) or a .gguf file")
    return path, found[0]


def from_tensors(
    config: ModelConfig, source: TensorSource, folder: Path, *, dtype: Any, place: Place | None = None, **options: Any
) -> Transformer:
    """The model of shape `config` with the tensors of `source`; other arguments and errors as for `load`."""
    abstract = nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0), dtype=dtype, **options))
    graph, state = nnx.split(abstract)
    parameters = {".".join(path): (path, variable) for path, variable in nnx.to_flat_state(state)}
    _check(config, source, folder, {name: variable.shape for name, (_, variable) in parameters.items()})
    placed = []
    for name, (path, variable) in parameters.items():
        value = _gather(name, variable.shape, jnp.dtype(dtype), source, config.num_layers)
        placed.append((path, variable.replace(jnp.asarray(value) if place is None else place(name, value))))
    return nnx.merge(graph, nnx.from_flat_state(placed))


def _stored_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape in the checkpoint of one tensor of a parameter."""
    shape = shape[1:] if name.startswith("layers.") else shape
    return shape[::-1] if families.is_transposed(name) else shape


_REMEDY = "take config.json and all weight files from one checkpoint"


def _check(config: ModelConfig, source: TensorSource, folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Every tensor is there, in its shape, and no other is; told before anything large is read."""
    expected = {}
    for name, shape in shapes.items():
        expected |= dict.fromkeys(families.tensor_names(name, config.num_layers), _stored_shape(name, shape))
    present = source.names()
    missing = sorted(expected.keys() - present)
    if missing:
        others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise DataError(f"{folder}: tensor {missing[0]}{others} is missing from the weights, the configuration asks for it: {_REMEDY}")
    for tensor in sorted(expected):
        if source.shape(tensor) != expected[tensor]:
            shapes_differ = f"has shape {source.shape(tensor)}, the configuration asks for {expected[tensor]}"
            raise DataError(f"{source.file(tensor)}: tensor {tensor} {shapes_differ}: {_REMEDY}")
    extra = sorted(name for name in present - expected.keys() if not families.IGNORED.fullmatch(name))
    if config.tie_embeddings and families.TOP_NAMES["head"] in extra:
        # A tied checkpoint may store the head too, if it is the embedding.
        head, embed = families.TOP_NAMES["head"], families.TOP_NAMES["embed"]
        if source.shape(head) != source.shape(embed) or not np.array_equal(source.read(head), source.read(embed)):
            differs = f"tensor {head} differs from {embed} though tie_word_embeddings is true"
            raise DataError(f"{source.file(head)}: {differs}: set it to false in config.json")
        extra.remove(head)
    if extra:
        others = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
        unexpected = f"tensor {extra[0]}{others} is unexpected, the configuration describes a model without it"
        raise DataError(f"{source.file(extra[0])}: {unexpected}: {_REMEDY}")


def _gather(name: str, shape: tuple[int, ...], dtype: np.dtype, source: TensorSource, num_layers: int) -> np.ndarray:
    tensors = families.tensor_names(name, num_layers)
    if not name.startswith("layers."):
        return np.asarray(source.read(tensors[0]), dtype)
    stacked = np.empty(shape, dtype)
    for i, tensor in enumerate(tensors):
        value = source.read(tensor)
        stacked[i] = value.T if families.is_transposed(name) else value
    return stacked


def init(config: ModelConfig, seed: int = 0, *, dtype: Any = jnp.float32, **options: Any) -> Transformer:
    """A new model with random weights that depend on (config, seed, dtype) alone; `options` as for `Transformer`."""
    return Transformer(config, rngs=nnx.Rngs(seed), dtype=dtype, **options)


def parameters(model: Transformer) -> dict[str, Array]:
    """The parameters by dotted name ("embed", "layers.q_proj", ...), sorted; layers stacked, projections [layers, in, out]."""
    return {".".join(path): variable[...] for path, variable in sorted(nnx.to_flat_state(nnx.state(model, nnx.Param)))}


def fingerprint(model: Transformer) -> str:
    """SHA-256 (hexadecimal) over what decides the log-probs: the shape's numbers; each parameter's name, dtype, shape, bytes.

    A saved and reloaded model keeps it. What the configuration only declares (family, eos_ids, max_positions) does not enter.
    """
    declared = ("family", "eos_ids", "max_positions")
    shape = {k: v for k, v in dataclasses.asdict(model.config).items() if k not in declared}
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True).encode())
    for name, value in parameters(model).items():
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(np.ascontiguousarray(jax.device_get(value)).view(np.uint8))
    return digest.hexdigest()
