"""Rows of foreign files, one at a time, each with its location ("FILE, line 3"): JSON lines,
Parquet, and data sets of Hugging Face.

Parquet and Arrow are read with pyarrow, a dependency of TensorFlow Datasets.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grre_jax import json_files
from grre_jax.errors import DataError
from grre_jax.rollouts.tools.exchange.rows import Row

Rows = Iterator[tuple[str, Row]]


def rows(path: Path, kind: str) -> Rows:
    """Yields the rows of a source.

    Args:
        path: as for `files`; of kind datasets also NAME or NAME:SPLIT of a data set on the Hub.
        kind: a name in `importers.FORMATS`.

    Raises:
        DataError: a file is missing, of another format, or damaged.
    """
    from grre_jax.tasks.datasets import stored_records

    if kind == "datasets" and not path.exists():
        name, _, split = str(path).partition(":")
        return _numbered(path, stored_records.from_hub(name, split or "train"))
    paths = files(path, kind)
    if kind in ("jsonl", "verl", "gsm8k-solutions") or path.suffix == ".jsonl":
        return _json_lines(path)
    return _numbered(path, itertools.chain.from_iterable(map(stored_records.table_rows, paths)))


def files(path: Path, kind: str) -> list[Path]:
    """Returns the files of a source, in order; none of a data set on the Hub.

    Args:
        path: a file, a folder of Parquet files, or (kind datasets) one of `datasets.save_to_disk`.
        kind: a name in `importers.FORMATS`.

    Raises:
        DataError: there are none.
    """
    from grre_jax.tasks.datasets.stored_records import saved_files

    if kind == "datasets":
        splits = sorted(state.parent.name for state in path.glob("*/state.json"))
        if splits and not (path / "state.json").exists():
            raise DataError(f"{path} has the splits {', '.join(splits)}: name the folder of one.")
        return saved_files(path) if path.exists() else []
    found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not found or not found[0].is_file():
        raise DataError(f"{path} does not exist, or is a folder without .parquet files.")
    return found


def digest(paths: list[Path]) -> str:
    """Returns the SHA-256 of the contents of files, one after the other."""
    total = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 16):
                total.update(block)
    return total.hexdigest()


def _json_lines(path: Path) -> Rows:
    with open(path, "rb") as file:
        yield from json_files.json_lines(file, path)


def _numbered(path: Path, records: Iterable[Row]) -> Rows:
    for number, record in enumerate(records, start=1):
        row = {name: _row_value(value) for name, value in record.items()}
        for name in ("data_set", "extra") if "data_set" in row else ():
            row[name] = _parsed(row.get(name))  # an export, which has objects as JSON
        yield f"{path}, row {number}", row


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value  # refused where it is read


def _row_value(value: Any) -> Any:
    """Returns an Arrow value with a type of JSON; null fields of a list's objects are kept, as the
    reward of a completion may be null.
    """
    if isinstance(value, list) and value and isinstance(value[0], dict):
        items = [item or {} for item in value]
        return [{str(name): _plain(inner) for name, inner in item.items()} for item in items]
    return _plain(value)


def _plain(value: Any) -> Any:
    """Returns an Arrow value with a type of JSON: maps arrive as lists of pairs, dates and decimals
    become text.

    A structure has the fields of all rows, null if a row had none: they are left out, as a tool's
    call would be rendered with them.
    """
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list) and value and not isinstance(value[0], int | float):
        if all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(name): _plain(inner) for name, inner in value}
        return [_plain(item) for item in value]
    plain = value is None or isinstance(value, str | bytes | bool | int | float | list)
    return value if plain else str(value)
