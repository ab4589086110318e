"""The tokens of a trajectory that the policy did not sample: the opening, and what stands between
its turns.

What was sampled is never encoded again: the tokens of a turn are a prefix of those of the next. The
text between two turns is the part of the chat template that stands there, encoded once: what the
rendering of the conversation with the observation has behind the assistant's last turn. So thoughts
stay in the context, also where the template would drop those of earlier turns. A tokenizer without
a chat template has the environment's separator behind each message.
"""

from collections.abc import Sequence
from functools import partial

from grre_jax.tasks.environments.runner import Opening, Reply
from grre_jax.tasks.tokenizers.chat import SAMPLED
from grre_jax.tasks.tokenizers.protocol import Message, Tokenizer

SPOKEN = {"role": "assistant", "content": SAMPLED}


def opening_tokens(tokenizer: Tokenizer, opening: Opening, separator: str = "") -> list[int]:
    """Returns the ids of the first messages, up to where the policy begins.

    Raises:
        UsageError: the chat template rewrites the opening, or leaves out a message or the tools;
            or a text cannot be encoded.
    """
    if not getattr(tokenizer, "has_template", False):
        return tokenizer.encode_prompt("".join(_plain(m, separator) for m in opening.messages))
    for called in {False, bool(opening.tools)}:
        observation_tokens(tokenizer, opening, [Reply("x", 0.0, False, called)] * 2)
    return tokenizer.encode_messages(opening.messages, tools=opening.tools)


def observation_tokens(
    tokenizer: Tokenizer,
    opening: Opening,
    replies: Sequence[Reply],
    separator: str = "",
    *,
    ended: bool = True,
) -> list[int]:
    """Returns the ids between the policy's last turn and its next.

    Args:
        tokenizer: the model's.
        opening: of the trajectory.
        replies: the environment's so far, the last of which is encoded.
        separator: text behind each message for a tokenizer without a chat template.
        ended: the turn ended with an end token, which is then not written again.

    Raises:
        UsageError: as for `opening_tokens`.
    """
    observations = [_message(reply) for reply in replies]
    if not getattr(tokenizer, "has_template", False):
        plain = getattr(tokenizer, "encode_text", None)  # without a beginning-of-text token
        encode = partial(plain, special=False) if plain else tokenizer.encode_prompt
        return encode(_plain(observations[-1], separator))
    turns = [message for observation in observations for message in (SPOKEN, observation)]
    return tokenizer.encode_observation(
        [*opening.messages, *turns], tools=opening.tools, ended=ended
    )


def _message(reply: Reply) -> Message:
    return {"role": "tool" if reply.called else "user", "content": reply.observation}


def _plain(message: Message, separator: str) -> str:
    return message["content"] + separator
