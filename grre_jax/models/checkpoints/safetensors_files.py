"""safetensors files of a checkpoint: read by shards, written in parts.

A file is mapped only during a read, so that its pages do not stay resident.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from grre_jax.errors import DataError
from grre_jax.json_files import read_object, require

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_DTYPES = ("F32", "F16", "BF16", "F64")


class SafetensorsSource:
    """The tensors of safetensors files.

    Args:
        folder: the folder of the files.
        file: the one file to read; if empty, those of the folder's index, else model.safetensors.
        rename: the name of a stored tensor here, or None for one to leave out; if None, as stored.

    Raises:
        DataError: a file is missing or damaged, or has a tensor that is not floating point. Names
            the file.

    Attributes:
        folder: as given.
        shapes: of the tensors by name.
    """

    def __init__(
        self,
        folder: Path,
        file: str = "",
        rename: Callable[[str], str | None] | None = None,
    ):
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._stored: dict[str, tuple[Path, str]] = {}
        index = folder / INDEX_FILE
        files = {file or SINGLE_FILE}
        if not file and os.path.lexists(index):
            weight_map = read_object(index).get("weight_map")
            files = {*require(weight_map, dict[str, str], index, "weight_map").values()}
            if outside := sorted(name for name in files if Path(name).name != name):
                raise DataError(
                    f"{index}: weight_map: expected names of files beside it, got {outside[0]!r}"
                )
        for path in [folder / name for name in sorted(files)]:
            with _open(path) as handle:
                for stored in handle.keys():
                    tensor = handle.get_slice(stored)
                    if tensor.get_dtype() not in _DTYPES:
                        raise DataError(
                            f"{path}: tensor {stored}: expected one of {', '.join(_DTYPES)}, as in"
                            f" the unquantized checkpoint, got {tensor.get_dtype()}"
                        )
                    if name := rename(stored) if rename else stored:
                        self.shapes[name] = tuple(tensor.get_shape())
                        self._stored[name] = (path, stored)

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
        for name in sorted(expected.keys() | self.shapes.keys() - set(others)):
            shape = expected.get(name)
            actual = self.shapes.get(name)
            if shape != actual:
                file = self.file(name) if actual else self.folder
                raise DataError(
                    f"{file}: tensor {name}: expected shape {shape} for this model, got {actual}:"
                    f" {remedy}"
                )

    def read(self, name: str, index: tuple[slice, ...] = (slice(None),)) -> np.ndarray:
        """Reads a tensor or a part of it, in the stored dtype; copies no other part."""
        path, stored = self._stored[name]
        with _open(path) as handle:
            return handle.get_slice(stored)[index]

    def file(self, name: str) -> Path:
        """Returns the file that contains a tensor."""
        return self._stored[name][0]


def _open(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read as safetensors ({error}): download the file again (pickled"
            " weights are not read)"
        ) from error


def write_files(
    folder: Path, tensors: Iterator[tuple[str, np.ndarray]], max_file_bytes: int
) -> None:
    """Writes tensors to safetensors files, and an index if there are several.

    Args:
        folder: an existing folder.
        tensors: names and arrays, of which the host holds those of one file.
        max_file_bytes: most bytes of tensors per file; a larger tensor has a separate file.
    """
    files: list[list[str]] = []
    part: dict[str, np.ndarray] = {}
    size = total = 0

    def write() -> None:
        file = folder / f"{len(files)}.part"
        safetensors.numpy.save_file(part, file, metadata={"format": "pt"})
        files.append([*part])
        part.clear()

    for name, value in tensors:
        if part and size + value.nbytes > max_file_bytes:
            write()
            size = 0
        part[name] = value
        size += value.nbytes
        total += value.nbytes
    write()
    if len(files) == 1:
        (folder / "0.part").rename(folder / SINGLE_FILE)
        return
    weight_map = {}
    for number, names in enumerate(files):
        file = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        (folder / f"{number}.part").rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
