"""Records of published data sets: from Parquet, JSON and JSON-lines files as they were
downloaded, from folders of `datasets.save_to_disk`, or through Hugging Face `datasets`.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import json_lines, shown
from grre_jax.tasks.judging import error_words

_ENDINGS = (".parquet", ".jsonl", ".json", ".arrow")
_HUB = "https://huggingface.co"
_PROBE_SECONDS = 10
ROWS_AT_ONCE = 64  # in memory

Record = dict[str, Any]


def data_files(path: Path) -> list[Path]:
    """The files below a folder that can be read, in the order of their names; without hidden ones,
    such as macOS's "._1.json". Of a folder of `datasets.save_to_disk` they are the data that its
    state.json lists, without metadata and caches.
    """
    found = {file for file in path.rglob("*") if file.suffix in _ENDINGS and file.is_file()}
    for state in path.rglob("state.json"):
        saved = state.parent
        if (saved / "dataset_info.json").is_file():
            found -= {*saved.iterdir(), saved.parent / "dataset_dict.json"}
            found |= {*saved_files(saved)}
    return sorted(file for file in found if "/." not in f"/{file.relative_to(path).as_posix()}")


def saved_files(path: Path) -> list[Path]:
    """The Arrow files of a data set that `datasets.save_to_disk` wrote, in order.

    Raises:
        DataError: the folder's state.json cannot be read, or a file is missing.
    """
    state = path / "state.json"
    try:
        listed = json.loads(state.read_text())["_data_files"]
        found = [path / file["filename"] for file in listed]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a folder of datasets.save_to_disk: its state.json cannot be read"
            f" ({error})."
        ) from error
    for file in found:
        if not file.is_file():
            raise DataError(f"{file} is missing, which {state} lists; restore it from a copy.")
    return found


def files_of(path: Path, split: str) -> list[Path]:
    """The files of a split ("train" or "test") below a folder, in the order of their names; none
    if there are none.

    Taken are SPLIT.parquet, SPLIT.jsonl and SPLIT.json, SPLIT-*.parquet (shards) at any depth, and
    everything below a folder SPLIT. Without any of these, a folder that is named SPLIT itself gives
    all that it holds.
    """

    def of_split(file: Path) -> bool:
        stem, folders = file.name.removesuffix(file.suffix), file.relative_to(path).parts[:-1]
        shard = file.suffix == ".parquet" and stem.startswith(f"{split}-")
        return stem == split or shard or split in folders

    found = data_files(path)
    return [file for file in found if of_split(file)] or (found if path.name == split else [])


def read_records(file: Path) -> Iterator[Record]:
    """The records of a file: a row of .parquet or .arrow, a line of .jsonl, an object of the list
    in a .json (or the one object that it is).

    Raises:
        DataError: the file is missing, damaged, or holds something else; the message says what.
        UsageError: the file's name has another ending.
    """
    if file.suffix in (".parquet", ".arrow"):
        yield from table_rows(file)
        return
    if file.suffix not in _ENDINGS:
        raise UsageError(
            f"{file} ends in none of {', '.join(_ENDINGS)}: give a file in one of these formats."
        )
    try:
        with file.open("rb") as opened:
            if file.suffix == ".jsonl":
                yield from (record for _, record in json_lines(opened, file))
                return
            content = json.load(opened)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file} cannot be read as JSON ({error}): give the file as it was published; one with"
            " an object a line must be named .jsonl."
        ) from error
    for number, record in enumerate(content if isinstance(content, list) else [content], 1):
        if not isinstance(record, dict):
            raise DataError(
                f"{file}, record {number}: expected a JSON object, got {shown(record)}."
            )
        yield record


def from_hub(name: str, split: str, ways: str, data_files: str | None = None) -> Iterable[Record]:
    """The records of a split of a data set on Hugging Face, by the library `datasets`, which
    keeps what it downloads.

    Args:
        name: the data set, "Team-ACE/ToolACE".
        split: as the data set names it.
        ways: what else the user can do, for messages.
        data_files: the files of the split, where it is not by name.

    Raises:
        DataError: the library is not installed, or the data set is neither kept nor to be
            downloaded.
    """
    try:
        import datasets
        import requests
    except ImportError as error:
        raise DataError(
            f"{name} is downloaded with the package datasets, which cannot be imported ({error}):"
            f" {ways}, or install it."
        ) from error
    try:
        if not datasets.config.HF_HUB_OFFLINE:
            # Without a network the library's own retries take minutes.
            requests.head(_HUB, timeout=_PROBE_SECONDS)
        files = {"data_files": {split: data_files}} if data_files else {}
        return datasets.load_dataset(name, split=split, **files)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{name} is neither kept by the package datasets nor to be downloaded"
            f" ({error_words(error)}): {ways}."
        ) from error


def table_rows(file: Path) -> Iterator[Record]:
    """The rows of a Parquet file, or of an Arrow stream in a file that ends in .arrow.

    Raises:
        DataError: the file is missing or damaged, or two columns have one name.
    """
    import pyarrow

    try:
        for batch in _batches(file):
            names = batch.schema.names
            if len(set(names)) < len(names):
                raise ValueError(f"two columns have one name, of {', '.join(names)}")
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                yield from batch.slice(start, ROWS_AT_ONCE).to_pylist()
    except (OSError, ValueError, LookupError, NotImplementedError, pyarrow.ArrowException) as error:
        form = "an Arrow stream" if file.suffix == ".arrow" else "Parquet"
        raise DataError(
            f"{file} cannot be read as {form} ({' '.join(str(error).split())[:160]}): give the"
            " file as it was published."
        ) from error


def _batches(file: Path) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    if file.suffix == ".arrow":
        with pyarrow.memory_map(str(file)) as opened, pyarrow.ipc.open_stream(opened) as stream:
            yield from stream
    else:
        with parquet.ParquetFile(file) as table:
            yield from table.iter_batches(ROWS_AT_ONCE)
