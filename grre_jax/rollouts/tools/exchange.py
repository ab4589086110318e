"""Import of foreign completions into a rollout folder, and export of a folder.

An import reads its file row by row and seals all of it together, or nothing if a row is wrong.
Imported groups have no behaviour log-probs unless the file has them; objectives that need them
refuse the groups with that reason.
"""

import contextlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grre_jax.domains import ConfigError, checked
from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import check, json_lines
from grre_jax.rollouts import reader, writer
from grre_jax.rollouts.schema import GROUP_FIELDS
from grre_jax.rollouts.tools import copying, rows

if TYPE_CHECKING:
    from grre_jax.tasks import Tokenizer

Located = tuple[str, rows.Row]  # a row behind its place ("FILE, line 3")

# The file's own names of fields, by format; "group" is the column whose equal values are one group.
FORMATS: dict[str, dict[str, str]] = {
    "jsonl": {},
    "parquet": {},
    "datasets": {},
    "trl": {},
    "verl": {
        "prompt": "input",
        "text": "output",
        "answer": "gts",
        "reward": "score",
        "group": "input",
    },
}
# Other names of fields, in every format. Masks of other libraries are 1 where the policy generated.
_MASKS = (
    "completion_mask",
    "response_mask",
    "loss_mask",
    "action_mask",
    "assistant_mask",
    "assistant_masks",
    "generation_mask",
)
ALIASES = {
    "completion": "text",
    "responses": "texts",
    "logprobs": "behavior_logprobs",
    **dict.fromkeys(_MASKS, "mask"),
}
# Fields of an exported row's data_set.
DATA_SET = ("writer", "policy_version", "metadata")


def import_rows(
    kind: str,
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    mapping: Mapping[str, Any] | None = None,
    task: str = "",
    contains: tuple[str, ...] = (),
    tokenizer: "Tokenizer | None" = None,
) -> list[str]:
    """Imports rows of any format in FORMATS.

    A row is a group, as `rows` shows it, a single completion, or a whole conversation, `messages`.
    docs/rollouts.md has the fields; columns that are not fields are kept in the group's `extra`.
    Rows that this package exported become the data sets that they were, provenance included.

    Args:
        kind: jsonl; parquet (a file, or a folder of them); datasets (a folder of
            `datasets.save_to_disk`, or NAME:SPLIT of a data set on the Hub); trl (completions
            that its trainers logged: the reward columns, which end in "_reward",
            become components, and their sum the reward); verl (lines of its rollout_data_dir).
        path: the file, folder or name.
        folder: the rollout folder, made when it does not exist.
        mapping: the file's own names of fields, {"prompt": "question", "text": "response"}. "group"
            names the column whose equal values are one group.
        task: task name for rows that give none.
        contains: benchmark splits that the questions come from, as ("gsm8k/test",), so that
            evaluations on them are recognised.
        tokenizer: the policy's. It renders chat messages, and made the tokens that rows have.

    Returns:
        The names of the sealed data sets.

    Raises:
        UsageError: a name in `mapping` is not a field; `contains` is not of texts.
        DataError: the file is missing or empty, no row has a column of `mapping`, or a row is
            wrong; the message names line, field and domain, and nothing is sealed.

    Examples:
        Single completions under names of their own; those of one prompt are a group:

        >>> import json
        >>> from pathlib import Path
        >>> from grre_jax import rollouts
        >>> rows = [{"question": "1+1=", "response": text, "score": text == "2"} for text in "23"]
        >>> _ = Path("scored.jsonl").write_text("\\n".join(map(json.dumps, rows)))
        >>> names = {"prompt": "question", "text": "response", "reward": "score"}
        >>> rollouts.import_rows("jsonl", "scored.jsonl", "my_rollouts", mapping=names, task="sums")
        ['jsonl']
        >>> for group in rollouts.read("my_rollouts"):
        ...     print(group.texts, group.rewards)
        ['2', '3'] [1. 0.]
    """
    renames = dict(mapping or {})
    mapping = FORMATS[kind] | renames
    names = _column_names(mapping)
    unseen = set(renames.values())
    column = mapping.get("group", "")
    path = Path(path).expanduser()
    source = {"engine": "imported", "format": kind, "source_file": path.name}
    splits = checked("contains", tuple[str, ...], contains)
    provenance = {"task": task, "contains": list(splits)}
    if tokenizer is not None:
        provenance["tokenizer"] = tokenizer.fingerprint
    new = {"writer": kind, "policy_version": -1, "metadata": provenance | source}

    def groups() -> Iterator[copying.Placed]:
        located = _renamed(located_rows(path, kind), kind, names, unseen)
        first = next(located, None)
        if first is None:
            raise DataError(f"{path} has no groups; write one JSON object a line.")
        located = itertools.chain([first], located)
        if rows.is_completion(first[1]):
            located = _gathered(located, names.get(column, column))
        identifiers: set[str] = set()
        for place, row in located:
            with _placed(place):
                exported = row["extra"].pop("data_set", None)
                about = new if exported is None else _former(exported, source, contains)
                name = f"{path.stem}:{place.split()[-1]}"
                group = rows.to_group(row, name, provenance["task"], tokenizer)
                if exported is None and group.group_id in identifiers:
                    raise ConfigError("group_id", "another in each group", group.group_id)
                identifiers.add(group.group_id)
            yield about, group
        if unseen:
            columns = ", ".join(sorted(unseen))
            raise DataError(f"{path}: mapping: expected columns that a row has, got {columns}.")

    return writer.write_all(folder, copying.datasets(groups()))


