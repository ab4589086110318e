"""The header of a run, and its checks before it begins."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Any

import jax

from grre_jax import reporting
from grre_jax.errors import UsageError
from grre_jax.machine import devices_line
from grre_jax.parallel import processes
from grre_jax.tasks import Question
from grre_jax.tasks.environments import is_environment
from grre_jax.tasks.task import questions as drawn
from grre_jax.training import build
from grre_jax.training.actors.calls import call_of, idle_sampler
from grre_jax.training.actors.prompts import (
    check_prompt,
    evaluation_questions,
    fitting_questions,
    report_overlong,
)
from grre_jax.training.actors.trajectories import prompts
from grre_jax.training.config.run import Config
from grre_jax.training.evaluation.evaluate import GREEDY, WHERE_KNOWN, refuse_contaminated
from grre_jax.training.left_out import left_out
from grre_jax.training.warm_start import check_demonstrations

MOST_SECONDS = 5.0  # of a look at the prompts of the run's training stream
MEASURED_TOGETHER = 256  # positions between looks at the clock


def header(parts: build.Parts, folder: str) -> dict[str, Any]:
    """Returns the lines of a run's header by name, for `reporting.print_header`."""
    config = parts.config
    hyperparameters, lora = parts.objective.hyperparameters, parts.model.lora
    numbers = ", ".join(f"{name} {float(value):g}" for name, value in hyperparameters.items())
    of_lora = lora and f"rank {lora.rank}, alpha {lora.alpha:g}, on {', '.join(lora.targets)}"
    return {
        "run": f"{config.name} in {folder}",
        "model": (
            f"{config.model.path or 'new'}, {parts.model.config.num_parameters:,} parameters,"
            f" {config.model.dtype}"
        ),
        "lora": of_lora or None,
        "task": parts.task.name,
        "objective": parts.objective.name + (f" ({numbers})" if numbers else ""),
        "data": data_line(config),
        "left out": "\n".join(left_out(config, parts.objective)) or "nothing",
        "step": (
            f"{config.training.prompts_per_step} groups x {config.sampling.group_size}, rows of"
            f" {parts.shape.pack_length} tokens, learning rate {config.optimizer.learning_rate:g}"
        ),
        "devices": devices_line(),
    }


def data_line(config: Config) -> str:
    """Returns the origin of a run's data in a line."""
    mixed = [
        f"{entry.share:.0%} of {entry.path}{' (expert)' if entry.expert else ''}"
        for entry in config.data.entries
    ]
    if config.samples:
        return ", ".join([config.regime.described, *mixed])
    if config.data.path:
        return ", ".join([f"stored rollouts of {config.data.path}", *mixed])
    return f"stored rollouts: {', '.join(mixed)}"


def check(parts: build.Parts, *, contains: Collection[str]) -> None:
    """Checks what a run needs besides its parts, without writing.

    Args:
        parts: of the run.
        contains: benchmark splits that the training data contains.

    Raises:
        UsageError: a field that cannot be used, or a package that is not installed.
        DataError: the task's data is missing or damaged.
    """
    config, task = parts.config, parts.task
    if config.checkpoint.best and not config.evaluation.questions:
        raise UsageError(
            "checkpoint.best: expected 0 for a run without evaluations (evaluation.questions is 0),"
            f" got {config.checkpoint.best}"
        )
    if problem := spent_rate(config):
        raise UsageError(problem)
    processes.on_first(lambda: reporting.check_loggers(config.logging))
    if idle := idle_sampler(config, jax.process_count()):
        raise UsageError(idle)
    check_prompts(parts)
    if config.evaluation.questions:
        _check_encoded(parts, evaluation_questions(config, task, parts.tokenizer))
        refuse_contaminated(task, contains, allowed=config.evaluation.allow_contaminated)
    check_demonstrations(parts)


