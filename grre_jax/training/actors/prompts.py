"""Prompts within the limits of a run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grre_jax.errors import DataError
from grre_jax.parallel import processes
from grre_jax.tasks import Question, Task, Tokenizer
from grre_jax.tasks.environments import is_environment
from grre_jax.tasks.task import questions

if TYPE_CHECKING:
    from grre_jax.training.config.run import Config

MOST_SKIPPED = 10_000  # overlong questions after each other

_log = logging.getLogger(__name__)


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
    kept = [q for q in held_out if len(tokenizer.encode_prompt(q)) <= limit]
    if held_out and not kept:
        raise DataError(
            f"task {task.name}: all {count} evaluation questions are over"
            f" sampling.max_prompt_tokens = {limit}. Raise the limit."
        )
    report_overlong(len(held_out) - len(kept), limit)
    return kept


def report_overlong(count: int, limit: int, field: str = "sampling.max_prompt_tokens") -> None:
    """Logs, in the first process, how many questions are left out.

    Args:
        count: of the questions.
        limit: largest number of tokens of their prompts or demonstrations.
        field: of the limit.
    """
    if count and processes.is_first():
        _log.warning("%d questions are over %s = %d; they are left out", count, field, limit)


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
