"""Chat messages and turns of imported rows: texts, and the tokens that the policy's chat template
renders.
"""

import contextlib
import itertools
import json
import math
from types import NoneType
from typing import TYPE_CHECKING, Any

from grre_jax.domains import ConfigError, checked
from grre_jax.errors import UsageError
from grre_jax.json_files import message_text
from grre_jax.rollouts.schema import MESSAGE_FIELDS

if TYPE_CHECKING:
    from grre_jax.tasks import Tokenizer

Message = dict[str, Any]
Text = str | list[Message]
_NEEDED = "text, or a tokenizer with a chat template beside messages (--tokenizer FOLDER)"


def texts(
    fields: dict[str, Any],
    tools: Any,
    turn_rewards: list[Any] | None,
    tokenizer: "Tokenizer | None",
) -> dict[str, Any]:
    """Returns the fields of a group that follow from its texts, messages and tokens.

    Args:
        fields: of the group; `prompt` and the items of `texts` are texts or chat messages, and may
            be missing where there are tokens.
        tools: definitions for the template; beside texts anything else.
        turn_rewards: of each completion, if the row has them.
        tokenizer: the policy's, whose chat template renders messages.

    Returns:
        `prompt` and `texts`; for messages that are not plain also their tokens and mask, and
            `extra` with the messages; for trajectories the fields of their turns.

    Raises:
        ConfigError: the row needs a chat template, or the template does not show which tokens the
            policy generated; or turns do not fit.
    """
    prompt = fields.get("prompt")
    completions = fields.get("texts")
    if tokenizer is not None and "tokens" in fields:
        for name in ("prompt_tokens", "tokens"):
            _check_ids(name, fields[name], tokenizer)
        decoded = _decoded(fields, tokenizer)
        if prompt is None:
            prompt = _decoded_prompt(fields["prompt_tokens"], tokenizer)
        if completions is None:
            completions = decoded
        elif isinstance(completions, list) and len(completions) == len(decoded):
            completions = [b if a is None else a for a, b in zip(completions, decoded, strict=True)]
    prompt = _text("prompt", prompt)
    numbered = enumerate(checked("texts", list, completions))
    completions = [_text(f"completions[{k}].text", text) for k, text in numbered]
    made = _rendered(prompt, completions, fields, tools, tokenizer)
    if "turn_counts" not in fields:
        made |= _turns(fields | made, turn_rewards, tokenizer)
    return made


def _check_ids(name: str, ids: Any, tokenizer: "Tokenizer") -> None:
    size = tokenizer.vocab_size
    for token in ids if isinstance(ids, list) else [ids]:
        if not isinstance(token, int | float) or not 0 <= token < size or token % 1:
            raise ConfigError(name, f"ids below {size}, as the tokenizer has", token)


def _decoded(fields: dict[str, Any], tokenizer: "Tokenizer") -> list[str]:
    lengths = checked("lengths", tuple[int, ...], fields.get("lengths"))
    spans = itertools.pairwise(itertools.accumulate(lengths, initial=0))
    return [tokenizer.decode(list(map(int, fields["tokens"][a:b]))) for a, b in spans]


def _decoded_prompt(prompt: list[int], tokenizer: "Tokenizer") -> str:
    """Returns the text of a prompt without the beginning-of-text token, which every tokenizer adds
    by itself.
    """
    ids = list(map(int, prompt))
    begins = bool(ids) and ids[0] == getattr(tokenizer, "bos_id", None)
    return tokenizer.decode(ids[begins:])


def _rendered(
    prompt: Text,
    completions: list[Text],
    fields: dict[str, Any],
    tools: Any,
    tokenizer: "Tokenizer | None",
) -> dict[str, Any]:
    """Returns prompt and texts, and what the chat template makes of messages that are not plain."""
    for k, text in enumerate(completions):
        if isinstance(text, list) and text[0]["role"] != "assistant":
            domain = "a message of the assistant first"
            raise ConfigError(f"completions[{k}].text", domain, text)
    has_tokens = "tokens" in fields
    templated = getattr(tokenizer, "has_template", False)
    if templated and not has_tokens and isinstance(prompt, str) and tokenizer.mark_in(prompt):
        domain = "text to which no chat template was applied, or messages"
        raise ConfigError("prompt", domain, prompt)
    plain_prompt = _plain(prompt, "user")
    plain_texts = [_plain(text, "assistant") for text in completions]
    definitions: list[Message] = []
    if not has_tokens and isinstance(tools, list) and all(isinstance(t, dict) for t in tools):
        definitions = list(map(_present, tools))
    elif not has_tokens and any(isinstance(text, list) for text in (prompt, *completions)):
        checked("tools", NoneType, tools)  # beside texts it may be anything
    if not definitions and plain_prompt is not None and None not in plain_texts:
        return {"prompt": plain_prompt, "texts": plain_texts}
    if not templated:
        name = "tools" if definitions else "prompt" if plain_prompt is None else "texts"
        raise ConfigError(name, _NEEDED, tools if definitions else [prompt, completions])
    tokens: dict[str, Any] = {}
    if not has_tokens:
        reasons = fields.get("finish_reasons") or [""] * len(completions)
        tokens = _tokens(prompt, completions, reasons, definitions or None, tokenizer)
    elif None in plain_texts and "mask" not in fields:
        raise ConfigError("mask", "the mask of tokens of several messages", None)
    if plain_prompt is None:
        plain_prompt = _decoded_prompt((fields | tokens)["prompt_tokens"], tokenizer)
    decoded = _decoded(fields | tokens, tokenizer)
    return tokens | {
        "prompt": plain_prompt,
        "texts": [b if a is None else a for a, b in zip(plain_texts, decoded, strict=True)],
        "extra": dict(zip(MESSAGE_FIELDS, (prompt, completions), strict=True)),
    }