def _renamed(
    found: Iterator[Located], kind: str, names: dict[str, str], unseen: set[str]
) -> Iterator[Located]:
    """Yields rows under the names of fields, with their places, and takes their columns out of
    `unseen`.
    """
    for place, row in found:
        with _placed(place):
            if kind == "trl":
                row = _with_components(row, names)
            elif "data_set" in row:
                row = _exported(row)
            row = rows.renamed(row, names, unseen)
        yield place, row


def _exported(row: rows.Row) -> rows.Row:
    """Returns the row of an export, of which Parquet has objects as JSON text and components as
    pairs.
    """
    record = dict(row)
    for name in ("data_set", "extra"):
        if isinstance(row.get(name), str):
            record[name] = json.loads(row[name])
    if isinstance(row.get("components"), list):
        record["components"] = dict(row["components"])
    return record


def _former(exported: Any, source: dict[str, Any], contains: tuple[str, ...]) -> dict[str, Any]:
    """Returns the fields of the data set that an exported row was in, with a step in its
    history.
    """
    about = {name: checked("data_set", dict[str, Any], exported).get(name) for name in DATA_SET}
    before = checked("data_set.metadata", dict[str, Any], about["metadata"])
    about["metadata"] = copying.with_step(before, {"operation": "import"} | source)
    if contains:
        about["metadata"]["contains"] = sorted({*before.get("contains", ()), *contains})
    return about


def _column_names(mapping: Mapping[str, Any]) -> dict[str, str]:
    """Returns the field that each column is, "" for none, from the column of each field."""
    sources = (*rows.FIELDS, *rows.COMPLETION_FIELDS, "completions", "group")
    fields = {ALIASES.get(field, field): column for field, column in mapping.items()}
    check(fields, dict.fromkeys(sources, str), "mapping.")
    fields.pop("group", None)
    names = {alias: field for alias, field in ALIASES.items() if field not in fields}
    names |= dict.fromkeys(fields, "")  # a column of a mapped field's own name is something else
    columns = {column: field for field, column in fields.items()}
    if len(columns) < len(fields):
        raise ConfigError("mapping", "a column of its own for each field", fields)
    return names | columns


