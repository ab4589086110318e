"""Chat messages of imported rows: texts, and the tokens that the policy's chat template renders."""

import contextlib
import itertools
import json
from typing import TYPE_CHECKING, Any

from grre_jax.errors import UsageError
from grre_jax.json_files import message_text, shown
from grre_jax.rollouts.schema import MESSAGE_FIELDS
from grre_jax.rollouts.tools.exchange.sources import Line

if TYPE_CHECKING:
    from grre_jax.tasks import Tokenizer


def texts(
    line: Line, parts: list[Line], fields: dict[str, Any], tokenizer: "Tokenizer | None"
) -> dict[str, Any]:
    """Returns the fields of a group that follow from its texts or messages.

    Args:
        line: the row.
        parts: its completions.
        fields: those of the group so far, with its tokens if the row has them.
        tokenizer: the policy's, whose chat template renders messages.

    Returns:
        `prompt` and `texts`; for messages also their tokens and mask, and `extra` with the
            messages.

    Raises:
        DataError: the row needs a chat template, or the template does not show which tokens the
            policy generated.
    """
    prompt = _messages(line, "prompt", "user")
    completions = [_messages(part, "text", "assistant") for part in parts]
    templated, has_tokens = getattr(tokenizer, "has_template", False), fields["tokens"] is not None
    if templated and not has_tokens and isinstance(prompt, str):
        if mark := tokenizer.mark_in(prompt):
            line.fail(
                "prompt",
                f"holds {mark!r}, so a chat template was applied to it, and training would apply"
                " one again; give the messages",
            )
    tools = _tools(line.rest.get("tools"))
    declared = isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    if all(isinstance(text, str) for text in (prompt, *completions)):
        # Beside texts `tools` may be something else, which the record's `extra` keeps.
        if has_tokens or not declared:
            return {"prompt": prompt, "texts": completions}
        if not templated:
            line.fail(
                "tools",
                "needs a chat template: give the folder of the policy's tokenizer with --tokenizer,"
                " or rename it",
            )
    for part, text in zip(parts, completions, strict=True):
        if isinstance(text, list) and text[0]["role"] != "assistant":
            part.fail(
                "text",
                f"begins with a message of role {text[0]['role']!r}; a completion begins with the"
                " assistant's, the messages before it belong to the prompt",
            )
    asked, answered = _plain(prompt, "user"), [_plain(text, "assistant") for text in completions]
    plain = tools is None and all(isinstance(text, str) for text in (asked, *answered))
    if plain and (has_tokens or not templated):
        return {"prompt": asked, "texts": answered}
    if not templated:
        part = parts[answered.index(None)] if None in answered else line
        part.fail(
            "prompt" if part is line else "text",
            "holds chat messages that only a chat template makes tokens of (more than one message"
            " of the user as the prompt and one of the assistant as the completion): give the"
            " folder of the policy's tokenizer, with its chat template, with --tokenizer",
        )
    if has_tokens:
        if None in answered and fields["mask"] is None:
            parts[answered.index(None)].fail(
                "mask",
                "is missing; add it, as it marks the tokens of several messages that the policy"
                " generated",
            )
        tokens, given = {}, fields
    else:
        if tools is not None and not declared:
            line.fail("tools", f"is {shown(tools)}; give a list of objects")
        reasons = fields["finish_reasons"]
        tokens = given = _tokens(parts, prompt, completions, reasons, tools, tokenizer)
        if plain:
            return tokens | {"prompt": asked, "texts": answered}
    return tokens | _of_tokens([prompt, *completions], asked, answered, given, tokenizer)


def _tools(tools: Any) -> Any:
    """Returns definitions of tools without the null fields that Parquet adds; None for none."""
    if not isinstance(tools, list):
        return tools
    present = [
        {name: value for name, value in tool.items() if value is not None}
        if isinstance(tool, dict)
        else tool
        for tool in tools
    ]
    return present or None


def _tokens(
    parts: list[Line],
    prompt: Any,
    completions: list[Any],
    reasons: list[str],
    tools: Any,
    tokenizer: "Tokenizer",
) -> dict[str, Any]:
    """Returns the tokens of a prompt and its completions as the chat template renders them."""
    prompt = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    rendered = []
    for part, text, reason in zip(parts, completions, reasons, strict=True):
        messages = text if isinstance(text, list) else [{"role": "assistant", "content": text}]
        rendered.append(_rendered(part, prompt, messages, reason == "length", tools, tokenizer))
    return {
        "prompt_tokens": rendered[0][0],
        "lengths": [len(ids) for _, ids, _ in rendered],
        "tokens": [token for _, ids, _ in rendered for token in ids],
        "mask": [bit for _, _, mask in rendered for bit in mask],
    }


