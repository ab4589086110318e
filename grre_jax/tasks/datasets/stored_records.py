"""Records of published data sets: from Parquet, JSON and JSON-lines files as they were
downloaded, or through Hugging Face `datasets`.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError
from grre_jax.json_files import json_lines, require
from grre_jax.tasks.judging import error_words

_ENDINGS = (".parquet", ".jsonl", ".json")
ROWS_AT_ONCE = 64  # in memory

Record = dict[str, Any]


def files_of(path: Path, split: str) -> list[Path]:
    """The files of a split ("train" or "test") below a folder, in the order of their names; none
    if there are none.

    Taken are SPLIT.parquet, SPLIT.jsonl and SPLIT.json, SPLIT-*.parquet (shards) at any depth, and
    everything below a folder SPLIT.
    """

    def of_split(file: Path) -> bool:
        parts = file.relative_to(path).parts
        hidden = any(part.startswith(".") for part in parts)  # such as macOS's "._1.json"
        shard = file.suffix == ".parquet" and file.stem.startswith(f"{split}-")
        named = shard or file.stem == split or split in parts[:-1]
        return named and not hidden and file.suffix in _ENDINGS and file.is_file()

    return sorted(filter(of_split, path.rglob("*")))


def read_records(file: Path) -> Iterator[Record]:
    """The records of a file: a line of .jsonl, an object of the list in a .json (or the one object
    that it is), a row of Parquet under any other name.

    Raises:
        DataError: the file is missing, damaged, or has other content, which the message names.
    """
    if file.suffix == ".jsonl":
        with _reading(file, "JSON lines"), file.open("rb") as lines:
            yield from (record for _, record in json_lines(lines, file))
    elif file.suffix == ".json":
        # A file with an object a line has to be named .jsonl.
        with _reading(file, "one JSON value"):
            content = json.loads(file.read_bytes())
        for number, record in enumerate(content if isinstance(content, list) else [content], 1):
            yield require(record, dict, file, f"record {number}")
    else:
        yield from table_rows(file)


def from_hub(name: str, split: str, data_files: str | None = None) -> Iterable[Record]:
    """The records of a split of a data set on Hugging Face, by the library `datasets`, which
    keeps what it downloads; or of a folder that its `save_to_disk` wrote.

    Args:
        name: the data set, "Team-ACE/ToolACE", or the folder.
        split: as the data set names it.
        data_files: the files of the split, where it is not by name.

    Raises:
        DataError: the library is not installed, or the data set is neither kept nor to be
            downloaded.
    """
    try:
        import datasets

        if (Path(name) / "state.json").exists():
            return datasets.load_from_disk(name)
        files = {"data_files": {split: data_files}} if data_files else {}
        return datasets.load_dataset(name, split=split, **files)
    except (ImportError, OSError, ValueError) as error:
        raise DataError(
            f"path: expected files, as {name} is neither kept by the package datasets (extra hub)"
            f" nor to be downloaded ({error_words(error)})"
        ) from error


def table_rows(file: Path) -> Iterator[Record]:
    """The rows of a Parquet file.

    Raises:
        DataError: the file is missing or damaged, or two columns have one name.
    """
    from pyarrow import parquet

    with _reading(file, "Parquet"):
        for batch in parquet.ParquetFile(file).iter_batches(ROWS_AT_ONCE):
            names = batch.schema.names
            if len(set(names)) < len(names):
                raise ValueError(f"two columns have one name, of {', '.join(names)}")
            yield from batch.to_pylist()


@contextlib.contextmanager
def _reading(file: Path, form: str) -> Iterator[None]:
    """A context in which an error of a parser becomes a DataError that names the file."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, RecursionError, RuntimeError) as error:
        raise DataError(
            f"{file} cannot be read as {form} ({error_words(error)}). Give it as published."
        ) from error