def require_best(config: Config, scores: dict[str, float]) -> None:
    """Checks that an evaluation has the figure that selects the best checkpoints.

    Raises:
        UsageError: it lacks the figure, because the task's verdicts do.
    """
    metric = config.checkpoint.best_metric
    if config.checkpoint.best and metric not in scores:
        judged = metric.removeprefix(GREEDY) in WHERE_KNOWN
        fix = "return Verdict(reward, correct=...), or " if judged else ""
        raise UsageError(
            f"field checkpoint.best_metric = {metric!r} is not a figure of an evaluation on task"
            f" {config.task.name}, which has {', '.join(scores)}: {fix}choose one of these"
        )


def spent_rate(config: Config) -> str:
    """Returns the error of a run that goes on after its learning rate has decayed to 0, or "".

    Args:
        config: the run's.
    """
    stages = {
        "": (config.optimizer, config.training.steps, "training.steps"),
        "warm_start.": (config.warm_start.optimizer, config.warm_start.steps, "warm_start.steps"),
    }
    for section, (optimizer, steps, field) in stages.items():
        ends = optimizer.decay != "none" and not optimizer.final_fraction
        if ends and steps > optimizer.decay_steps:
            return (
                f"{section}optimizer.decay_steps: expected at least the {steps} of {field}, since"
                f" the learning rate is 0 after the decay, got {optimizer.decay_steps}. Raise it,"
                f" or set {section}optimizer.final_fraction above 0"
            )
    return ""


def check_prompts(parts: build.Parts) -> None:
    """Checks the prompts that the run samples: those of its first call, and of the positions after
    it for MOST_SECONDS; none of a run that samples nothing. With environments, of the first call.

    Raises:
        DataError: the task's data is missing, or a prompt cannot be used.
    """
    config, limit = parts.config, parts.config.sampling.max_prompt_tokens
    if is_environment(parts.task):
        _check_trajectories(config)
    if not config.samples:
        return
    first = config.schedule.sampled(0, config.training.steps)
    first = first[: call_of(config.sampling, len(first)).prompts]
    if is_environment(parts.task):
        _check_encoded(parts, drawn(parts.task, first))
        return
    last = config.regime.batch(config.training.steps - 1)
    until = time.monotonic() + MOST_SECONDS
    vocab, seen = parts.model.config.vocab_size, 0
    sizes: dict[str, int] = {}
    count = config.schedule.positions(last).stop
    while seen < count and (seen < len(first) or time.monotonic() < until):
        positions = range(seen, min(count, seen + MEASURED_TOGETHER))
        seen = positions.stop
        for question in drawn(parts.task, positions):
            if question.question_id not in sizes:
                tokens = parts.tokenizer.encode_prompt(question)
                sizes[question.question_id] = len(tokens)
                if len(tokens) <= limit:
                    check_prompt(question.question_id, tokens, limit, vocab)
    overlong = {name: size for name, size in sizes.items() if size > limit}
    report_overlong(overlong, limit, refuse=config.data.overlong == "refuse")
    if len(overlong) == len(sizes):
        fitting_questions(parts.task, parts.tokenizer, limit, [0])


def _check_encoded(parts: build.Parts, questions: Iterable[Question]) -> None:
    """Checks prompts of any length that data.overlong allows."""
    config, limit = parts.config, parts.config.sampling.max_prompt_tokens
    drops, vocab = config.data.overlong == "drop", parts.model.config.vocab_size
    of_task = (parts.task, parts.tokenizer, parts.judge, config.seed)
    for question, tokens in prompts(*of_task, questions):
        if not drops or len(tokens) <= limit:
            check_prompt(question.question_id, tokens, limit, vocab)


def _check_trajectories(config: Config) -> None:
    """Raises UsageError for what trajectories cannot be sampled with."""
    if processes.many():
        raise UsageError(
            f"task {config.task.name} has environments, in which several processes cannot sample"
            " together: use one process, with explorers on a cluster (cluster.address)"
        )
    if config.sampling.cache_dtype == "int8":
        raise UsageError(
            f"sampling.cache_dtype int8 is not supported for task {config.task.name}, which has"
            " environments: leave it empty, or set bfloat16"
        )
