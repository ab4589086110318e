"""A group as one row of a JSONL or Parquet file: names that people know, completions as a list of objects.

    {"prompt": "2+2=", "answer": "4", "completions": [{"text": "4", "reward": 1}, {"text": "5", "reward": 0}]}

A row that this package exported also has `data_set`, what the manifest says of where the group came from, and says everything that the
record says: exporting and importing it is the identity, bit for bit. Where the columns cannot say it (features of a newer minor version)
the row has the whole `record` too, and that is what counts.
"""

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax.errors import DataError
from grre_jax.rollouts import record
from grre_jax.rollouts.schema import FINISH_REASONS, LOGPROB_FIELDS, Group

# The names that a row has by default, by what they mean; a mapping renames them.
GROUP_COLUMNS = ("prompt", "completions", "answer", "question_id", "task", "prompt_tokens", "temperature", "top_k", "top_p", "min_p")
COMPLETION_COLUMNS = ("text", "reward", "tokens", "logprobs", "source", "finish_reason", "is_expert")
# Read only where a mapping names them, or in rows that this package exported: elsewhere they may mean anything.
OWN_GROUP_COLUMNS = ("group_id", "position", "attempt", "seed", "logprob_dtype", "engine", "extra", "data_set", "record")
LOGPROB_COLUMNS = {field: "logprobs" if field == "behavior_logprobs" else field for field in LOGPROB_FIELDS}
OWN_COMPLETION_COLUMNS = ("mask", *LOGPROB_FIELDS[1:], "policy_version", "token_versions", "components")


class Line:
    """One object of a file, whose fields are taken one by one; errors name file, line and field. `rest` is what nobody took."""

    def __init__(self, path: Path, place: str, value: Any, prefix: str = "") -> None:
        self.path, self.place, self.prefix = path, place, prefix
        if not isinstance(value, dict):
            raise DataError(f"{path}, {place}: {prefix.rstrip('.') or f'the {place.split()[0]}'} is {_named(value)}; give a JSON object.")
        self.rest = dict(value)

    def take(self, name: str, kinds: type | tuple[type, ...], default: Any = ...) -> Any:
        """The field's value, which is no longer in `rest`; the default where it is absent or null.

        Raises:
          DataError: it is missing and has no default, or is of another kind.
        """
        value = self.rest.pop(name, ...)
        if value is ... or (value is None and default is not ...):
            if default is ...:
                has = ", ".join(self.rest) or "nothing else"
                self.fail(name, f"is missing (it has {has}); add it, or map another field to it")
            return default
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self.fail(name, f"is {_named(value)}; give {' or '.join(dict.fromkeys(_JSON_NAMES[kind] for kind in kinds))}")
        return value

    def fail(self, name: str, problem: str) -> None:
        """Raises the DataError that names this file, line and field."""
        raise DataError(f"{self.path}, {self.place}: field {self.prefix}{name} {problem}.")


def of_group(group: Group, data_set: dict[str, Any]) -> dict[str, Any]:
    """The row of a group: what JSON can hold, and under "record", where the rest cannot say everything, bytes."""
    row: dict[str, Any] = {name: getattr(group, name) for name in ("group_id", "task", "question_id", "prompt", "answer")}
    row |= {"position": group.position, "attempt": group.attempt}
    has_tokens = len(group.tokens) > 0 or len(group.prompt_tokens) > 0
    if has_tokens:
        row["prompt_tokens"] = group.prompt_tokens.tolist()
    row["completions"] = [_completion(group, k, has_tokens) for k in range(group.num_completions)]
    for name in ("temperature", "top_k", "top_p", "min_p", "seed", "logprob_dtype", "engine", "extra"):
        row[name] = getattr(group, name)
    row["data_set"] = data_set
    if group.unknown or not set(group.finish_reasons) <= set(FINISH_REASONS):
        row["record"] = record.encode(group)
    return row


