"""Groups from rows of a file.

A row has the fields of `Group` by their names, or those of its completions in a list:

    {"prompt": "2+2=", "answer": "4", "texts": ["4", "5"], "rewards": [1, 0]}
    {"prompt": "2+2=", "answer": "4", "completions": [{"text": "4", "reward": 1},
                                                      {"text": "5", "reward": 0}]}

`Group` checks types, shapes and domains. Here a field is refused that would be lost.
"""

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grre_jax.domains import ConfigError, checked
from grre_jax.rollouts.schema import GROUP_FIELDS, Group
from grre_jax.rollouts.tools.exchange import messages
from grre_jax.tasks.judging import FIELD, REASONS

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
# Values of completions that lack a field which others have.
ABSENT = {"finish_reason": "imported", "policy_version": -1, "source": "imported", "is_expert": 0}
PER_TOKEN = tuple(field.name for field in GROUP_FIELDS if field.dimension == "tokens")
COMPLETION_FIELDS = (*PER_COMPLETION, *PER_TOKEN, "components")
_KNOWN = {*FIELDS, *COMPLETION_FIELDS, "completions"} - {"extra"}


def renamed(row: Row, names: Mapping[str, str], unseen: set[str]) -> Row:
    """Returns a row under the names of fields, without nulls but those of rewards.

    Args:
        row: under the file's own names.
        names: the field that a column is, for columns with another name; "" for none.
        unseen: columns that no row had so far; the row's are taken out.

    Returns:
        The fields, and in `extra` the columns that are not fields.

    Raises:
        ConfigError: two columns are one field, or messages are without one of the assistant's.
    """
    extra = dict(checked("extra", dict[str, Any] | None, row.get("extra")) or {})
    fields: Row = {"extra": extra}
    unseen.difference_update(row)
    for column, value in row.items():
        field = names.get(column, column)
        if column == "extra" or (value is None and field not in ("reward", "rewards")):
            continue
        if field == "completions":
            parts = checked(field, tuple[dict[str, Any], ...], value)
            value = [renamed(part, names, unseen) for part in parts]
        place = fields if field in _KNOWN else extra
        name = field if field in _KNOWN else column
        if name in place:
            raise ConfigError(column, f"one column for {name}", value)
        place[name] = value
    if "messages" in extra and not {"prompt", "text", "texts", "completions"} & fields.keys():
        conversation = extra.pop("messages")
        listed = conversation if isinstance(conversation, list) else []
        roles = [item.get("role") if isinstance(item, dict) else None for item in listed]
        if "assistant" not in roles:
            raise ConfigError("messages", "a list with a message of the assistant", conversation)
        first = roles.index("assistant")
        fields |= {"prompt": listed[:first], "text": listed[first:]}
    return fields


def is_completion(row: Row) -> bool:
    """True if a renamed row is one completion."""
    fields = row.keys()
    return not {"texts", "completions"} & fields and bool({"text", "tokens"} & fields)


def to_group(row: Row, name: str, task: str, tokenizer: "Tokenizer | None" = None) -> Group:
    """Returns the group of a renamed row.

    Args:
        row: the row.
        name: identifier of the group and its question, if the row has none.
        task: the task's name, if the row has none.
        tokenizer: renders chat messages.

    Raises:
        ConfigError: a field is missing or wrong; the message names field, domain and value.
        DataError: an array does not fit the others, or messages cannot be rendered.
    """
    fields = dict(row)
    parts = fields.pop("completions", None)
    if parts is not None:
        fields = joined(fields, parts)
    for field in fields.keys() - set(FIELDS):
        raise ConfigError(field, "a field of a group, or of each of its completions", row[field])
    fields = {"task": task, "group_id": name, "question_id": name} | fields
    for field in ("group_id", "question_id", "answer"):
        if isinstance(number := fields.get(field), int | float):
            fields[field] = str(number)
    if ("tokens" in fields) != ("prompt_tokens" in fields):
        domain = "a list beside tokens, or neither"
        raise ConfigError("prompt_tokens", domain, fields.get("prompt_tokens"))
    components = checked("components", dict[str, Any], fields.get("components") or {})
    fields["components"] = {key: _with_nan(values) for key, values in components.items()}
    for value in fields["components"].get("correct", ()):
        if value == value and value not in (0, 1):
            raise ConfigError("components.correct", "true, false, 0 or 1", value)
    rewards = _with_nan(checked("rewards", list, fields.get("rewards")))
    fields["rewards"] = rewards
    fields |= messages.texts(fields, tokenizer)
    fields = {"sources": ["imported"] * len(fields["texts"])} | fields
    absent = [reward != reward for reward in rewards]
    if any(absent):
        failures = {
            FIELD: ["none" if missing else "" for missing in absent],
            REASONS: ["imported without a reward" if missing else "" for missing in absent],
        }
        fields["extra"] = failures | fields["extra"]
    return Group(**fields)


def joined(row: Row, parts: list[Row]) -> Row:
    """Returns a row with the fields of its completions, which agree in all that is the group's.

    Args:
        row: fields of the group, and `extra`.
        parts: the renamed completions.

    Raises:
        ConfigError: a field is missing, wrong, or in both.
    """
    if not parts:
        raise ConfigError("completions", "at least one object", parts)
    fields: Row = {}
    for column in dict.fromkeys(itertools.chain(*parts)):
        values = [part.get(column) for part in parts]
        if column in PER_TOKEN:
            fields[column] = _flat(column, values, parts)
        elif column == "components":
            fields[column] = _components(values)
        elif column in PER_COMPLETION:
            absent = ABSENT.get(column)
            values = [absent if value is None else value for value in values]
            fields[PER_COMPLETION[column]] = values
        elif column != "extra":
            if any(value != values[0] for value in values):
                raise ConfigError(column, "one value for all completions of a group", values)
            fields[column] = values[0]
    if "tokens" in fields:
        fields["lengths"] = [len(part["tokens"]) for part in parts]
    for field in fields.keys() & row.keys():
        raise ConfigError(field, "a value in one place", fields[field])
    extras = [part["extra"] for part in parts]
    shared = {
        name: value
        for name, value in extras[0].items()
        if all(name in extra and extra[name] == value for extra in extras)
    }
    rest = [{n: v for n, v in extra.items() if n not in shared} for extra in extras]
    extra = row["extra"] | shared | ({"completions": rest} if any(rest) else {})
    return row | fields | {"extra": extra}


def _flat(column: str, values: list[Any], parts: list[Row]) -> list[Any]:
    """Returns the values of the tokens of all completions."""
    for k, (value, part) in enumerate(zip(values, parts, strict=True)):
        tokens = part.get("tokens")
        fits = isinstance(value, list) and isinstance(tokens, list) and len(value) == len(tokens)
        if not fits:
            domain = "a list as long as tokens, in all completions or in none"
            raise ConfigError(f"completions[{k}].{column}", domain, value)
    return list(itertools.chain(*values))


def _components(values: list[Any]) -> dict[str, list[Any]]:
    """Returns the reward components by name; None where a completion has none of that name."""
    rows = [checked("components", dict[str, Any] | None, value) or {} for value in values]
    names = dict.fromkeys(itertools.chain(*rows))
    return {name: [row.get(name) for row in rows] for name in names}


def _with_nan(values: Any) -> Any:
    return [math.nan if v is None else v for v in values] if isinstance(values, list) else values
