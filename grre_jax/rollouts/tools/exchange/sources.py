"""Rows of foreign files, one at a time: JSON lines, Parquet, and folders of `datasets.save_to_disk`
(Arrow streams).

Parquet and Arrow are read with pyarrow, a dependency of TensorFlow Datasets; Hugging Face's own
package is not needed.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from grre_jax import json_files
from grre_jax.errors import DataError
from grre_jax.json_files import shown

Rows = Iterator[tuple[str, Any]]  # where the row is ("line 3", "row 3 of x.parquet"), and the row
_MOST = 2.0**1000  # a larger int would not become a float


class Line:
    """One object of a file, whose fields are taken one by one; errors name file, line and field.

    Args:
        path: the file.
        location: of the object in the file, such as "line 3".
        value: the object.
        prefix: of the names of its fields in messages, such as "completions[0].".
        names: the file's own name of each field, None for one that the file does not have; fields
            that are not there have their own.

    Attributes:
        rest: the fields that were not taken.

    Raises:
        DataError: the value is not an object.
    """

    def __init__(
        self,
        path: Path,
        location: str,
        value: Any,
        prefix: str = "",
        names: Mapping[str, str | None] | None = None,
    ) -> None:
        self.path, self.location, self.prefix, self.names = path, location, prefix, names or {}
        if not isinstance(value, dict):
            raise DataError(
                f"{path}, {location}: {prefix.rstrip('.') or f'the {location.split()[0]}'} is"
                f" {shown(value)}; give a JSON object."
            )
        self.rest, self._fields = dict(value), list(value)

    def take(self, name: str, kinds: type | tuple[type, ...], default: Any = ...) -> Any:
        """Removes a field from `rest`; a whole number may be written as 4.0.

        Args:
            name: the field's.
            kinds: types that its value may have.
            default: its value where it is absent or null; without one it must be there.

        Returns:
            The value.

        Raises:
            DataError: it is missing and has no default, or is of another kind.
        """
        column = self.names.get(name, name)
        value = ... if column is None else self.rest.pop(column, ...)
        if value is ... or (value is None and default is not ...):
            if default is ...:
                has = ", ".join(self._fields) or "nothing"
                self.fail(name, f"is missing (it has {has}); add it, or map another field to it")
            return default
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        if int in kinds and float not in kinds and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = [
                "a whole number" if k is int and float not in kinds else _NAMES[k] for k in kinds
            ]
            self.fail(name, f"is {shown(value)}; give {' or '.join(dict.fromkeys(wanted))}")
        return value

    def number(self, name: str, default: Any = ..., *, or_truth: bool = False) -> float:
        """Returns a finite number, removed from `rest` as by `take`; with `or_truth` also true as 1
        and false as 0.
        """
        value = self.take(name, (bool, int, float) if or_truth else (int, float), default)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self.fail(name, f"is {shown(value)}; give a finite number")
        return number

    def number_or_nan(self, name: str, *, or_truth: bool = False) -> float:
        """Returns `number`, or NaN where the field is null or NaN, which stand for no number."""
        column = self.names.get(name, name)
        value = self.rest.get(column, ...)
        if value is None or value != value:
            del self.rest[column]
            return math.nan
        return self.number(name, or_truth=or_truth)

    def numbers(self, name: str, kinds: tuple[type, ...] = (int,)) -> list[Any] | None:
        """Removes a list of numbers from `rest`.

        Args:
            name: the field's.
            kinds: types of the numbers; without float they are whole.

        Returns:
            The list, None where it is absent or null.

        Raises:
            DataError: it is not a list, or has another value; the message names its index.
        """
        values = self.take(name, list, None)
        if values is None or set(map(type, values)) <= set(kinds):
            return values
        found = []
        for index, value in enumerate(values):
            if type(value) is float and float not in kinds and value.is_integer():
                value = int(value)
            if not ((type(value) in kinds and abs(value) <= _MOST) or value != value):
                wanted = "numbers" if float in kinds else "whole numbers"
                self.fail(name, f"has {shown(value)} at index {index}; give {wanted} only")
            found.append(value)
        return found

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raises the DataError that names this file, line and field."""
        raise DataError(
            f"{self.path}, {self.location}: field {self.prefix}{self.names.get(name) or name}"
            f" {problem}."
        )


