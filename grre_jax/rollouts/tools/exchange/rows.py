"""Groups from rows of a file, and rows from groups.

A row has the fields of `Group` by their names, or some of them in a list of `completions`:

    {"prompt": "2+2=", "answer": "4", "texts": ["4", "5"], "rewards": [1, 0]}
    {"prompt": "2+2=", "answer": "4", "completions": [{"text": "4", "reward": 1},
                                                      {"text": "5", "reward": 0}]}

`Group` checks types, shapes and domains. Here a field is refused that would be lost.
"""

import base64
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from grre_jax.domains import ConfigError, checked
from grre_jax.errors import DataError
from grre_jax.rollouts import encoding
from grre_jax.rollouts.schema import GROUP_FIELDS, Group
from grre_jax.rollouts.tools.exchange import messages
from grre_jax.tasks.judging import FIELD, REASONS
from grre_jax.tasks.task import CORRECT

if TYPE_CHECKING:
    from grre_jax.tasks import Tokenizer

Row = dict[str, Any]

FIELDS = tuple(field.name for field in GROUP_FIELDS)
# Fields of a completion, by their names there.
PER_COMPLETION = {
    "text": "texts",
    "reward": "rewards",
    "finish_reason": "finish_reasons",
    "policy_version": "policy_version",
    "source": "sources",
    "is_expert": "is_expert",
    "turn_rewards": "turn_rewards",
}
# Values of completions that lack a field which others have.
ABSENT = {"finish_reason": "imported", "policy_version": -1, "source": "imported", "is_expert": 0}
PER_TOKEN = tuple(field.name for field in GROUP_FIELDS if field.dimension == "tokens")
COMPLETION_FIELDS = (*PER_COMPLETION, *PER_TOKEN, "components")
ALIASES = {"completion": "text", "responses": "texts", "logprobs": "behavior_logprobs"}
# Other libraries' names of a mask. Kept in `extra`, it would be lost, and observations imitated.
_MASKS = (
    *("completion_mask", "response_mask", "loss_mask", "action_mask"),
    *("assistant_mask", "assistant_masks", "generation_mask", "tool_mask"),
)
_RESERVED = {*FIELDS, *COMPLETION_FIELDS, *_MASKS, "completions", "data_set", "record"}


def of_group(group: Group) -> Row:
    """Returns a group as a row of JSON values; NaN and log-probs that are unknown are null."""
    row = {name: _listed(getattr(group, name)) for name in FIELDS}
    components = group.components.items()
    return row | {"components": {name: _listed(values) for name, values in components}}


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [None if number != number else number for number in value.tolist()]
    return value


def renamed(row: Row, mapping: dict[str, str | None]) -> Row:
    """Returns a row under the names of fields.

    Args:
        row: under the file's own names.
        mapping: the file's own name of a field, or None for a field that the file does not have. A
            column of the field's own name is another thing then, and moves to `extra`.
    """
    completions = mapping.get("completions", "completions")
    if isinstance(parts := row.get(completions), list):
        parts = [renamed(part, mapping) if isinstance(part, dict) else part for part in parts]
        row = row | {completions: parts}
    fields = {column: field for field, column in mapping.items()}
    foreign = {name: row[name] for name in mapping if name in row and name not in fields}
    row = {fields.get(name, name): value for name, value in row.items() if name not in foreign}
    if foreign:
        row["extra"] = checked("extra", dict[str, Any], row.get("extra", {})) | foreign
    return row


