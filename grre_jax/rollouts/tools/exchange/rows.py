"""Groups from rows of a file, and rows from groups.

A row has the fields of `Group` by their names, or some of them in a list of `completions`:

    {"prompt": "2+2=", "answer": "4", "texts": ["4", "5"], "rewards": [1, 0]}
    {"prompt": "2+2=", "answer": "4", "completions": [{"text": "4", "reward": 1},
                                                      {"text": "5", "reward": 0}]}

`Group` checks types, shapes and domains. Here a field is refused that would be lost.
"""

import base64
import binascii
import itertools
import math
from typing import TYPE_CHECKING, Any, NoReturn

from grre_jax.domains import shown
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
}
PER_TOKEN = tuple(field.name for field in GROUP_FIELDS if field.dimension == "tokens")
COMPLETION_FIELDS = (*PER_COMPLETION, *PER_TOKEN, "components", "turn_rewards")
ALIASES = {"completion": "text", "responses": "texts", "logprobs": "behavior_logprobs"}
# Other libraries' names of a mask. Kept in `extra`, it would be lost, and observations imitated.
_MASKS = (
    *("completion_mask", "response_mask", "loss_mask", "action_mask"),
    *("assistant_mask", "assistant_masks", "generation_mask", "tool_mask"),
)
_RESERVED = {*FIELDS, *COMPLETION_FIELDS, *_MASKS, "completions", "data_set", "record"}


def of_group(group: Group) -> Row:
    """Returns a group as a row of JSON values; NaN and log-probs that are unknown are null."""
    row = {name: getattr(group, name) for name in FIELDS}
    row["components"] = {name: _listed(values) for name, values in group.components.items()}
    arrays = [field.name for field in GROUP_FIELDS if field.kind.startswith(("int", "uint", "fl"))]
    return row | {name: _listed(row[name]) for name in arrays if hasattr(row[name], "tolist")}


def _listed(values: Any) -> list[Any]:
    return [None if value != value else value for value in values.tolist()]


def renamed(row: Row, mapping: dict[str, str | None]) -> Row:
    """Returns a row under the names of fields.

    Args:
        row: under the file's own names.
        mapping: the file's own name of a field, or None for a field that the file does not have. A
            column of the field's own name is another thing then, and moves to `extra`.
    """
    if isinstance(parts := row.get(mapping.get("completions", "completions")), list):
        parts = [renamed(part, mapping) if isinstance(part, dict) else part for part in parts]
        row = row | {mapping.get("completions", "completions"): parts}
    columns = {column: field for field, column in mapping.items() if column in row}
    others = {name: row[name] for name in mapping if name in row and name not in columns}
    kept = {columns.get(name, name): value for name, value in row.items() if name not in others}
    return kept | {"extra": kept.get("extra", {}) | others} if others else kept


