"""Prompts within the limits of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from grre_jax.errors import DataError
from grre_jax.parallel import processes
from grre_jax.tasks import Question, Task, Tokenizer
from grre_jax.tasks.environments import is_environment
from grre_jax.tasks.task import questions

if TYPE_CHECKING:
    from grre_jax.training.config.run import Config

MOST_SKIPPED = 10_000  # overlong questions after each other
_NAMED = 5  # questions in a message

_log = logging.getLogger(__name__)
_reported: set[str] = set()  # questions whose omission this process has logged


def fitting_questions(
    task: Task, tokenizer: Tokenizer, limit: int, positions: Sequence[int]
) -> list[Question]:
    """Returns the question of each position: the first from there on whose prompt is within the
    limit.

    It depends on the task, the tokenizer and the limit alone, so that every process and every
    resumed run has the same questions.

    Args:
        task: has the questions.
        tokenizer: encodes their prompts.
        limit: longest prompt, in tokens.
        positions: in the prompt stream.

    Raises:
        DataError: MOST_SKIPPED prompts after each other are longer.
    """
    found = []
    for position, question in zip(positions, questions(task, positions), strict=True):
        candidate = position
        while len(tokenizer.encode_prompt(question)) > limit:
            # Whether or not the next position has this question too: positions do not depend on
            # each other.
            candidate += 1
            if candidate == position + MOST_SKIPPED:
                raise DataError(
                    f"task {task.name}: the {MOST_SKIPPED:,} prompts from position {position} on"
                    f" are over sampling.max_prompt_tokens = {limit}. Raise the limit."
                )
            question = task.question(candidate)
        found.append(question)
    return found


def evaluation_questions(config: Config, task: Task, tokenizer: Tokenizer) -> list[Question]:
    """Returns the questions of the run's evaluation, without those over the limit of prompts.
    Prompts of environments are measured when they are played.

    Raises:
        DataError: all prompts are over the limit.
    """
    count = config.evaluation.questions
    limit = config.sampling.max_prompt_tokens
    held_out = list(task.evaluation(count)) if count else []
    if is_environment(task):
        return held_out
    sized = [(question, len(tokenizer.encode_prompt(question))) for question in held_out]
    overlong = {question.question_id: size for question, size in sized if size > limit}
    kept = [question for question, size in sized if size <= limit]
    if held_out and not kept:
        raise DataError(
            f"task {task.name}: all {count} evaluation questions are over"
            f" sampling.max_prompt_tokens = {limit}. Raise the limit."
        )
    report_overlong(overlong, limit)
    return kept


def report_overlong(
    overlong: Mapping[str, int],
    limit: int,
    field: str = "sampling.max_prompt_tokens",
) -> None:
    """Logs the questions that are left out, in the first process and each once.

    Args:
        overlong: tokens of their prompts or demonstrations by question id.
        limit: largest number of these tokens.
        field: of the limit.
    """
    new = sorted(overlong.keys() - _reported)
    if not new:
        return
    named = ", ".join(f"{name} ({overlong[name]} tokens)" for name in new[:_NAMED])
    _reported.update(new)
    if processes.is_first():
        found = f"{len(new)} questions are over {field} = {limit}, such as {named}"
        _log.warning("%s; they are left out", found)


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
    if not 1 <= len(tokens) <= limit:
        raise DataError(
            f"prompt {question_id}: expected 1 to {limit} tokens (sampling.max_prompt_tokens), got"
            f" {len(tokens)}"
        )
    if max(tokens) >= vocab:
        raise DataError(
            f"prompt {question_id}: expected tokens below {vocab}, the model's, got token"
            f" {max(tokens)}"
        )