def normalised(row: Row) -> Row:
    """Returns a row with one name for each thing: prompt and text for `messages`, text for
    `completion`, and `texts`, `rewards` ... for lists under other names.

    Raises:
        ConfigError: messages without one of the assistant's.
    """
    row = {ALIASES.get(name, name): value for name, value in row.items()}
    if "messages" in row and not {"prompt", "text", "texts", "completions"} & row.keys():
        conversation = row.pop("messages")
        listed = conversation if isinstance(conversation, list) else []
        roles = [item.get("role") if isinstance(item, dict) else None for item in listed]
        if "assistant" not in roles:
            raise ConfigError("messages", "a list with a message of the assistant", conversation)
        first = roles.index("assistant")
        row |= {"prompt": listed[:first], "text": listed[first:]}
    texts = next((n for n in ("texts", "completions", "text") if _is_texts(row.get(n))), None)
    if texts and isinstance(row.get("rewards", row.get("reward")), list):
        row["texts"] = row.pop(texts)
        for name, plural in PER_COMPLETION.items():
            if isinstance(row.get(name), list):
                row[plural] = row.pop(name)
    return row


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and not isinstance(value[0], dict)


def is_completion(row: Row) -> bool:
    """True if a normalised row is one completion."""
    return not {"texts", "completions", "record"} & row.keys() and bool(
        {"text", "tokens"} & row.keys()
    )


def to_group(row: Row, name: str, task: str, tokenizer: "Tokenizer | None" = None) -> Group:
    """Returns the group of a normalised row.

    Args:
        row: the row.
        name: identifier of the group and its question, if the row has none.
        task: the task's name, if the row has none.
        tokenizer: renders chat messages.

    Raises:
        ConfigError: a field is missing or wrong; the message names field, domain and value.
        DataError: an array does not fit the others, or messages cannot be rendered.
    """
    if (stored := row.get("record")) is not None:
        try:
            data = base64.b64decode(stored, validate=True) if isinstance(stored, str) else stored
            return encoding.decode(data)
        except (ValueError, TypeError, DataError) as error:
            raise ConfigError("record", f"a record in base64 ({error})", stored) from error
    completions = row.pop("completions", None)
    if completions is None:
        return _build(row, {}, name, task, tokenizer)
    parts = checked("completions", tuple[dict[str, Any], ...], completions)
    if not parts:
        raise ConfigError("completions", "at least one object", completions)
    return of_completions(row, list(map(normalised, parts)), name, task, tokenizer)


def of_completions(
    row: Row, parts: list[Row], name: str, task: str, tokenizer: "Tokenizer | None" = None
) -> Group:
    """Returns the group of a row with its completions; fields in which these agree are the row's.

    See `to_group` for the other arguments and the errors.
    """
    shared = {
        field: value
        for field, value in parts[0].items()
        if field not in COMPLETION_FIELDS
        and all(field in part and part[field] == value for part in parts)
    }
    fields = _of_parts(parts)
    rest = []
    for k, part in enumerate(parts):
        fields_read = {*COMPLETION_FIELDS, *shared, "extra"}
        others = {name: value for name, value in part.items() if name not in fields_read}
        extra = {} if "extra" in shared else part.get("extra") or {}
        extra = checked(f"completions[{k}].extra", dict[str, Any], extra)
        rest.append(extra | _unread(others, f"completions[{k}]."))
    _refuse_twice(row, fields | shared)
    if any(rest):
        row["extra"] = checked("extra", dict[str, Any], row.get("extra", {}))
        _refuse_twice(row["extra"], {"completions": rest})
        row["extra"] |= {"completions": rest}
    return _build(row | shared, fields, name, task, tokenizer)


def _of_parts(parts: list[Row]) -> Row:
    """Returns the fields of a group that its completions have."""
    for k, part in enumerate(parts):
        if "reward" not in part:
            raise ConfigError(f"completions[{k}].reward", "a number or null", "no such field")
    fields: Row = {}
    for column in COMPLETION_FIELDS:
        values = [part.get(column) for part in parts]
        if column != "reward" and all(value is None for value in values):
            continue
        if column in PER_TOKEN:
            fields[column] = _flat(column, parts)
        elif column == "components":
            fields[column] = _components(parts)
        else:
            absent = ABSENT.get(column)
            values = [absent if value is None else value for value in values]
            fields[PER_COMPLETION[column]] = values
    if "tokens" in fields:
        fields["lengths"] = [len(part["tokens"]) for part in parts]
    return fields