def json_lines(path: Path) -> Rows:
    """Yields the objects of a JSONL file.

    Raises:
        DataError: a line is no JSON object.
    """
    with open(path, "rb") as file:
        for where, row in json_files.json_lines(file, path):
            yield where.removeprefix(f"{path}, "), row


def parquet(path: Path) -> Rows:
    """Yields the rows of a Parquet file, or of the .parquet files of a folder by name.

    Raises:
        DataError: a file is not Parquet, or damaged.
    """
    for where, row in _of_files(files(path, "parquet")):
        yield where, _own(Line(path, where, row))


def huggingface(path: Path) -> Rows:
    """Yields the rows of a data set that `datasets.save_to_disk` wrote, by its state.json. For a
    DatasetDict, give the folder of a split.

    Raises:
        DataError: it is not a folder, or a file is missing or damaged.
    """
    return _of_files(files(path, "huggingface"))


def _of_files(paths: list[Path]) -> Rows:
    from grre_jax.tasks.datasets import stored_records

    rows = itertools.chain.from_iterable(map(stored_records.table_rows, paths))
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", {name: _plain(value, items=True) for name, value in row.items()}


def toolace(path: Path) -> Rows:
    """Yields the conversations of ToolACE's data.json as demonstrations, rows of messages.

    Raises:
        DataError: the file is missing or damaged, or a record is no conversation.
    """
    from grre_jax.tasks.datasets import stored_records
    from grre_jax.tasks.datasets.toolace import demonstration

    for number, record in enumerate(stored_records.read_records(path), start=1):
        yield f"record {number}", demonstration(record, f"{path}, record {number}")


READERS: dict[str, Callable[[Path], Rows]] = {
    "jsonl": json_lines,
    "parquet": parquet,
    "huggingface": huggingface,
    "trl": parquet,
    "toolace": toolace,
}


def files(path: Path, kind: str) -> list[Path]:
    """Returns the files of a source of this kind, in order.

    Raises:
        DataError: there are none.
    """
    if kind == "huggingface":
        return _arrow_files(path)
    if path.is_dir() and kind != "jsonl":
        found = sorted(path.glob("*.parquet"))
        if not found:
            raise DataError(f"{path} has no .parquet file; check the path.")
        return found
    if not path.is_file():
        raise DataError(f"{path} does not exist or is not a file; check the path.")
    return [path]


def _arrow_files(path: Path) -> list[Path]:
    from grre_jax.tasks.datasets import stored_records

    splits = path / "dataset_dict.json"
    if not splits.is_file():
        return stored_records.saved_files(path)
    try:
        named = ", ".join(str(path / split) for split in json.loads(splits.read_text())["splits"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(
            f"{splits} cannot be read ({error}); import the folder of one split."
        ) from error
    raise DataError(f"{path} has several splits; import one of them: {named}.")


def digest(paths: list[Path]) -> str:
    """Returns the SHA-256 of the contents of files, one after the other."""
    total = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 16):
                total.update(block)
    return total.hexdigest()


def _own(line: Line) -> dict[str, Any]:
    """Returns a row; objects of an exported one, which Parquet has as text, are parsed."""
    if {"data_set", "record", "completions"} <= line.rest.keys():
        for name in ("data_set", "extra"):
            if isinstance(text := line.rest.get(name), str):
                try:
                    line.rest[name] = json.loads(text)
                except (ValueError, RecursionError) as error:
                    line.fail(name, f"is not JSON ({error}); export the rows again")
    return line.rest


def _plain(value: Any, *, items: bool = False) -> Any:
    """Returns an Arrow value with a type of JSON: maps arrive as lists of pairs, dates and decimals
    become text.

    A structure has the fields of all rows, null if a row had none: they are left out, as a tool's
    call would be rendered with them. With `items` those of a list's items are kept, as the reward
    of a completion may be null.
    """
    if items and isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [
            {str(name): _plain(inner) for name, inner in item.items()}
            if isinstance(item, dict)
            else _plain(item)
            for item in value
        ]
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list) and value and not isinstance(value[0], (int, float)):
        if all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(name): _plain(inner) for name, inner in value}
        return [_plain(item) for item in value]
    kept = value is None or isinstance(value, (str, bytes, bool, int, float, list))
    return value if kept else str(value)


_NAMES = {str: "a string", bytes: "bytes", bool: "true or false", int: "a number"}
_NAMES |= {float: "a number", list: "a list", dict: "an object"}
