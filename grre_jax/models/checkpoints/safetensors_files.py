"""safetensors files of a checkpoint: read by shards, written a tensor at a time.

No file is in memory as a whole. A file is mapped only during a read, so that its pages do not stay
resident; the header of a new file is written first, since all shapes are known.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import safetensors

from grre_jax.domains import shown
from grre_jax.errors import DataError
from grre_jax.json_files import read_object, require

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.float64): "F64",
}
_ALIGNMENT = 8  # of the first tensor's bytes


class _Stored(NamedTuple):
    file: Path
    name: str
    shape: tuple[int, ...]
    start: int | None = None  # the first row, of a part of a stored tensor


class SafetensorsSource:
    """The tensors of safetensors files.

    Args:
        folder: the folder of the files.
        file: the one file to read; if empty, those of the folder's index, else model.safetensors.

    Raises:
        DataError: a file is missing or damaged, lacks a tensor of the index, or has one that is not
            floating point. Names the file.

    Attributes:
        folder: as given.
    """

    def __init__(self, folder: Path, file: str = ""):
        self.folder = folder
        self._stored: dict[str, _Stored] = {}
        index = folder / INDEX_FILE
        weight_map = _weight_map(index) if not file and os.path.lexists(index) else {}
        files = set(weight_map.values()) or {file or SINGLE_FILE}
        for path in [folder / name for name in sorted(files)]:
            with _open(path) as handle:
                for name in handle.keys():
                    stored = handle.get_slice(name)
                    if stored.get_dtype() not in _DTYPES.values():
                        raise DataError(
                            f"{path}: tensor {name} is stored as {stored.get_dtype()}: expected"
                            f" {', '.join(_DTYPES.values())}, as in the unquantized checkpoint"
                        )
                    self._stored[name] = _Stored(path, name, tuple(stored.get_shape()))
        for name, part in weight_map.items():
            if name not in self._stored or self.file(name) != folder / part:
                raise DataError(
                    f"{folder / part}: tensor {name} is missing though {index.name} names it: copy"
                    " or download the file again"
                )
        single = folder / SINGLE_FILE
        if weight_map and SINGLE_FILE not in files and single.exists():
            # transformers reads the single file and ignores the index.
            raise DataError(
                f"{folder}: contains {SINGLE_FILE} and {INDEX_FILE}, which names other files: keep"
                " one set of weight files"
            )

    def renamed(self, stored: dict[str, str]) -> SafetensorsSource:
        """Returns a source of some of the tensors, by new name of each stored name."""
        source = copy.copy(self)
        source._stored = {name: self._stored[old] for name, old in stored.items()}
        return source

    def cut(self, parts: dict[str, tuple[str, int, int]]) -> SafetensorsSource:
        """Returns a source of these tensors in which some are replaced by parts of them.

        Args:
            parts: stored name, first row and row after the last of each new tensor, by its name.
        """
        source = copy.copy(self)
        source._stored = dict(self._stored)
        for name, (whole, start, end) in parts.items():
            stored = self._stored[whole]
            shape = (end - start, *stored.shape[1:])
            source._stored[name] = stored._replace(shape=shape, start=start)
        for whole in {whole for whole, _, _ in parts.values()}:
            del source._stored[whole]
        return source

    def names(self) -> set[str]:
        """Returns the names of all tensors."""
        return set(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        return self._stored[name].shape

    def check(
        self, expected: dict[str, tuple[int, ...]], remedy: str, others: Iterable[str] = ()
    ) -> None:
        """Checks that the tensors are those of a model.

        Args:
            expected: shapes by name.
            remedy: for messages.
            others: names of further tensors, which may be absent and have any shape.

        Raises:
            DataError: a tensor is missing, unexpected or of another shape.
        """
        present = {name: self.shape(name) for name in self.names() - set(others)}
        for name in sorted(expected.keys() | present):
            shape, found = expected.get(name, "none"), present.get(name, "none")
            if shape != found:
                file = self.file(name) if name in present else self.folder
                raise DataError(
                    f"{file}: tensor {name}: expected shape {shape} for this model, got {found}:"
                    f" {remedy}"
                )

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        """Reads a tensor or a part of it, in the stored dtype; copies no other part."""
        stored = self._stored[name]
        with _open(stored.file) as handle:
            if index is None and stored.start is None:
                return handle.get_tensor(stored.name)
            if stored.start is not None:
                first, *others = index or (slice(None),)
                start, end, _ = first.indices(stored.shape[0])
                index = (slice(stored.start + start, stored.start + end), *others)
            return handle.get_slice(stored.name)[index]

    def file(self, name: str) -> Path:
        """Returns the file that contains a tensor."""
        return self._stored[name].file


def _open(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read as safetensors ({error}): download the file again (pickled"
            " weights are not read)"
        ) from error


def _weight_map(index: Path) -> dict[str, str]:
    """Returns the file of each tensor by an index, which may only name files of its folder."""
    found = read_object(index).get("weight_map")
    weight_map = require(found, dict[str, str], index, "weight_map")
    names = weight_map.values()
    if not names or not all(re.fullmatch(r"[^/\\\0]*\.safetensors", name) for name in names):
        domain = "the .safetensors file of the folder that contains each tensor"
        raise DataError(f"{index}: weight_map: expected {domain}, got {shown(found)}")
    return weight_map


def write_files(
    folder: Path,
    tensors: dict[str, jax.ShapeDtypeStruct],
    values: Iterator[np.ndarray],
    max_file_bytes: int,
) -> None:
    """Writes tensors to safetensors files, and an index if there are several.

    Args:
        folder: an existing folder.
        tensors: shapes and dtypes by name, in the order of writing.
        values: the arrays, read one after another.
        max_file_bytes: most bytes of tensors per file; a larger tensor has a separate file.
    """
    files: list[list[str]] = [[]]
    size = total = 0
    for name, tensor in tensors.items():
        if files[-1] and size + _nbytes(tensor) > max_file_bytes:
            files.append([])
            size = 0
        files[-1].append(name)
        size += _nbytes(tensor)
        total += _nbytes(tensor)
    if len(files) == 1:
        return _write_file(folder / SINGLE_FILE, tensors, values)
    weight_map = {}
    for number, names in enumerate(files, 1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        _write_file(folder / file, {name: tensors[name] for name in names}, values)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _nbytes(tensor: jax.ShapeDtypeStruct) -> int:
    return tensor.size * tensor.dtype.itemsize


def _write_file(
    path: Path, tensors: dict[str, jax.ShapeDtypeStruct], values: Iterator[np.ndarray]
) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        offsets = [end, end + _nbytes(tensor)]
        dtype = _DTYPES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": offsets}
        end = offsets[1]
    encoded = json.dumps(header).encode()
    encoded += b" " * (-(8 + len(encoded)) % _ALIGNMENT)
    with open(path, "wb") as handle:
        handle.write(len(encoded).to_bytes(8, "little") + encoded)
        for _ in tensors:
            # Not in a variable, so that it is freed before the next one is copied to the host.
            handle.write(np.ascontiguousarray(next(values)).reshape(-1).view(np.uint8))
