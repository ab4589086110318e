"""`grre evaluate`: of the first and last policy of a run, or of a model on a task."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grre_jax.console import make_console
from grre_jax.errors import UsageError
from grre_jax.models.source import ModelSource
from grre_jax.parallel import processes
from grre_jax.reporting.run_report import print_evaluations
from grre_jax.sampling.config import SamplingConfig
from grre_jax.sampling_params import SamplingParams
from grre_jax.storage.files import replace
from grre_jax.tasks import Question
from grre_jax.training import build, policies, state
from grre_jax.training.actors.calls import evaluation_questions, evaluation_settings
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

# Fields that an evaluation of a run or of a model may set. What it draws is under `evaluation`.
RUN_FIELDS = ("data.", "evaluation.", "mesh.", "run_dir", "sampling.", "task.")
MODEL_FIELDS = (
    "evaluation.",
    "mesh.",
    "model.",
    "sampling.cache_dtype",
    "sampling.max_concurrent",
    "sampling.max_new_tokens",
    "sampling.max_prompt_tokens",
    "sampling.prompts_per_call",
    "seed",
    "task.",
)
# The limit on prompts is a multiple of this, so that tasks with similar longest questions share a
# program.
PROMPT_TOKENS = 16


def evaluate_run(folder: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Evaluates a run's first and last policy and writes evaluation.json into its folder. Several
    processes may share the work.

    Args:
        folder: the run.
        overrides: configuration fields as on the command line, such as --evaluation.questions 1000.

    Returns:
        The contents of evaluation.json: {"steps", "questions", "sampling": `Evaluator.settings`,
        "first" and "last": `figures` and `pass_metrics`}.

    Raises:
        UsageError: an invalid override, no questions, or a benchmark split that the training data
            contains.
        DataError: the folder is not a run's or has no checkpoints.
    """
    config = _overridden(policies.load_config(folder), overrides, RUN_FIELDS, "a run")
    config = dataclasses.replace(config, run_dir=str(folder))
    parts = build.build(config)
    graph, (first, last), (_, step) = policies.policies_at(folder, parts, (0, None))
    refuse_contaminated(parts, build.contents(folder / "provenance.json"))
    questions = evaluation_questions(parts)
    measured = {"first": (0, first), "last": (step, last)}
    result = {"steps": [0, step]} | _evaluated(parts, graph, questions, measured, first)
    text = json.dumps(result, indent=2) + "\n"
    processes.on_first(lambda: replace(folder / "evaluation.json", text))
    return result


def evaluate_model(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Evaluates a model on a task's held-out questions. Several processes may share the work.

    Args:
        path: a Hugging Face folder.
        overrides: configuration fields as on the command line: --task.name gsm8k
            --evaluation.num-samples 8. Of the sampling section max_new_tokens (256 if not given),
            prompts_per_call, max_concurrent and cache_dtype apply; the limit on prompts fits the
            questions.

    Returns:
        {"model", "task", "questions", "sampling": `Evaluator.settings`, "policy": `figures` and
        `pass_metrics`}.

    Raises:
        UsageError: an invalid override, no questions, or a benchmark split that the model was
            trained on.
        DataError: the model or the task's data is missing or damaged.
    """
    plain = Config(
        name="evaluate",
        model=ModelSource(path=str(path)),
        sampling=SamplingConfig(max_new_tokens=SamplingParams.max_new_tokens),
    )
    config = _overridden(plain, overrides, MODEL_FIELDS, "a model")
    parts = build.build(config)
    refuse_contaminated(parts, build.model_contents(config))
    questions = parts.task.evaluation(config.evaluation.questions)
    parts = _with_room(parts, questions)
    graph, params, frozen = state.split(parts.model)
    measured = {"policy": (0, state.full(params, frozen))}
    described = {"model": str(path), "task": parts.task.name}
    return described | _evaluated(parts, graph, questions, measured)


def _overridden(
    config: Config, overrides: Sequence[str], fields: tuple[str, ...], what: str
) -> Config:
    """Returns a configuration with overrides, which may be of some fields alone."""
    result = override(config, overrides)
    changed = differences(dataclasses.asdict(config), dataclasses.asdict(result))
    # The path of the model is an argument of the command, and no override.
    other = [name for name in changed if not name.startswith(fields) or name == "model.path"]
    if other:
        raise UsageError(
            f"grre evaluate of {what} takes only fields under {', '.join(fields)}, got"
            f" {', '.join(other)}"
        )
    if not result.evaluation.questions:
        raise UsageError(f"evaluation.questions: expected at least 1 to evaluate {what}, got 0")
    return result


def _evaluated(
    parts: build.Parts,
    graph: Any,
    questions: Sequence[Question],
    measured: Mapping[str, tuple[int, Any]],
    start_params: Any = None,
) -> dict[str, Any]:
    """Evaluates policies, steps and parameters by name, and prints their figures."""
    evaluator = make_evaluator(parts, graph)
    rows = {}
    for name, (step, params) in measured.items():
        groups, greedy = answer(evaluator, params, questions, step=step)
        row = figures(evaluator, groups, greedy, start_params)
        rows[name] = (step, row | pass_metrics(groups, parts.task))
    print_evaluations(rows, make_console(quiet=not processes.is_first()))
    return {
        "questions": len(questions),
        "sampling": evaluator.settings,
        **{name: row for name, (_, row) in rows.items()},
    }


def _with_room(parts: build.Parts, questions: Sequence[Question]) -> build.Parts:
    """Returns the parts with a limit on prompts that fits the questions.

    Raises:
        UsageError: the model is too small for the longest question with its completion.
    """
    config = parts.config
    longest = max(len(tokens) for _, tokens in prompts(parts, questions))
    new = evaluation_settings(config).max_new_tokens
    room = parts.model.config.max_positions
    if longest + new > room:
        raise UsageError(
            f"evaluation.max_new_tokens: expected at most {room - longest} beside the longest"
            f" question, of {longest} tokens, got {new}"
        )
    limit = -(-max(longest, config.sampling.max_prompt_tokens) // PROMPT_TOKENS) * PROMPT_TOKENS
    sampling = dataclasses.replace(config.sampling, max_prompt_tokens=limit)
    return dataclasses.replace(parts, config=dataclasses.replace(config, sampling=sampling))