def _with_components(row: rows.Row, names: Mapping[str, str]) -> rows.Row:
    """Returns a row that TRL logged with its reward columns, which end in "_reward", as components,
    and their sum as its reward if it has none.

    A reward function that does not apply gives null or NaN: its component is NaN, it is left out of
    the sum, and a row without any other reward has none.

    Args:
        row: under TRL's names.
        names: the field that a column is, as for `rows.renamed`.
    """
    values = {
        name: math.nan if value is None else value
        for name, value in row.items()
        if name.endswith("_reward") and name not in names
    }
    others = {name: value for name, value in row.items() if name not in values}
    if values and "reward" not in {names.get(column, column) for column in row}:
        applied = [value for value in values.values() if value == value]
        others["reward"] = sum(applied) if applied else math.nan
    return others | {"components": values}


def _gathered(found: Iterator[Located], by: str) -> Iterator[Located]:
    """Yields the rows of single completions gathered into groups, in the order of their first
    rows.

    Rows that agree in `step` (which TRL and verl log) and in another field are a group, wherever
    in the file they are.

    Args:
        found: the renamed rows with their locations.
        by: the field; group_id, else prompt, if empty.

    Raises:
        DataError: a row lacks the field.
    """
    groups: dict[str, list[Located]] = {}
    for location, row in found:
        field = by or ("group_id" if "group_id" in row else "prompt")
        value = row.get(field, row["extra"].get(field))
        if value is None:
            raise DataError(f"{location}: field {field} is missing, which groups rows.")
        key = json.dumps([row["extra"].get("step"), value], default=str)
        groups.setdefault(key, []).append((location, row))
    for parts in groups.values():
        yield parts[0][0], {"extra": {}, "completions": [row for _, row in parts]}


@contextlib.contextmanager
def _placed(location: str) -> Iterator[None]:
    """A context in which the errors of a row name file and location."""
    try:
        yield
    except ConfigError as error:
        raise DataError(f"{location}: field {error}.") from error
    except (DataError, UsageError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{location}: {str(error).rstrip('.')}.") from error


def located_rows(path: Path, kind: str) -> Iterator[Located]:
    """Yields the rows of a source.

    Args:
        path: a file, or a folder of Parquet files; of kind datasets a folder of
            `datasets.save_to_disk`, or NAME or NAME:SPLIT of a data set on the Hub.
        kind: a name in `FORMATS`.

    Raises:
        DataError: a file is missing, of another format, or damaged.
    """
    from grre_jax.tasks.datasets import stored_questions

    if kind == "datasets":
        name, _, split = str(path).partition(":")
        yield from _numbered(path, stored_questions.from_hub(name, split or "train"))
        return
    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths or not paths[0].is_file():
        raise DataError(f"{path}: expected a file, or a folder of .parquet files.")
    if path.is_dir() or path.suffix == ".parquet":
        tables = map(stored_questions.table_rows, paths)
        yield from _numbered(path, itertools.chain.from_iterable(tables))
    else:
        with open(path, "rb") as file:
            yield from json_lines(file, path)


def _numbered(path: Path, records: Iterable[rows.Row]) -> Iterator[Located]:
    """Yields the rows of tables as JSON has them: dates, decimals and bytes become text.

    A structure has the fields of all rows, null if a row had none: they are left out, as a tool's
    call would be rendered with them, but for rewards.
    """
    for number, record in enumerate(records, start=1):
        text = json.dumps(record, default=str)
        yield f"{path}, row {number}", json.loads(text, object_hook=rows.present)


def export(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Writes all groups of a rollout folder to one file, whose import gives the same groups: a
    line of JSON each, with its fields by their names.

    Args:
        folder: the rollout folder.
        path: the file, which must not exist; its name ends in .jsonl.

    Returns:
        The number of groups.

    Raises:
        UsageError: a name with another ending, or a file that exists.
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
    if path.suffix != ".jsonl":
        raise UsageError(f"{path}: expected a file name ending in .jsonl.")
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


def _rows(opened: reader.RolloutReader) -> Iterator[rows.Row]:
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
