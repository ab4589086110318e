"""Prompts within the limits of a run."""

from __future__ import annotations

from collections.abc import Sequence

from grre_jax.errors import DataError
from grre_jax.tasks import Question, Tokenizer


def encoded_prompt(question: Question, tokenizer: Tokenizer, limit: int, vocab: int) -> list[int]:
    """Returns a question's prompt as token ids.

    Args:
        question: the question.
        tokenizer: the model's.
        limit, vocab: as for `check_prompt`.

    Raises:
        DataError: as for `check_prompt`.
    """
    tokens = tokenizer.encode_prompt(question)
    check_prompt(question.question_id, tokens, limit, vocab)
    return tokens


def check_prompt(question_id: str, tokens: Sequence[int], limit: int, vocab: int) -> None:
    """Checks a prompt.

    Args:
        question_id: its question's.
        tokens: its ids.
        limit: longest prompt, in tokens.
        vocab: tokens of the model's vocabulary.

    Raises:
        DataError: the prompt is empty, longer than the limit, or has a token outside the
            vocabulary.
    """
    if not tokens:
        raise DataError(f"prompt {question_id} is empty: leave the question out")
    if len(tokens) > limit:
        raise DataError(
            f"prompt {question_id} has {len(tokens)} tokens, over sampling.max_prompt_tokens ="
            f" {limit}: raise the limit or leave the question out"
        )
    if max(tokens) >= vocab:
        raise DataError(
            f"prompt {question_id} has token {max(tokens)}, and the model's are 0 to {vocab - 1}:"
            " the tokenizer is not the model's"
        )
