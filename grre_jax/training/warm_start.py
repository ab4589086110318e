"""Supervised training on demonstrations before everything else, read back from shards like all
data.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from grre_jax import objectives, reporting, rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.parallel import mesh as meshes, processes
from grre_jax.random_streams import Purpose, run_key
from grre_jax.rollouts import Group
from grre_jax.rollouts.dataset import check_limits
from grre_jax.tasks import Question
from grre_jax.tasks.task import is_environment, questions
from grre_jax.training import build
from grre_jax.training.actors.calls import evaluation_call, report_overlong, training_call
from grre_jax.training.actors.explorer import make_explorer
from grre_jax.training.actors.supply import refresh_together
from grre_jax.training.actors.trajectories import Play, environment_seed
from grre_jax.training.data.batches import place
from grre_jax.training.data.pack import BatchShape
from grre_jax.training.data.sources import limits
from grre_jax.training.evaluation import make_evaluator
from grre_jax.training.learner import compiling
from grre_jax.training.metrics import DelayedMetrics
from grre_jax.training.step import fresh, make_train_step
from grre_jax.training.stopping import StopRequest

# Demonstrations are at distant positions of the prompt stream, so that the run itself asks other
# questions.
DEMONSTRATIONS_FROM = 1 << 30


def warm_start(
    parts: build.Parts,
    params: Any,
    folder: Path,
    log: reporting.RunLog,
    stop: StopRequest,
    console: Any,
) -> Any:
    """Trains on demonstrations, which are sealed in the run's folder first.

    Imitation is AsymRE with beta = 1 on equal rewards: its advantage is then 1 for every response.

    Args:
        parts: model, task and configuration.
        params: the trained parameters to begin with.
        folder: the run's; demonstrations are sealed in it.
        log: takes a row a step.
        stop: of signals.
        console: for the progress.

    Returns:
        The trained parameters.

    Raises:
        UsageError: the task has no demonstrations.
        DataError: a demonstration is empty.
        stopping.Stopped: by SIGTERM or SIGINT; the warm start begins again on resume.
    """
    config = parts.config
    warm = parts.config.warm_start
    shape = BatchShape.of_run(
        warm.batch_size, 1, *limits(config), 0, 0, meshes.row_devices(parts.mesh)
    )
    imitate = objectives.algorithm("asymre", beta=1.0)
    balance = config.training.router_balance
    step_fn = make_train_step(parts.graph, warm.optimizer, parts.mesh, balance)
    state = fresh(params, warm.optimizer, parts.mesh)
    progress = reporting.TrainingProgress(
        warm.steps, kind="warm_start", description="warm start", console=console
    )
    key = run_key(config.seed, Purpose.WARM_START)
    # At temperature 1, since demonstrations were drawn at none.
    temperature = np.float32(1.0)
    with progress as bar:
        bar.phase(f"compiling, writing {warm.demonstrations:,} demonstrations")
        # A batch of one group has the shapes of every other one. The first step's demonstrations
        # were checked: one of them is within the limits.
        one = next(_fitting_groups(parts, warm.batch_size))
        batch = place([one], shape, imitate, parts.mesh)
        with (
            ThreadPoolExecutor(1, thread_name_prefix="compiler") as pool,
            compiling(step_fn, state, batch, imitate, temperature, key, None, parts.frozen),
        ):
            compiled = pool.submit(_compile_calls, parts, params)
            order = _demonstrations(parts, folder)
            compiled.result()
        pending = DelayedMetrics(log, time.monotonic(), bar.update, kind="warm_start")
        for step in range(warm.steps):
            batch = place(order[step], shape, imitate, parts.mesh)
            state, metrics = step_fn(state, batch, imitate, temperature, key, None, parts.frozen)
            pending.swap(step + 1, metrics)
            if stop.agreed():
                raise stop.stopped("in the warm start, which starts anew with --resume")
        pending.swap(warm.steps, None)
    return state.params


def _compile_calls(parts: build.Parts, params: Any) -> None:
    """Compiles the calls of the sampler; none for environments, or for several devices, whose
    programs must be started by one thread.
    """
    config = parts.config
    if parts.mesh.size > 1 or is_environment(parts.task):
        return
    evaluator = make_evaluator(parts)
    # A dictionary: at temperature 0 both are one explorer, which is compiled once.
    calls = dict.fromkeys((evaluator.sampled, evaluator.greedy), evaluation_call(config))
    if not config.cluster.samples:
        calls[make_explorer(parts)] = training_call(config)
    for explorer, call in calls.items():
        if explorer and call:
            explorer.compile(parts.full(params), call.prompts)


def _demonstrations(parts: build.Parts, folder: Path) -> rollouts.TrainingOrder:
    """Seals the demonstrations if the run's folder has none yet, and returns the groups of every
    step.
    """
    warm = parts.config.warm_start
    store = folder / "warm_start"
    store.mkdir(exist_ok=True)
    reader = rollouts.read(store)

    def write() -> None:
        if len(reader) == 0:
            groups = _fitting_groups(parts, warm.demonstrations)
            rollouts.write(store, groups, writer="demonstrations", metadata=parts.provenance())

    processes.on_first(write)
    refresh_together(reader)
    source = (reader, range(len(reader)))
    return rollouts.TrainingOrder([source], parts.config.seed, warm.batch_size)


def check_demonstrations(parts: build.Parts) -> None:
    """Checks the demonstrations of the warm start's first step, if the run has a warm start.

    Raises:
        UsageError: the task has no demonstrations.
        DataError: all are over the limits, or one is empty.
    """
    warm = parts.config.warm_start
    count = min(warm.batch_size, warm.demonstrations)
    if warm.steps and not list(_fitting_groups(parts, count)):
        prompt, new = limits(parts.config)
        raise DataError(
            f"task {parts.task.name}: the {count} demonstrations of a step are over"
            f" sampling.max_prompt_tokens = {prompt} or sampling.max_new_tokens = {new}. Raise the"
            " limit, or set warm_start.steps to 0."
        )


def _fitting_groups(parts: build.Parts, count: int) -> Iterator[Group]:
    """Yields those of the first `count` demonstrations that are within the limits, and reports the
    others at the end.
    """
    max_prompt_tokens, max_new_tokens = limits(parts.config)
    prompts = 0
    demonstrations = 0
    positions = range(DEMONSTRATIONS_FROM, DEMONSTRATIONS_FROM + count)
    for position, question in zip(positions, questions(parts.task, positions), strict=True):
        group = _demonstration_group(parts, position, question)
        if len(group.prompt_tokens) > max_prompt_tokens:
            prompts += 1
        elif group.lengths[0] > max_new_tokens:
            demonstrations += 1
        else:
            check_limits(group, max_prompt_tokens, max_new_tokens)
            yield group
    report_overlong(prompts, max_prompt_tokens)
    report_overlong(demonstrations, max_new_tokens, "sampling.max_new_tokens")


def _demonstration_group(parts: build.Parts, position: int, question: Question) -> Group:
    task = parts.task
    tokenizer = parts.tokenizer
    seed = parts.config.seed
    environment = is_environment(task)
    shown = question.demonstration
    if environment:
        demonstrate = getattr(task, "demonstration", lambda *_: None)
        shown = demonstrate(question, environment_seed(seed, position, 0))
    if shown is None:
        raise UsageError(
            f"task {task.name} has no demonstrations to start from: set warm_start.steps to 0"
        )
    if environment:
        play = Play(task, tokenizer, parts.judge, seed, 1)
        fields = play.demonstration(question, position, shown)
    else:
        tokens = np.array(tokenizer.encode_completion(shown), np.int32)
        fields = {
            "prompt": question.prompt,
            "prompt_tokens": np.array(tokenizer.encode_prompt(question), np.int32),
            "lengths": np.array([len(tokens)], np.int32),
            "tokens": tokens,
            "texts": [shown],
        }
    return Group(
        group_id=f"demonstration:{position}",
        position=position,
        task=task.name,
        question_id=question.question_id,
        answer=question.answer,
        sources=["demonstration"],
        seed=seed,
        # In place of an environment's reward: imitation needs equal ones.
        **(fields | {"rewards": [1.0]}),
    )
