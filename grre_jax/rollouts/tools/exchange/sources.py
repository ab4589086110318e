"""Rows of foreign files, one at a time, each with its location ("FILE, line 3"): JSON lines,
Parquet, and data sets of Hugging Face.

Parquet is read with pyarrow, a dependency of TensorFlow Datasets.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError
from grre_jax.json_files import json_lines
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

    if kind == "datasets":
        name, _, split = str(path).partition(":")
        return _numbered(path, stored_records.from_hub(name, split or "train"))
    paths = files(path)
    if path.is_dir() or path.suffix == ".parquet":
        return _numbered(path, itertools.chain.from_iterable(map(stored_records.table_rows, paths)))
    return _json_lines(path)


def files(path: Path) -> list[Path]:
    """Returns the files of a source, in order.

    Args:
        path: a file, a folder of Parquet files, or one of `datasets.save_to_disk`.

    Raises:
        DataError: there are none.
    """
    found = [path]
    if path.is_dir():
        found = sorted([*path.glob("*.parquet"), *path.glob("data-*.arrow")])
    if not found or not found[0].is_file():
        raise DataError(
            f"{path}: expected a file, a folder of .parquet files, or one split of a folder of"
            " datasets.save_to_disk."
        )
    return found


def _json_lines(path: Path) -> Rows:
    with open(path, "rb") as file:
        yield from json_lines(file, path)


def _numbered(path: Path, records: Iterable[Row]) -> Rows:
    """Yields the rows of tables as JSON has them: dates, decimals and bytes become text.

    A structure has the fields of all rows, null if a row had none: they are left out, as a tool's
    call would be rendered with them, but for rewards.
    """
    for number, record in enumerate(records, start=1):
        text = json.dumps(record, default=str)
        yield f"{path}, row {number}", json.loads(text, object_hook=_present)


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    items = fields.items()
    return {name: value for name, value in items if value is not None or "reward" in name}
