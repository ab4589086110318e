"""Evaluation of a model in a folder or a file on a task, without a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grre_jax.console import make_console
from grre_jax.errors import UsageError
from grre_jax.models.source import ModelSource
from grre_jax.parallel import processes
from grre_jax.reporting.evaluation_tables import print_evaluations
from grre_jax.sampling.config import SamplingConfig
from grre_jax.sampling.params import SamplingParams
from grre_jax.tasks import Question
from grre_jax.training import build, state
from grre_jax.training.actors.calls import evaluation_settings
from grre_jax.training.actors.trajectories import prompts
from grre_jax.training.config.overrides import override
from grre_jax.training.config.run import Config, differences
from grre_jax.training.evaluation.evaluate import (
    answer,
    figures,
    make_evaluator,
    refuse_contaminated,
)
from grre_jax.training.evaluation.pass_at_k import pass_metrics

# Fields of a configuration that an evaluation of a model depends on.
FIELDS = ("evaluation.", "mesh.", "model.", "sampling.", "seed", "task.")
# Fields of `sampling` that an evaluation replaces by its own. Its max_new_tokens may be left to
# `sampling`.
REPLACED = {"group_size": "num_samples"} | {
    name: name for name in SamplingParams.names() if name != "max_new_tokens"
}
# The limit on prompts is a multiple of this, so that tasks with similar longest questions share a
# program.
PROMPT_TOKENS = 16
NEW_TOKENS = SamplingParams.max_new_tokens


def evaluate_model(
    path: Path, overrides: Sequence[str] = (), console: Any = None
) -> dict[str, Any]:
    """Evaluates a model on a task's held-out questions. Several processes may share the work.

    Args:
        path: a Hugging Face folder.
        overrides: configuration fields as on the command line: --task.name gsm8k
            --evaluation.num-samples 8. Of the sampling section max_new_tokens (256 if not given),
            prompts_per_call, max_concurrent and cache_dtype apply; the limit on prompts fits the
            questions.
        console: a rich console; standard output if None.

    Returns:
        {"model", "task", "questions", "sampling": `Evaluator.settings`, "policy": `figures` and
        `pass_metrics`}.

    Raises:
        UsageError: an invalid override, or a benchmark split that the model was trained on.
        DataError: the model or the task's data is missing or damaged.
    """
    console = (
        console
        if console and processes.is_first()
        else make_console(quiet=not processes.is_first())
    )
    config = _configuration(path, overrides)
    if not config.evaluation.questions:
        raise UsageError("field evaluation.questions must be at least 1 to evaluate a model")
    parts = build.build(config)
    refuse_contaminated(
        build.model_contents(config),
        getattr(parts.task, "evaluation_source", ""),
        allowed=config.evaluation.allow_contaminated,
    )
    questions = parts.task.evaluation(config.evaluation.questions)
    parts = _with_room(parts, questions)
    graph, params, frozen = state.split(parts.model)
    evaluator = make_evaluator(parts, graph)
    groups, greedy = answer(evaluator, state.full(params, frozen), questions, step=0)
    row = figures(evaluator, groups, greedy) | pass_metrics(groups, parts.task)
    print_evaluations({path.absolute().name: (None, row)}, console)
    return {
        "model": str(path),
        "task": parts.task.name,
        "questions": len(questions),
        "sampling": evaluator.settings,
        "policy": row,
    }


def _configuration(path: Path, overrides: Sequence[str]) -> Config:
    """Returns the configuration of an evaluation.

    Raises:
        UsageError: an override that does not apply to it.
    """
    plain = Config(
        name="evaluate",
        model=ModelSource(path=str(path)),
        sampling=SamplingConfig(max_new_tokens=NEW_TOKENS),
    )
    config = override(plain, overrides)
    changed = differences(dataclasses.asdict(plain), dataclasses.asdict(config))
    if other := [name for name in changed if not name.startswith(FIELDS)] or ["model.path"] * (
        config.model.path != str(path)
    ):
        raise UsageError(
            f"grre evaluate of a model takes only fields under {', '.join(FIELDS)}, got"
            f" {', '.join(other)}"
        )
    if drawn := [name for name in sorted(REPLACED) if f"sampling.{name}" in changed]:
        raise UsageError(
            f"an evaluation does not use {', '.join(f'sampling.{name}' for name in drawn)}: give"
            f" evaluation.{', evaluation.'.join(REPLACED[name] for name in drawn)}"
        )
    if config.sampling.weight_dtype:
        raise UsageError(
            "an evaluation uses the model's own weights: leave out sampling.weight_dtype, or give"
            " model.dtype"
        )
    return config


def _with_room(parts: build.Parts, questions: Sequence[Question]) -> build.Parts:
    """Returns the parts with a limit on prompts that fits the questions.

    Raises:
        UsageError: the model is too small for the longest question with its completion.
    """
    config = parts.config
    of_task = (parts.task, parts.tokenizer, parts.judge, config.seed)
    longest = max(len(tokens) for _, tokens in prompts(*of_task, questions))
    new, room = evaluation_settings(config).max_new_tokens, parts.model.config.max_positions
    if longest + new > room:
        raise UsageError(
            f"the longest question has {longest} tokens, and with --max-new-tokens {new} that is"
            f" more than the {room} that the model was made for: lower --max-new-tokens"
        )
    limit = -(-max(longest, config.sampling.max_prompt_tokens) // PROMPT_TOKENS) * PROMPT_TOKENS
    sampling = dataclasses.replace(config.sampling, max_prompt_tokens=limit)
    return dataclasses.replace(parts, config=dataclasses.replace(config, sampling=sampling))