def _present(fields: Message) -> Message:
    return {name: value for name, value in fields.items() if value is not None}


def _tokens(
    prompt: Text,
    completions: list[Text],
    reasons: list[str],
    tools: list[Message] | None,
    tokenizer: "Tokenizer",
) -> dict[str, Any]:
    """Returns the tokens of a prompt and its completions as the chat template renders them."""
    before = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    prompt_ids: list[int] = []
    ids: list[list[int]] = []
    masks: list[list[int]] = []
    for k, (text, reason) in enumerate(zip(completions, reasons, strict=True)):
        after = text if isinstance(text, list) else [{"role": "assistant", "content": text}]
        cut = reason == "length" and after[-1]["role"] == "assistant"
        try:
            encoded = tokenizer.encode_conversation(before, after, cut=cut, tools=tools)
        except UsageError as error:
            domain = f"messages that can be rendered ({error})"
            raise ConfigError(f"completions[{k}].text", domain, text) from error
        prompt_ids = encoded[0]
        ids.append(encoded[1])
        masks.append(encoded[2])
    return {
        "prompt_tokens": prompt_ids,
        "lengths": list(map(len, ids)),
        "tokens": list(itertools.chain(*ids)),
        "mask": list(itertools.chain(*masks)),
    }


def _text(name: str, value: Any) -> Text:
    """Returns a text, or chat messages: objects with role and content, without null entries."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ConfigError(name, 'a string or messages, [{"role": "user", "content": "..."}]', value)
    return [_message(f"{name}[{index}]", message) for index, message in enumerate(value)]


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
    if not isinstance(call, dict):
        return call
    call = call | ({"function": _with_arguments(call["function"])} if "function" in call else {})
    if isinstance(text := call.get("arguments"), str):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(arguments := json.loads(text), dict):
                call["arguments"] = arguments
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


def _turns(
    fields: dict[str, Any], rewards: list[Any] | None, tokenizer: "Tokenizer | None"
) -> dict[str, Any]:
    """Returns the places and rewards of a group's turns; none for a group without observations or
    a tokenizer. A completion without rewards by turn has its reward in the last turn.
    """
    if "tokens" not in fields or tokenizer is None:
        if rewards is not None:
            raise ConfigError(
                "turn_rewards", "tokens or messages beside it, and --tokenizer", rewards
            )
        return {}
    mask = fields.get("mask") or [1] * len(fields["tokens"])
    if rewards is None and all(mask):
        return {}
    found: dict[str, list[Any]] = {"turn_counts": [], "turn_tokens": [], "turn_texts": []}
    found["turn_rewards"] = []
    ends = itertools.accumulate(fields["lengths"], initial=0)
    for k, (start, end) in enumerate(itertools.pairwise(ends)):
        ids = list(map(int, fields["tokens"][start:end]))
        text = fields["texts"][k]
        spans = _spans(ids, mask[start:end], tokenizer.eos_ids)
        if spans == [0, len(ids)]:
            characters = [0, len(text)]
        elif tokenizer.decode(ids) == text:
            characters = [len(tokenizer.decode(ids[:place])) for place in spans]
        elif rewards is None:
            return {}
        else:
            raise ConfigError(f"completions[{k}].text", "the text of the tokens, or no text", text)
        found["turn_counts"].append(len(spans) // 2)
        found["turn_tokens"] += spans
        found["turn_texts"] += characters
        given = rewards[k] if rewards else None
        found["turn_rewards"] += _rewards(k, given, len(spans) // 2, fields["rewards"][k])
    return found


def _spans(ids: list[int], mask: list[int], end_ids: tuple[int, ...]) -> list[int]:
    """Returns start and end of each turn, one after the other: tokens of the policy's in a row, up
    to an end token.
    """
    spans: list[int] = []
    for place, written in enumerate(mask):
        continues = place > 0 and mask[place - 1] and ids[place - 1] not in end_ids
        if written and not continues:
            spans += [place, place]
        if written:
            spans[-1] = place + 1
    return spans


def _rewards(k: int, given: Any, turns: int, total: Any) -> list[Any]:
    """Returns the rewards of a completion's turns: without one for the last turn, or for any, the
    last has the rest of the completion's reward, 0 if that is unknown.
    """
    rewards = given or [0.0] * (turns - 1)
    fits = isinstance(rewards, list) and all(isinstance(value, int | float) for value in rewards)
    if fits and turns and len(rewards) == turns - 1:
        known = isinstance(total, int | float) and not math.isnan(total)
        return [*rewards, total - sum(rewards) if known else 0.0]
    if not fits or len(rewards) != turns:
        domain = f"numbers for its {turns} turns, or for all but the last"
        raise ConfigError(f"completions[{k}].turn_rewards", domain, given)
    return rewards