def normalised(row: Row) -> Row:
    """Returns a row with one name for each thing: prompt and text for `messages`, text for
    `completion`, and `texts`, `rewards` ... for lists under other names.

    Raises:
        DataError: messages without one of the assistant's.
    """
    row = {ALIASES.get(name, name): value for name, value in row.items()}
    if "messages" in row and not {"prompt", "text", "texts", "completions"} & row.keys():
        conversation = row.pop("messages")
        listed = conversation if isinstance(conversation, list) else []
        roles = [item.get("role") if isinstance(item, dict) else None for item in listed]
        if "assistant" not in roles:
            fail("messages", "a list with a message of the assistant's", conversation)
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
        DataError: a field is missing or wrong; the message names field, domain and value.
    """
    if (stored := row.get("record")) is not None:
        try:
            data = base64.b64decode(stored, validate=True) if isinstance(stored, str) else stored
            return encoding.decode(data)
        except (binascii.Error, ValueError, TypeError, DataError) as error:
            fail("record", f"a record in base64 ({error})", stored)
    completions = row.pop("completions", None)
    if completions is None:
        return _build(row, {}, name, task, None, tokenizer)
    if not isinstance(completions, list) or not completions:
        fail("completions", "a list with at least one object", completions)
    for k, part in enumerate(completions):
        if not isinstance(part, dict):
            fail(f"completions[{k}]", "an object", part)
    return of_completions(row, list(map(normalised, completions)), name, task, tokenizer)


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
    fields = _of_parts(parts, tokenizer)
    rest = []
    for k, part in enumerate(parts):
        fields_read = {*COMPLETION_FIELDS, *shared, "extra"}
        others = {name: value for name, value in part.items() if name not in fields_read}
        extra = {} if "extra" in shared else part.get("extra") or {}
        if not isinstance(extra, dict):
            fail(f"completions[{k}].extra", "an object", extra)
        rest.append(extra | _unread(others, f"completions[{k}]."))
    twice = sorted((fields.keys() | shared.keys()) & row.keys())
    if twice:
        fail(twice[0], "a field of the row or of its completions", "both")
    turn_rewards = fields.pop("turn_rewards", None)
    if any(rest):
        extra = row.get("extra", {})
        if not isinstance(extra, dict) or "completions" in extra:
            fail("extra", "an object without the name completions", extra)
        row["extra"] = extra | {"completions": rest}
    return _build(row | shared, fields, name, task, turn_rewards, tokenizer)


def _of_parts(parts: list[Row], tokenizer: "Tokenizer | None") -> Row:
    """Returns the fields of a group that its completions have."""
    fields: Row = {}
    for column in COMPLETION_FIELDS:
        values = [part.get(column) for part in parts]
        needed = column == "reward" or (column == "text" and "tokens" not in parts[0])
        missing = [k for k, part in enumerate(parts) if column not in part]
        if column == "components" and not all(value is None for value in values):
            values = _components(parts)
        elif needed and missing:
            fail(f"completions[{missing[0]}].{column}", "a value", "no field of this name")
        elif all(value is None for value in values) and column != "reward":
            continue
        elif column in PER_TOKEN:
            values = _flat(column, parts)
            if column == "tokens":
                fields["lengths"] = [len(part["tokens"]) for part in parts]
        elif column in ("finish_reason", "source"):
            values = ["imported" if value is None else value for value in values]
        elif column in ("policy_version", "is_expert"):
            absent = -1 if column == "policy_version" else 0
            values = [absent if value is None else value for value in values]
        fields[PER_COMPLETION.get(column, column)] = values
    return fields


def _flat(column: str, parts: list[Row]) -> list[Any]:
    """Returns the values of the tokens of all completions."""
    for k, part in enumerate(parts):
        values = part.get(column)
        tokens = part.get("tokens")
        domain = "a list as long as tokens, in all completions or in none"
        count = len(tokens) if isinstance(tokens, list) else -1
        if not isinstance(values, list) or len(values) != count:
            fail(f"completions[{k}].{column}", domain, values)
    return list(itertools.chain(*(part[column] for part in parts)))


def _components(parts: list[Row]) -> dict[str, list[Any]]:
    """Returns the reward components by name; None where one is null, or the completion has no
    reward.
    """
    rows = []
    for k, part in enumerate(parts):
        value = part.get("components") or {}
        if not isinstance(value, dict):
            fail(f"completions[{k}].components", "an object of numbers by name", value)
        rows.append(value)
    judged = [row for row, part in zip(rows, parts, strict=True) if _is_number(part["reward"])]
    names = list((judged or rows)[0])
    if any(row.keys() != set(names) for row in judged):
        fail("components", "the same names in all completions", [list(row) for row in judged])
    return {
        name: [
            row.get(name) if _is_number(part["reward"]) else None
            for row, part in zip(rows, parts, strict=True)
        ]
        for name in names
    }


def _is_number(value: Any) -> bool:
    return value is not None and value == value


def _build(
    row: Row,
    fields: Row,
    name: str,
    task: str,
    turn_rewards: list[Any] | None,
    tokenizer: "Tokenizer | None",
) -> Group:
    """Returns the group of a row and of the fields that its completions have."""
    fields = {"task": task, "group_id": name, "question_id": name} | fields
    fields |= {field: row[field] for field in FIELDS if row.get(field) is not None}
    extra = fields.pop("extra", {})
    if not isinstance(extra, dict):
        fail("extra", "an object", extra)
    rest = _unread({n: v for n, v in row.items() if n not in FIELDS})
    for field in ("group_id", "question_id", "answer"):
        value = fields.get(field, "")
        if type(value) in (int, float) and value - value == 0:  # finite
            fields[field] = str(value)
    if ("tokens" in fields) != ("prompt_tokens" in fields):
        fail("prompt_tokens", "a list beside tokens, or neither", fields.get("prompt_tokens"))
    made = messages.texts(fields, row.get("tools"), turn_rewards, tokenizer)
    fields |= {"sources": ["imported"] * len(made["texts"])} | fields | made
    fields["rewards"], failures = _rewards(fields.get("rewards"))
    components = fields.get("components") or {}
    if not isinstance(components, dict):
        fail("components", "an object of numbers by name", components)
    fields["components"] = {key: _with_nan(values) for key, values in components.items()}
    for value in fields["components"].get(CORRECT, ()):
        if isinstance(value, int | float) and value not in (0, 1) and _is_number(value):
            fail(f"components.{CORRECT}", "true or false", value)
    twice = sorted(extra.keys() & rest.keys())
    if twice:
        fail(twice[0], "a field of the row or of its extra", "both")
    return Group(**fields | {"extra": failures | extra | rest | made.get("extra", {})})


def _with_nan(values: Any) -> Any:
    return [math.nan if v is None else v for v in values] if isinstance(values, list) else values


def _rewards(values: Any) -> tuple[Any, Row]:
    """Returns rewards with NaN for null, and the fields of `extra` about those without one."""
    rewards = _with_nan(values)
    if not isinstance(rewards, list):
        fail("rewards", "a list of numbers", values)
    absent = [reward != reward for reward in rewards]
    failures = {
        FIELD: ["none" if missing else "" for missing in absent],
        REASONS: ["imported without a reward" if missing else "" for missing in absent],
    }
    return rewards, failures if any(absent) else {}


def _unread(fields: Row, prefix: str = "") -> Row:
    """Returns fields that are not null; refuses those that are read in another place."""
    present = {name: value for name, value in fields.items() if value is not None}
    for name in present:
        if name in _RESERVED:
            raise DataError(
                f"field {prefix}{name} is not read here: move it to its own object, give all"
                " completions one value of it, or map it with --mapping (docs/rollouts.md)"
            )
    return present


def fail(name: str, domain: str, value: Any) -> NoReturn:
    """Raises the DataError that names a field, its domain and its value."""
    raise DataError(f"field {name}: expected {domain}, got {shown(value)}")
