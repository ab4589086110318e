"""Export of a rollout folder to a JSONL file, whose import gives the same groups."""

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


def export(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Writes all groups of a rollout folder to one file, one row each: its fields by their names.

    Args:
        folder: the rollout folder.
        path: the file, which must not exist.

    Returns:
        The number of groups.

    Raises:
        UsageError: the file exists.
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
    if path.exists():
        raise UsageError(f"{path} exists already; name a new file.")
    opened = reader.read(folder)
    if not len(opened):
        raise DataError(f"Rollout folder {opened.folder} has no groups to export.")
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "w", encoding="ascii") as file:
            for row in _rows(opened):
                file.write(json.dumps(row) + "\n")
        os.replace(part, path)
    except OSError as error:
        raise DataError(
            f"Cannot write {path}: {error}. Check that its folder is there and has space left."
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
