"""Export of a rollout folder to a JSONL or Parquet file, whose import gives the same groups."""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import reader
from grre_jax.rollouts.schema import GROUP_FIELDS
from grre_jax.rollouts.tools.exchange.importers import DATA_SET

ROWS_AT_ONCE = 64  # rows of a Parquet row group; they are in memory together
ENDINGS = (".jsonl", ".parquet")


def export(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Writes all groups of a rollout folder to one file, one row each: its fields by their names.

    Args:
        folder: the rollout folder.
        path: the file, which must not exist; its ending, .jsonl or .parquet, is its format.

    Returns:
        The number of groups.

    Raises:
        UsageError: an unknown format, or a file that exists.
        DataError: the folder cannot be read or holds no groups, a group is damaged, or no space is
            left. No file remains then.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> from grre_jax import rollouts
        >>> group = rollouts.Group(group_id="a", prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        >>> _ = rollouts.write("my_rollouts", [group], writer="me")
        >>> rollouts.export("my_rollouts", "groups.jsonl")
        1
        >>> row = json.loads(Path("groups.jsonl").read_text())
        >>> row["prompt"], row["texts"], row["rewards"]
        ('1+1=', ['2', '3'], [1.0, 0.0])
    """
    path = Path(path).expanduser()
    if path.suffix not in ENDINGS:
        raise UsageError(f"{path}: expected a file name ending in {' or '.join(ENDINGS)}.")
    if path.exists():
        raise UsageError(f"{path} exists already; name a new file.")
    opened = reader.read(folder)
    if not len(opened):
        raise DataError(f"Rollout folder {opened.folder} has no groups to export.")
    write = _write_jsonl if path.suffix == ".jsonl" else _write_parquet
    part = path.with_name(f".{path.name}.part")
    try:
        write(_rows(opened), part)
        os.replace(part, path)
    except (OSError, UnicodeEncodeError) as error:
        # Parquet's texts are UTF-8, which cannot encode half of a surrogate pair; JSON's can be.
        raise DataError(
            f"Cannot write {path}: {error}. Check that its folder is there and has space left; a"
            " text that cannot be encoded can be exported to .jsonl."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return len(opened)


def _rows(opened: reader.RolloutReader) -> Iterator[dict[str, Any]]:
    """Yields groups as rows of JSON values; NaN and log-probs that are unknown are null."""
    for number, group in enumerate(opened):
        entry, _ = opened.locate(number)
        row = {field.name: _listed(getattr(group, field.name)) for field in GROUP_FIELDS}
        row["components"] = {name: _listed(values) for name, values in group.components.items()}
        yield row | {"data_set": {name: getattr(entry, name) for name in DATA_SET}}


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [None if number != number else number for number in value.tolist()]
    return value


def _write_jsonl(found: Iterator[dict[str, Any]], path: Path) -> None:
    with open(path, "w", encoding="ascii") as file:
        for row in found:
            file.write(json.dumps(row) + "\n")


def _write_parquet(found: Iterator[dict[str, Any]], path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    layout = _parquet_schema()
    with parquet.ParquetWriter(path, layout, compression="zstd") as output:
        while some := list(itertools.islice(found, ROWS_AT_ONCE)):
            for row in some:
                row |= {name: json.dumps(row[name]) for name in ("extra", "data_set")}
            output.write_table(pyarrow.Table.from_pylist(some, layout))


def _parquet_schema() -> Any:
    import pyarrow as pa

    kinds = {
        "text": pa.string(),
        "extra": pa.string(),
        "list": pa.list_(pa.string()),
        "components": pa.map_(pa.string(), pa.list_(pa.float32())),
        "int64": pa.int64(),
        "float64": pa.float64(),
    }
    columns = {
        field.name: kinds.get(field.kind) or pa.list_(pa.type_for_alias(field.kind))
        for field in GROUP_FIELDS
    }
    return pa.schema(list((columns | {"data_set": pa.string()}).items()))
