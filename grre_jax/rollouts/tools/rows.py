"""Groups from rows of a file.

A row has the fields of `Group` by their names, or those of its completions in a list:

    {"prompt": "2+2=", "answer": "4", "texts": ["4", "5"], "rewards": [1, 0]}
    {"prompt": "2+2=", "answer": "4", "completions": [{"text": "4", "reward": 1},
                                                      {"text": "5", "reward": 0}]}

A text may be chat messages, whose tokens the policy's chat template renders. `Group` checks types,
shapes and domains. Here a field is refused that would be lost.
"""

import contextlib
import itertools
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from grre_jax.domains import ConfigError, checked
from grre_jax.errors import UsageError
from grre_jax.json_files import message_text
from grre_jax.rollouts.schema import GROUP_FIELDS, MESSAGE_FIELDS, Group
from grre_jax.tasks.judging import FIELD, REASONS

if TYPE_CHECKING:
    from grre_jax.tasks import Tokenizer

Row = dict[str, Any]
Message = dict[str, Any]
Text = str | list[Message]

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
    fields |= _texts(fields, tokenizer)
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


def _texts(fields: dict[str, Any], tokenizer: "Tokenizer | None") -> dict[str, Any]:
    """Returns the fields of a group that follow from its texts, messages and tokens.

    Args:
        fields: of the group; `prompt` and the items of `texts` are texts or chat messages, and may
            be missing where there are tokens. `tools` in its `extra` are definitions for the
            template.
        tokenizer: the policy's, whose chat template renders messages.

    Returns:
        `prompt` and `texts`; for messages that are not plain also their tokens and mask, and
            `extra` with the messages.

    Raises:
        ConfigError: the row needs a chat template, or the template does not show which tokens the
            policy generated.
    """
    has_tokens = "tokens" in fields
    values = _decoded(fields, tokenizer) | fields if has_tokens and tokenizer else fields
    prompt = _text("prompt", values.get("prompt"))
    numbered = enumerate(checked("texts", list, values.get("texts")))
    completions = [_text(f"completions[{k}].text", text) for k, text in numbered]
    plain_prompt = _plain(prompt, "user")
    plain_texts = [_plain(text, "assistant") for text in completions]
    tools = None if has_tokens else fields["extra"].get("tools")
    tools = checked("tools", tuple[dict[str, Any], ...] | None, tools)
    if not tools and plain_prompt is not None and None not in plain_texts:
        return {"prompt": plain_prompt, "texts": plain_texts}
    if not getattr(tokenizer, "has_template", False):
        domain = "text, or --tokenizer FOLDER with a chat template beside messages and tools"
        raise ConfigError("texts", domain, [prompt, completions])
    arrays = {}
    if not has_tokens:
        arrays = _tokens(prompt, completions, fields, tools, tokenizer)
    elif None in plain_texts and "mask" not in fields:
        raise ConfigError("mask", "the mask of tokens of several messages", None)
    decoded = _decoded(fields | arrays, tokenizer)
    pairs = zip(plain_texts, decoded["texts"], strict=True)
    stored = dict(zip(MESSAGE_FIELDS, (prompt, completions), strict=True))
    return arrays | {
        "prompt": decoded["prompt"] if plain_prompt is None else plain_prompt,
        "texts": [other if text is None else text for text, other in pairs],
        "extra": fields["extra"] | stored,
    }


def _decoded(fields: dict[str, Any], tokenizer: "Tokenizer") -> dict[str, Any]:
    """Returns the texts of a prompt, without the beginning-of-text token that every tokenizer adds
    by itself, and of its completions.
    """
    # Tables may have ids as floats.
    domain = tuple[Annotated[float, f"[0, {tokenizer.vocab_size})"], ...]
    for name in ("prompt_tokens", "tokens"):
        checked(name, domain, fields[name])
    prompt = list(map(int, fields["prompt_tokens"]))
    if prompt[:1] == [getattr(tokenizer, "bos_id", None)]:
        del prompt[0]
    tokens = map(int, fields["tokens"])
    lengths = checked("lengths", tuple[int, ...], fields.get("lengths"))
    completions = [list(itertools.islice(tokens, length)) for length in lengths]
    return {"prompt": tokenizer.decode(prompt), "texts": list(map(tokenizer.decode, completions))}


def present(fields: Row) -> Row:
    """Returns an object without its nulls, but for those of rewards."""
    items = fields.items()
    return {name: value for name, value in items if value is not None or "reward" in name}


def _tokens(
    prompt: Text,
    completions: list[Text],
    fields: dict[str, Any],
    tools: list[Message] | None,
    tokenizer: "Tokenizer",
) -> dict[str, Any]:
    """Returns the tokens of a prompt and its completions as the chat template renders them."""
    if isinstance(prompt, str) and tokenizer.mark_in(prompt):
        domain = "text to which no chat template was applied, or messages"
        raise ConfigError("prompt", domain, prompt)
    tools = [present(tool) for tool in tools or ()] or None
    before = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    reasons = fields.get("finish_reasons") or [""] * len(completions)
    encoded = []
    for k, (text, reason) in enumerate(zip(completions, reasons, strict=True)):
        after = text if isinstance(text, list) else [{"role": "assistant", "content": text}]
        cut = reason == "length" and after[-1]["role"] == "assistant"
        try:
            encoded.append(tokenizer.encode_conversation(before, after, cut=cut, tools=tools))
        except UsageError as error:
            domain = f"messages that can be rendered ({error})"
            raise ConfigError(f"completions[{k}].text", domain, text) from error
    return {
        "prompt_tokens": encoded[0][0],
        "lengths": [len(ids) for _, ids, _ in encoded],
        "tokens": list(itertools.chain(*(ids for _, ids, _ in encoded))),
        "mask": list(itertools.chain(*(mask for _, _, mask in encoded))),
    }


def _text(name: str, value: Any) -> Text:
    """Returns a text, or chat messages: objects with role and content, without null entries."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ConfigError(name, 'a string or messages, [{"role": "user", "content": "..."}]', value)
    messages = [_message(f"{name}[{index}]", message) for index, message in enumerate(value)]
    if name != "prompt" and messages[0]["role"] != "assistant":
        raise ConfigError(name, "a message of the assistant first", value)
    return messages


def _message(name: str, value: Any) -> Message:
    message = present(value) if isinstance(value, dict) else {}
    if "content" in message:
        message["content"] = message_text(message["content"], f"field {name}")
    fits = all(isinstance(text, str) for text in (message.get("role"), message.get("content", "")))
    if not fits or not ("content" in message or message.get("tool_calls")):
        raise ConfigError(name, "a message with the texts role and content", value)
    if message.get("weight") == 0:
        raise ConfigError(name, "no weight 0 (not to be learned): give tokens and a mask", value)
    if isinstance(calls := message.get("tool_calls"), list):
        message["tool_calls"] = [_with_arguments(call) for call in calls]
    return {"content": ""} | message


def _with_arguments(call: Any) -> Any:
    """Returns a call of a tool with its arguments as an object, which templates take; OpenAI's are
    JSON text.
    """
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        function = call["function"]
        if isinstance(arguments := json.loads(function["arguments"]), dict):
            return call | {"function": function | {"arguments": arguments}}
    return call


def _plain(text: Text, role: str) -> str | None:
    """Returns the text of a prompt that is one message of the user, or of a completion that is one
    of the assistant; None otherwise.

    The learner puts such a prompt into its own chat template, which gives the same tokens.
    """
    if isinstance(text, str):
        return text
    alone = len(text) == 1 and text[0].keys() == {"role", "content"} and text[0]["role"] == role
    return text[0]["content"] if alone else None
