"""The policy that the runs of a comparison begin with, measured once before the first of them.

Only a pretrained model is the same policy in every run. A new model and a warm start depend on the
seed, and each run evaluates its own.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from grre_jax.config import Config
from grre_jax.errors import DataError, UsageError
from grre_jax.storage import files
from grre_jax.training import build, state
from grre_jax.training.actors.prompts import evaluation_questions
from grre_jax.training.evaluation.evaluate import answer, figures, make_evaluator
from grre_jax.training.evaluation.pass_at_k import pass_metrics

SAMPLES = 8  # completions per question, or more if the runs' evaluations have more


def is_shared(config: Config) -> bool:
    """Returns True if all runs of a configuration begin with the same policy."""
    return bool(config.model.path) and not config.warm_start.steps


def measure(config: Config, file: Path) -> dict[str, Any]:
    """Returns the figures of the start, from the file if they were measured before.

    Args:
        config: of the runs, with a shared start.
        file: JSON; written if it does not exist.

    Returns:
        scores: figures of an evaluation at step 0, by name.
        pass_at_8: the share of questions to which one of eight sampled completions is correct.
        cut_off: the share of sampled completions that reached the longest length.

    Raises:
        DataError: the file cannot be read, the verdicts have no correctness, or the model is
            missing or damaged.
    """
    if file.exists():
        try:
            return json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise DataError(
                f"{file} cannot be read ({error}): remove it, and the start is measured again"
            ) from error
    found = _measured(config)
    files.replace(file, json.dumps(found, indent=1) + "\n")
    return found


def _measured(config: Config) -> dict[str, Any]:
    samples = max(SAMPLES, config.evaluation.num_samples)
    evaluation = dataclasses.replace(config.evaluation, num_samples=samples, greedy=True)
    parts = build.build(dataclasses.replace(config, evaluation=evaluation))
    graph, params, frozen = state.split(parts.model)
    evaluator = make_evaluator(parts, graph)
    questions = evaluation_questions(config, parts.task, parts.tokenizer)
    sampled, greedy = answer(evaluator, state.full(params, frozen), questions, step=0)
    scores = figures(evaluator, sampled, greedy)
    if "accuracy" not in scores:
        raise unknown(config)
    if evaluator.sampled.config.draws_from_policy:
        scores["kl_to_start"] = 0.0
    reasons = [reason for group in sampled for reason in group.finish_reasons]
    return {
        "scores": scores,
        "samples": samples,
        "pass_at_8": pass_metrics(sampled, parts.task)["pass_at_k"]["8"]["value"],
        "cut_off": reasons.count("length") / len(reasons),
    }


def unknown(config: Config) -> DataError:
    """Returns the error of a task whose verdicts do not say what is correct."""
    return DataError(
        f"the comparison is of accuracy, and verdicts of task {config.task.name} do not say what is"
        " correct: return Verdict(reward, correct=...)"
    )


def check(found: dict[str, Any], bound: float) -> None:
    """Checks that the start has not solved the task.

    Args:
        found: result of `measure`.
        bound: greedy accuracy that it may not exceed.

    Raises:
        UsageError: it does.
    """
    greedy = found["scores"]["greedy_accuracy"]
    if greedy > bound:
        raise UsageError(
            f"the start has greedy accuracy {greedy:.3f} (pass@8 {found['pass_at_8']:.3f}) before"
            f" any run, over the bound of {bound:g}: it has solved the task too far to show"
            " learning. Choose a harder task with another --output, or a larger --greedy-bound"
        )


def told(found: dict[str, Any]) -> str:
    """Returns the figures in a sentence's words."""
    scores = found["scores"]
    return (
        f"greedy accuracy {scores['greedy_accuracy']:.3f}, sampled {scores['accuracy']:.3f}, pass@8"
        f" {found['pass_at_8']:.3f} ({found['samples']} samples to each question),"
        f" {scores['response_length']:.1f} tokens an answer, {found['cut_off']:.1%} cut off"
    )