def _flat(column: str, parts: list[Row]) -> list[Any]:
    """Returns the values of the tokens of all completions."""
    for k, part in enumerate(parts):
        values = part.get(column)
        tokens = part.get("tokens")
        count = len(tokens) if isinstance(tokens, list) else -1
        if not isinstance(values, list) or len(values) != count:
            domain = "a list as long as tokens, in all completions or in none"
            raise ConfigError(f"completions[{k}].{column}", domain, values)
    return list(itertools.chain(*(part[column] for part in parts)))


def _components(parts: list[Row]) -> dict[str, list[Any]]:
    """Returns the reward components by name; None where one is null, or the completion has no
    reward.
    """
    rows = [
        checked(f"completions[{k}].components", dict[str, Any], part.get("components") or {})
        for k, part in enumerate(parts)
    ]
    judged = [_is_number(part["reward"]) for part in parts]
    named = list(itertools.compress(rows, judged)) or rows[:1]
    if any(row.keys() != named[0].keys() for row in named):
        raise ConfigError("components", "the same names in all completions", named)
    return {
        name: [
            row.get(name) if has_reward else None
            for row, has_reward in zip(rows, judged, strict=True)
        ]
        for name in named[0]
    }


def _is_number(value: Any) -> bool:
    return value is not None and value == value


def _build(row: Row, fields: Row, name: str, task: str, tokenizer: "Tokenizer | None") -> Group:
    """Returns the group of a row and of the fields that its completions have."""
    turn_rewards = fields.pop("turn_rewards", None)
    fields = {"task": task, "group_id": name, "question_id": name} | fields
    fields |= {field: row[field] for field in FIELDS if row.get(field) is not None}
    extra = checked("extra", dict[str, Any], fields.pop("extra", {}))
    rest = _unread({n: v for n, v in row.items() if n not in FIELDS})
    _refuse_twice(extra, rest)
    for field in ("group_id", "question_id", "answer"):
        value = fields.get(field, "")
        if type(value) in (int, float) and value - value == 0:  # finite
            fields[field] = str(value)
    if ("tokens" in fields) != ("prompt_tokens" in fields):
        domain = "a list beside tokens, or neither"
        raise ConfigError("prompt_tokens", domain, fields.get("prompt_tokens"))
    made = messages.texts(fields, row.get("tools"), turn_rewards, tokenizer)
    fields |= {"sources": ["imported"] * len(made["texts"])} | fields | made
    rewards = _with_nan(fields.get("rewards"))
    if not isinstance(rewards, list):
        raise ConfigError("rewards", "a list of numbers", rewards)
    components = checked("components", dict[str, Any], fields.get("components") or {})
    components = {key: _with_nan(values) for key, values in components.items()}
    correct = components.get(CORRECT)
    for value in correct if isinstance(correct, list) else ():
        if isinstance(value, int | float) and value not in (0, 1) and _is_number(value):
            raise ConfigError(f"components.{CORRECT}", "true or false", value)
    absent = [reward != reward for reward in rewards]
    failures = {
        FIELD: ["none" if missing else "" for missing in absent],
        REASONS: ["imported without a reward" if missing else "" for missing in absent],
    }
    extra = (failures if any(absent) else {}) | extra | rest | made.get("extra", {})
    return Group(**fields | {"rewards": rewards, "components": components, "extra": extra})


def _with_nan(values: Any) -> Any:
    return [math.nan if v is None else v for v in values] if isinstance(values, list) else values


def _unread(fields: Row, prefix: str = "") -> Row:
    """Returns fields that are not null; refuses those that are read in another place."""
    present = {name: value for name, value in fields.items() if value is not None}
    for name in present.keys() & _RESERVED:
        domain = "a field in its own object, one value in all completions, or another name of it"
        raise ConfigError(prefix + name, f"{domain} (--mapping)", present[name])
    return present


def _refuse_twice(first: Row, second: Row) -> None:
    for name in first.keys() & second.keys():
        raise ConfigError(name, "a value in one place", "two")