def _completion(group: Group, k: int, has_tokens: bool) -> dict[str, Any]:
    said: dict[str, Any] = {
        "text": group.texts[k],
        "reward": float(group.rewards[k]),
        "finish_reason": group.finish_reasons[k],
        "policy_version": int(group.policy_version[k]),
        "source": group.sources[k],
        "is_expert": bool(group.is_expert[k]),
    }
    if group.components:
        said["components"] = {name: float(row[k]) for name, row in group.components.items()}
    if has_tokens:
        start, end = (int(offset) for offset in group.offsets[k : k + 2])
        said["tokens"] = group.tokens[start:end].tolist()
        for name, column in LOGPROB_COLUMNS.items():
            if getattr(group, name) is not None:
                said[column] = _floats(getattr(group, name)[start:end])
        if len(group.token_versions):
            said["token_versions"] = group.token_versions[start:end].tolist()
        if not group.mask.all():
            said["mask"] = group.mask[start:end].tolist()
    return said


def _floats(values: np.ndarray) -> list[float | str]:
    """Numbers as JSON has them; what JSON has not (NaN, infinities) as its bits."""
    if np.isfinite(values).all():
        return values.tolist()
    return [float(value) if np.isfinite(value) else f"0x{value.view(np.uint32):08x}" for value in values]


def is_own(row: Any) -> bool:
    """Whether this package exported the row."""
    return isinstance(row, dict) and isinstance(row.get("data_set"), dict) and "completions" in row


def to_group(line: Line, names: dict[str, str], stem: str, task: str) -> Group | tuple[Group, bytes]:
    """The group of a row with a list of completions, with its record where the row has that.

    Args:
      line: the row.
      names: the row's name of each column that is looked for.
      stem: begins the identifiers of groups and questions that have none.
      task: the task's name where the row has none.

    Raises:
      DataError: a field is missing or wrong; the message names file, line, field and fix.
    """
    if "record" in names and (stored := line.take(names["record"], (str, bytes), None)) is not None:
        data = base64.b64decode(stored) if isinstance(stored, str) else stored
        return record.decode(data), data
    completions = line.take(names["completions"], list)
    if not completions:
        line.fail(names["completions"], "is empty; give at least one completion")
    parts = [Line(line.path, line.place, item, f"{names['completions']}[{i}].") for i, item in enumerate(completions)]
    return build(line, parts, names, stem, task)


def build(line: Line, parts: list[Line], names: dict[str, str], stem: str, task: str) -> Group:
    """The group of the fields of a row and of its completions."""
    texts = [said(part.take(names["text"], (str, list)), part, names["text"]) for part in parts]
    rewards = [float(part.take(names["reward"], (bool, int, float))) for part in parts]
    fields = _token_fields(line, parts, names)
    number = line.place.split()[-1]
    own = {
        "position": ("position", int, -1),
        "attempt": ("attempt", int, 0),
        "seed": ("seed", int, -1),
        "logprob_dtype": ("logprob_dtype", str, ""),
        "engine": ("engine", str, ""),
        "group_id": ("group_id", (str, int), f"{stem}:{number}"),
    }
    fields |= {
        name: line.take(names[column], kind, default) if column in names else default for name, (column, kind, default) in own.items()
    }
    fields["group_id"] = str(fields["group_id"])
    if "policy_version" in names:
        fields["policy_version"] = [part.take(names["policy_version"], int, -1) for part in parts]
    if "components" in names:
        rows = [dict(part.take(names["components"], (dict, list), {})) for part in parts]
        if any(row.keys() != rows[0].keys() for row in rows):
            line.fail(names["components"], "has other names in one completion than in another; give all the same")
        fields["components"] = {name: [row[name] for row in rows] for name in rows[0]}
    prompt = line.take(names["prompt"], (str, list))
    return Group(
        prompt=said(prompt, line, names["prompt"]),
        texts=texts,
        rewards=rewards,
        task=line.take(names["task"], str, task),
        question_id=str(line.take(names["question_id"], (str, int), f"{stem}/{number}")),
        answer=str(line.take(names["answer"], (str, int, float), "")),
        sources=[part.take(names["source"], str, "imported") for part in parts],
        finish_reasons=[part.take(names["finish_reason"], str, "imported") for part in parts],
        is_expert=[part.take(names["is_expert"], bool, False) for part in parts],
        temperature=float(line.take(names["temperature"], (int, float), 1.0)),
        top_k=line.take(names["top_k"], int, 0),
        top_p=float(line.take(names["top_p"], (int, float), 1.0)),
        min_p=float(line.take(names["min_p"], (int, float), 0.0)),
        extra=_extra(line, parts, names),
        **fields,
    )


