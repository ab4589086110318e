"""Export of a rollout folder to a JSONL or Parquet file, whose import gives the same groups, bit
for bit.
"""

import base64
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import encoding, reader
from grre_jax.rollouts.schema import Group
from grre_jax.rollouts.tools import copying
from grre_jax.rollouts.tools.exchange import rows

ROWS_AT_ONCE = 64  # rows of a Parquet row group; they are in memory together


def export(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Writes all groups of a rollout folder to one file, one row each (see `rows`).

    Args:
        folder: the rollout folder.
        path: the file, which must not exist; its ending, .jsonl or .parquet, is its format.

    Returns:
        The number of groups.

    Raises:
        UsageError: an unknown format, or a file that exists.
        DataError: the folder cannot be read or holds no groups, a group is damaged, or no space is
            left. No file remains then.
    """
    path = Path(path).expanduser()
    kind = path.suffix.lstrip(".")
    if kind not in WRITERS:
        raise UsageError(
            f"Cannot export to {path}: its format is {kind!r}; use {' or '.join(WRITERS)}."
        )
    if path.exists():
        raise UsageError(f"{path} exists already; name a new file.")
    opened = reader.read(folder)
    if not len(opened):
        raise DataError(f"Rollout folder {opened.folder} has no groups to export.")
    copying.warn_of_newer(opened)
    part = path.with_name(f".{path.name}.part")
    try:
        WRITERS[kind](_rows(opened), part)
        os.replace(part, path)
    except OSError as error:
        raise DataError(
            f"Cannot write {path}: {error.strerror or error}. Check that its folder is there and"
            " has space left."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return len(opened)


def _rows(opened: reader.RolloutReader) -> Iterator[tuple[Group, dict[str, Any]]]:
    first = 0
    for entry in opened.datasets:
        names = ("name", "writer", "policy_version", "schema_version", "created", "metadata")
        about = {name: getattr(entry, name) for name in names}
        for number in range(first, first + entry.groups):
            group = opened[number]
            yield group, rows.of_group(group, about)
        first += entry.groups


def _write_jsonl(found: Iterator[tuple[Group, dict[str, Any]]], path: Path) -> None:
    with open(path, "w", encoding="ascii") as file:
        for _, row in found:
            if "record" in row:
                row["record"] = base64.b64encode(row["record"]).decode()
            file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _write_parquet(found: Iterator[tuple[Group, dict[str, Any]]], path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    layout = _parquet_schema()
    with parquet.ParquetWriter(path, layout, compression="zstd") as output:
        while some := list(itertools.islice(found, ROWS_AT_ONCE)):
            batch = [_for_parquet(group, row) for group, row in some]
            output.write_table(pyarrow.Table.from_pylist(batch, layout))


def _parquet_schema() -> Any:
    """Returns the columns; completions are a list of structures."""
    import pyarrow as pa

    ints, floats = pa.list_(pa.int32()), pa.list_(pa.float32())
    text, number, real = pa.string(), pa.int64(), pa.float64()
    completion = {"text": text, "reward": pa.float32(), "finish_reason": text}
    completion |= {"policy_version": pa.int32(), "source": text, "is_expert": pa.bool_()}
    completion |= {"components": pa.map_(text, pa.float32()), "tokens": ints}
    completion |= {"mask": pa.list_(pa.uint8())}
    completion |= dict.fromkeys(rows.LOGPROB_COLUMNS.values(), floats) | {"token_versions": ints}
    columns = dict.fromkeys(("group_id", "task", "question_id", "prompt", "answer"), text)
    columns |= {"position": number, "attempt": number, "prompt_tokens": ints}
    columns |= {"completions": pa.list_(pa.struct(list(completion.items())))}
    columns |= {"temperature": real, "top_k": number, "top_p": real, "min_p": real, "seed": number}
    columns |= dict.fromkeys(("logprob_dtype", "engine", "extra", "data_set"), text)
    return pa.schema(list((columns | {"record": pa.binary()}).items()))


def _for_parquet(group: Group, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with the types of the columns."""
    row |= {"extra": json.dumps(row["extra"]), "data_set": json.dumps(row["data_set"])}
    safe = _utf8(row)
    if safe != row:
        safe["record"] = encoding.encode(group)  # a lone surrogate, which no UTF-8 file can hold
    return safe


def _utf8(value: Any) -> Any:
    """Returns a value with question marks for characters that UTF-8 cannot encode."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_utf8(name): _utf8(inner) for name, inner in value.items()}
    nested = isinstance(value, list) and value and isinstance(value[0], str | dict | list)
    return [_utf8(item) for item in value] if nested else value


WRITERS: dict[str, Callable[[Iterator[tuple[Group, dict[str, Any]]], Path], None]] = {
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
}
