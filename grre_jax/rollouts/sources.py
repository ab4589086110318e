"""Rows of other people's files, one at a time: JSON lines, Parquet, and folders of `datasets.save_to_disk` (Arrow streams).

Parquet and Arrow are read with pyarrow, which TensorFlow Datasets brings along; Hugging Face's own package is not needed.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError

Rows = Iterator[tuple[str, Any]]  # where the row is ("line 3", "row 3 of x.parquet"), and the row
BATCH = 64  # rows in memory at once


def json_lines(path: Path) -> Rows:
    """The objects of a JSONL file.

    Raises:
      DataError: a line is not JSON.
    """
    with open(path, "rb") as file:
        for number, data in enumerate(file, start=1):
            if not data.strip():
                continue
            try:
                yield f"line {number}", json.loads(data.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:  # ValueError: bad UTF-8 too
                raise DataError(f"{path}, line {number}: not JSON ({error}); write one JSON object a line.") from error


def parquet(path: Path) -> Rows:
    """The rows of a Parquet file, or of the .parquet files of a folder by name.

    Raises:
      DataError: a file is not Parquet, or damaged.
    """
    import pyarrow
    from pyarrow import parquet as format_

    number = 0
    for file in files(path, "parquet"):
        try:
            with format_.ParquetFile(file) as opened:
                for batch in opened.iter_batches(batch_size=BATCH):
                    for row in batch.to_pylist():
                        number += 1
                        yield f"row {number}", _own(_plain(row))
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{file}: not a readable Parquet file ({error}).") from error


def huggingface(path: Path) -> Rows:
    """The rows of a data set that `datasets.save_to_disk` wrote, by its state.json; of a DatasetDict, name a split's folder.

    Raises:
      DataError: the folder is none, or a file is missing or damaged.
    """
    import pyarrow

    number = 0
    for file in files(path, "huggingface"):
        try:
            with pyarrow.memory_map(str(file)) as opened, pyarrow.ipc.open_stream(opened) as batches:
                for batch in batches:
                    for start in range(0, batch.num_rows, BATCH):
                        for row in batch.slice(start, BATCH).to_pylist():
                            number += 1
                            yield f"row {number}", _plain(row)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{file}: not a readable Arrow file ({error}).") from error


READERS: dict[str, Callable[[Path], Rows]] = {"jsonl": json_lines, "parquet": parquet, "huggingface": huggingface, "trl": parquet}


def files(path: Path, kind: str) -> list[Path]:
    """The files that a source of this kind is made of, in order.

    Raises:
      DataError: there are none.
    """
    if kind == "huggingface":
        return _arrow_files(path)
    if path.is_dir() and kind != "jsonl":
        found = sorted(path.glob("*.parquet"))
        if not found:
            raise DataError(f"{path} holds no .parquet file; check the path.")
        return found
    if not path.is_file():
        raise DataError(f"{path} does not exist or is not a file; check the path.")
    return [path]


def _arrow_files(path: Path) -> list[Path]:
    if (path / "dataset_dict.json").is_file():
        splits = json.loads((path / "dataset_dict.json").read_text())["splits"]
        raise DataError(f"{path} holds several splits; import one of them: {', '.join(str(path / split) for split in splits)}.")
    try:
        state = json.loads((path / "state.json").read_text())
        found = [path / file["filename"] for file in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a folder of datasets.save_to_disk: its state.json cannot be read ({error}).") from error
    for file in found:
        if not file.is_file():
            raise DataError(f"{file} is missing, which {path / 'state.json'} lists; restore it from a copy.")
    return found


def digest(paths: list[Path]) -> str:
    """SHA-256 over the files' contents, one after the other."""
    total = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                total.update(block)
    return total.hexdigest()


def _own(row: dict[str, Any]) -> dict[str, Any]:
    """A row that this package exported, with the objects that Parquet holds as text."""
    if not {"data_set", "record", "completions"} <= row.keys():
        return row
    return {name: json.loads(value) if name in ("data_set", "extra") and isinstance(value, str) else value for name, value in row.items()}


def _plain(value: Any) -> Any:
    """An Arrow value as JSON has it: maps arrive as lists of pairs, dates and decimals become text."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(name): _plain(inner) for name, inner in value}
        return value if not value or isinstance(value[0], (int, float)) else [_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, bytes, bool, int, float)) else str(value)