def _extra(line: Line, parts: list[Line], names: dict[str, str]) -> dict[str, Any]:
    """What nobody took, and what an export says was in `extra`."""
    extra = line.take(names["extra"], dict, {}) if "extra" in names else {}
    if "data_set" in names:
        line.rest.pop(names["data_set"], None)
        line.rest = {name: value for name, value in line.rest.items() if value is not None}
    return extra | line.rest | ({"completions": [part.rest for part in parts]} if any(part.rest for part in parts) else {})


def said(value: str | list[Any], line: Line, name: str) -> str:
    """A text as it is; of chat messages the content of the only one, or the transcript of several."""
    if isinstance(value, str):
        return value
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            line.fail(name, "is a list; give a string, or chat messages with text content")
    if len(value) == 1:
        return value[0]["content"]
    return "\n".join(f"{message.get('role', '')}: {message['content']}" for message in value)


def _token_fields(line: Line, parts: list[Line], names: dict[str, str]) -> dict[str, Any]:
    """Tokens, and what is said of each of them."""
    tokens = _all_or_none(parts, names["tokens"])
    values: dict[str, list[list[Any]] | None] = {}
    columns = {field: names[column] for field, column in LOGPROB_COLUMNS.items() if column in names}
    columns |= {field: names[field] for field in ("mask", "token_versions") if field in names}
    for field, column in columns.items():
        values[field] = _all_or_none(parts, column)
        _check_lengths(parts, column, tokens, values[field])
    prompt_tokens = line.take(names["prompt_tokens"], list, None)
    if (tokens is None) != (prompt_tokens is None):
        line.fail(names["prompt_tokens"], f"and the completions' {names['tokens']} belong together; give both or neither")
    fields: dict[str, Any] = {name: None if rows is None else [value for row in rows for value in row] for name, rows in values.items()}
    for name in LOGPROB_FIELDS:
        if fields.get(name) and any(isinstance(value, str) for value in fields[name]):
            fields[name] = np.asarray([number_of_bits(value) for value in fields[name]], np.float32)
    return fields | {
        "prompt_tokens": prompt_tokens,
        "lengths": None if tokens is None else [len(row) for row in tokens],
        "tokens": None if tokens is None else [token for row in tokens for token in row],
    }


def number_of_bits(value: float | str) -> np.float32:
    """A number, or the one whose bits a text says."""
    return np.frombuffer(struct.pack("<I", int(value, 16)), np.float32)[0] if isinstance(value, str) else np.float32(value)


def _all_or_none(parts: list[Line], name: str) -> list[list[Any]] | None:
    """A list field that either every completion has or none."""
    rows = [part.take(name, list, None) for part in parts]
    if all(row is None for row in rows):
        return None
    for part, row in zip(parts, rows, strict=True):
        if row is None:
            part.fail(name, "is missing where another completion of the group has it; give it for all or none")
    return rows


def _check_lengths(parts: list[Line], name: str, tokens: list[list[int]] | None, rows: list[list[Any]] | None) -> None:
    for k, part in enumerate(parts if rows is not None else ()):
        if tokens is None or len(rows[k]) != len(tokens[k]):
            count = 0 if tokens is None else len(tokens[k])
            part.fail(name, f"has {len(rows[k])} values for {count} tokens; give one per token")


def in_groups(rows: Iterator[tuple[str, dict[str, Any]]], key: tuple[str, ...]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows of one completion each, gathered while they agree in the columns of `key`; with the place of the first of each group."""
    gathered: list[dict[str, Any]] = []
    first, last = "", None
    for place, row in rows:
        now = [row.get(name) if isinstance(row, dict) else None for name in key]
        if gathered and now != last:
            yield first, gathered
            gathered = []
        if not gathered:
            first, last = place, now
        gathered.append(row)
    if gathered:
        yield first, gathered


_JSON_NAMES = {
    str: "a string",
    bytes: "bytes",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def _named(value: Any) -> str:
    return "null" if value is None else _JSON_NAMES.get(type(value), f"a {type(value).__name__}")
