"""The header of a run, and its checks before it begins."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from grre_jax import reporting
from grre_jax.domains import ConfigError
from grre_jax.errors import UsageError
from grre_jax.machine import devices_line
from grre_jax.objectives import Objective
from grre_jax.parallel import processes
from grre_jax.tasks import Question
from grre_jax.tasks.task import is_environment, questions as drawn
from grre_jax.training import build
from grre_jax.training.actors.calls import (
    call_of,
    check_prompt,
    evaluation_questions,
    fitting_questions,
    report_overlong,
)
from grre_jax.training.actors.trajectories import prompts
from grre_jax.training.config.run import Config
from grre_jax.training.evaluation import refuse_contaminated
from grre_jax.training.warm_start import check_demonstrations


def header(parts: build.Parts, folder: str) -> dict[str, Any]:
    """Returns the lines of a run's header by name, for `reporting.print_header`."""
    config = parts.config
    hyperparameters = parts.objective.hyperparameters
    lora = parts.model.lora
    numbers = ", ".join(f"{name} {float(value):g}" for name, value in hyperparameters.items())
    return {
        "run": f"{config.name} in {folder}",
        "model": (
            f"{config.model.path or 'new'}, {parts.model.config.num_parameters:,} parameters,"
            f" {config.model.dtype}"
        ),
        "lora": lora and f"rank {lora.rank}, alpha {lora.alpha:g}, on {', '.join(lora.targets)}",
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
    origin = f"stored rollouts of {config.data.path}" if config.data.path else "stored rollouts"
    if config.samples:
        origin = config.regime.described
    return ", ".join([origin, *mixed])


def check(parts: build.Parts, *, contains: Collection[str]) -> None:
    """Checks what a run needs besides its parts, without writing.

    Args:
        parts: configuration, model and task.
        contains: benchmark splits that the training data contains.

    Raises:
        UsageError: a field that cannot be used, or a package that is not installed.
        DataError: the task's data is missing or damaged.
    """
    config = parts.config
    if config.checkpoint.best and not config.evaluation.questions:
        domain = "0 for a run without evaluations (evaluation.questions is 0)"
        raise ConfigError("checkpoint.best", domain, config.checkpoint.best)
    check_decay(config)
    # The first process alone logs.
    processes.on_first(lambda: reporting.check_loggers(config.logging))
    check_prompts(parts)
    if config.evaluation.questions:
        _check_encoded(parts, evaluation_questions(parts))
        refuse_contaminated(parts, contains)
    check_demonstrations(parts)


def check_decay(config: Config) -> None:
    """Refuses a run that goes on after its learning rate has decayed to 0.

    Args:
        config: the run's.

    Raises:
        UsageError: naming the field.
    """
    for prefix, steps, optimizer in (
        ("", config.training.steps, config.optimizer),
        ("warm_start.", config.warm_start.steps, config.warm_start.optimizer),
    ):
        ends = optimizer.decay != "none" and not optimizer.final_fraction
        if ends and steps > optimizer.decay_steps:
            domain = (
                f"at least the {steps} of {prefix or 'training.'}steps, since the learning rate is"
                " 0 after the decay unless final_fraction is above 0"
            )
            raise ConfigError(f"{prefix}optimizer.decay_steps", domain, optimizer.decay_steps)


def check_prompts(parts: build.Parts) -> None:
    """Checks the prompts of the run's first call of the sampler, if it samples.

    Raises:
        UsageError: a setting that a task with environments cannot have.
        DataError: the task's data is missing, or a prompt cannot be used.
    """
    config = parts.config
    if is_environment(parts.task):
        if processes.many():
            raise UsageError(
                f"task {config.task.name} has environments, in which several processes cannot"
                " sample together: use one process, with explorers on a cluster (cluster.address)"
            )
        if config.sampling.record_routes:
            domain = f"false for task {config.task.name}, which has environments"
            raise ConfigError("sampling.record_routes", domain, True)
    if not config.samples:
        return
    first = config.schedule.sampled(0, config.training.steps)
    # Later prompts are checked when they are sampled.
    first = first[: call_of(config.sampling, len(first)).prompts]
    _check_encoded(parts, drawn(parts.task, first))
    if not is_environment(parts.task):
        limit = config.sampling.max_prompt_tokens
        # Raises before the run if no prompt is within the limit.
        fitting_questions(parts.task, parts.tokenizer, limit, first[:1])


def _check_encoded(parts: build.Parts, questions: Iterable[Question]) -> None:
    """Checks prompts within the limit and reports the others, which are left out."""
    limit = parts.config.sampling.max_prompt_tokens
    overlong = 0
    for question, tokens in prompts(parts, questions):
        if len(tokens) > limit:
            overlong += 1
        else:
            check_prompt(question.question_id, tokens, limit, parts.model.config.vocab_size)
    report_overlong(overlong, limit)


def stored_data(config: Config) -> bool:
    """Returns True if a step has groups whose age is unknown."""
    return bool(config.data.path or config.data.mix)


def left_out(config: Config, objective: Objective) -> Iterator[str]:
    """Lists what the objective and the defaults leave out of training, a line each.

    Args:
        config: the run's.
        objective: its loss.
    """
    if stored_data(config) and config.data.drop_zero_variance:
        kept = ", but an expert's" if "expert" in objective.requires else ""
        yield f"stored groups whose rewards are all equal{kept} (data.drop_zero_variance)"
    yield from (part.drops for part in (*objective.shaping, objective.advantage) if part.drops)
    if objective.filter:
        yield f"responses that filter={objective.filter.name} does not pass"
