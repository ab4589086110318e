"""safetensors files of a checkpoint: read by shards, written a tensor at a time.

Neither holds a file in memory. A file is mapped only while something is read from it, so that what was read before does not stay resident; a file that is
written has its header first, since all shapes are known before the first tensor is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from grre_jax.errors import DataError

Index = tuple[slice, ...]

INDEX_FILE = "model.safetensors.index.json"
_DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(ml_dtypes.bfloat16): "BF16", np.dtype(np.float64): "F64"}
_ALIGNMENT = 8  # of the first tensor's bytes


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; DataError naming the file if it is not one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}): restore the checkpoint's own file") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: must hold a JSON object, got {type(values).__name__}: restore the checkpoint's own file")
    return values


class SafetensorsSource:
    """The tensors of a folder's safetensors files.

    Raises:
        DataError: naming the file, where one is missing or damaged, repeats a tensor or lacks one that the index promises.
    """

    def __init__(self, folder: Path):
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        index = folder / INDEX_FILE
        weight_map = read_json(index).get("weight_map", {}) if index.exists() else {}
        for path in [folder / name for name in sorted(set(weight_map.values()))] or _weight_files(folder):
            with _open(path) as handle:
                for name in handle.keys():
                    if name in self._files:
                        other = self._files[name].name
                        raise DataError(f"{path}: tensor {name} is also in {other}: keep one set of weight files in the folder")
                    self._files[name] = path
                    self._shapes[name] = tuple(handle.get_slice(name).get_shape())
        for name, file in weight_map.items():
            if self._files.get(name) != folder / file:
                raise DataError(f"{folder / file}: tensor {name} is missing though {index.name} names it: copy or download the file again")

    def names(self) -> set[str]:
        """All tensors of all files."""
        return set(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._shapes[name]

    def read(self, name: str, index: Index) -> np.ndarray:
        """A part of a tensor, in the stored dtype; no other part is copied."""
        with _open(self._files[name]) as handle:
            return handle.get_slice(name)[index]

    def file(self, name: str) -> Path:
        """The file a tensor is in."""
        return self._files[name]


def _open(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, OSError) as error:
        raise DataError(f"{path}: cannot be read as safetensors ({error}): copy or download the file again") from error


def _weight_files(folder: Path) -> list[Path]:
    """The single file, or without an index all of them."""
    found = sorted(folder.glob("model.safetensors")) or sorted(folder.glob("*.safetensors"))
    if not found:
        pickled = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pth"))
        held = f"its weights are pickled ({pickled[0].name})" if pickled else "it holds no weights"
        raise DataError(f"{folder}: {held}: put the checkpoint's .safetensors files into the folder")
    return found


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Size on disk."""
        return int(np.prod(self.shape)) * self.dtype.itemsize


def write_files(folder: Path, tensors: list[Tensor], values: Iterable[np.ndarray], max_file_bytes: int) -> None:
    """Writes the tensors in files of at most `max_file_bytes` (or one tensor), and the index if there are several files.

    Args:
        folder: where.
        tensors: what there is, in the order in which it is written.
        values: theirs, taken one after another.
        max_file_bytes: of tensors a file.
    """
    files: list[list[Tensor]] = [[]]
    for tensor in tensors:
        if files[-1] and sum(t.nbytes for t in files[-1]) + tensor.nbytes > max_file_bytes:
            files.append([])
        files[-1].append(tensor)
    values, weight_map = iter(values), {}
    for number, content in enumerate(files, 1):
        file = "model.safetensors" if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        _write_file(folder / file, content, values)
        weight_map |= dict.fromkeys((tensor.name for tensor in content), file)
    if len(files) > 1:
        index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors)}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_file(path: Path, tensors: list[Tensor], values: Iterator[np.ndarray]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.nbytes
        header[tensor.name] = {"dtype": _DTYPES[tensor.dtype], "shape": tensor.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-(8 + len(encoded)) % _ALIGNMENT)
    with open(path, "wb") as handle:
        handle.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors:
            value = np.ascontiguousarray(next(values))
            if (value.shape, value.dtype) != (tensor.shape, tensor.dtype):
                raise ValueError(f"tensor {tensor.name} must be {tensor.shape} {tensor.dtype}, got {value.shape} {value.dtype}")
            handle.write(value.reshape(-1).view(np.uint8))
            del value  # before the next one comes to the host
