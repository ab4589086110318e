"""Chat messages of imported rows: texts, and the tokens that the policy's chat template
renders.
"""

import contextlib
import itertools
import json
from typing import TYPE_CHECKING, Annotated, Any

from grre_jax.domains import ConfigError, checked
from grre_jax.errors import UsageError
from grre_jax.json_files import message_text
from grre_jax.rollouts.schema import MESSAGE_FIELDS

if TYPE_CHECKING:
    from grre_jax.tasks import Tokenizer

Message = dict[str, Any]
Text = str | list[Message]


def texts(fields: dict[str, Any], tokenizer: "Tokenizer | None") -> dict[str, Any]:
    """Returns the fields of a group that follow from its texts, messages and tokens.

    Args:
        fields: of the group; `prompt` and the items of `texts` are texts or chat messages, and may
            be missing where there are tokens. `tools` in its `extra` are definitions for the
            template; beside texts anything else.
        tokenizer: the policy's, whose chat template renders messages.

    Returns:
        `prompt` and `texts`; for messages that are not plain also their tokens and mask, and
            `extra` with the messages.

    Raises:
        ConfigError: the row needs a chat template, or the template does not show which tokens the
            policy generated.
    """
    has_tokens = "tokens" in fields
    given = _decoded(fields, tokenizer) | fields if has_tokens and tokenizer else fields
    prompt = _text("prompt", given.get("prompt"))
    numbered = enumerate(checked("texts", list, given.get("texts")))
    completions = [_text(f"completions[{k}].text", text) for k, text in numbered]
    plain_prompt = _plain(prompt, "user")
    plain_texts = [_plain(text, "assistant") for text in completions]
    tools = None if has_tokens else fields["extra"].get("tools")
    if isinstance(tools, list) or any(isinstance(text, list) for text in (prompt, *completions)):
        tools = checked("tools", tuple[dict[str, Any], ...] | None, tools)
    else:
        tools = None
    if not tools and plain_prompt is not None and None not in plain_texts:
        return {"prompt": plain_prompt, "texts": plain_texts}
    if not getattr(tokenizer, "has_template", False):
        domain = "text, or --tokenizer FOLDER with a chat template beside messages and tools"
        raise ConfigError("texts", domain, [prompt, completions])
    made = {}
    if not has_tokens:
        made = _tokens(prompt, completions, fields, tools, tokenizer)
    elif None in plain_texts and "mask" not in fields:
        raise ConfigError("mask", "the mask of tokens of several messages", None)
    decoded = _decoded(fields | made, tokenizer)
    pairs = zip(plain_texts, decoded["texts"], strict=True)
    stored = dict(zip(MESSAGE_FIELDS, (prompt, completions), strict=True))
    return made | {
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


def _present(fields: Message) -> Message:
    return {name: value for name, value in fields.items() if value is not None}


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
    tools = [_present(tool) for tool in tools or ()] or None
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
    message = _present(value) if isinstance(value, dict) else {}
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