def _of_tokens(
    said: list[Any], asked: Any, answered: list[Any], fields: dict[str, Any], tokenizer: "Tokenizer"
) -> dict[str, Any]:
    """Returns the texts of several messages, decoded from their tokens, and the messages in
    `extra`.
    """
    ends = itertools.accumulate(fields["lengths"], initial=0)
    decoded = [
        tokenizer.decode(fields["tokens"][start:end]) for start, end in itertools.pairwise(ends)
    ]
    start = without_start(fields["prompt_tokens"], tokenizer)
    prompt = tokenizer.decode(start) if asked is None else asked
    texts = [
        text if isinstance(text, str) else made
        for text, made in zip(answered, decoded, strict=True)
    ]
    return {
        "prompt": prompt,
        "texts": texts,
        "extra": dict(zip(MESSAGE_FIELDS, (said[0], said[1:]), strict=True)),
    }


def without_start(prompt: list[int], tokenizer: "Tokenizer") -> list[int]:
    """Returns the ids of a prompt without the beginning-of-text token, which every tokenizer adds
    by itself.
    """
    start = getattr(tokenizer, "bos_id", None)
    return prompt[1:] if prompt and prompt[0] == start else prompt


def _rendered(
    part: Line,
    prompt: list[Any],
    completion: list[Any],
    cut: bool,
    tools: Any,
    tokenizer: "Tokenizer",
) -> tuple[list[int], list[int], list[int]]:
    """Returns `ChatTokenizer.encode_conversation`; its errors name the completion."""
    try:
        return tokenizer.encode_conversation(
            prompt, completion, cut=cut and completion[-1]["role"] == "assistant", tools=tools
        )
    except UsageError as error:
        part.fail("text", f"cannot be rendered: {str(error).rstrip('.')}")


def _messages(line: Line, name: str, role: str) -> str | list[dict[str, Any]]:
    """Returns a text, or chat messages: objects with role and content, without null entries."""
    value = line.take(name, (str, list))
    if isinstance(value, str):
        return value
    if not value:
        line.fail(
            name,
            f'is an empty list; give a string, or chat messages: [{{"role": "{role}", "content":'
            ' "..."}]',
        )
    found = []
    for index, message in enumerate(value):
        kept = (
            {key: inner for key, inner in message.items() if inner is not None}
            if isinstance(message, dict)
            else {}
        )
        where = f"{line.path}, {line.location}: field {line.prefix}{line.names.get(name) or name}"
        if "content" in kept:
            kept["content"] = message_text(kept["content"], f"{where}, item {index}")
        fits = (
            all(isinstance(kept.get(key, ""), str) for key in ("role", "content"))
            and "role" in kept
        )
        if not fits or not ("content" in kept or kept.get("tool_calls")):
            line.fail(
                name,
                f"is a list whose item {index} is not a chat message; give a string, or messages"
                " with the texts role and content",
            )
        if kept.get("weight") == 0:
            line.fail(
                name,
                f"has weight 0 in item {index}, a turn that is not to be learned; give the tokens,"
                " with a mask",
            )
        if isinstance(calls := kept.get("tool_calls"), list):
            kept["tool_calls"] = [_with_arguments(call) for call in calls]
        found.append({"content": ""} | kept)
    return found


def _with_arguments(call: Any) -> Any:
    """Returns a call of a tool with its arguments as an object, which templates take; OpenAI's are
    JSON text.
    """
    if not isinstance(call, dict):
        return call
    call = call | ({"function": _with_arguments(call["function"])} if "function" in call else {})
    if isinstance(text := call.get("arguments"), str):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(arguments := json.loads(text), dict):
                call["arguments"] = arguments
    return call


def _plain(messages: str | list[dict[str, Any]], role: str) -> str | None:
    """Returns the text of a prompt that is one message of the user, or of a completion that is one
    of the assistant; None otherwise.

    The learner puts such a prompt into its own chat template, which gives the same tokens.
    """
    if isinstance(messages, str):
        return messages
    message, *others = messages
    return (
        message["content"]
        if not others and message.keys() == {"role", "content"} and message["role"] == role
        else None
    )
