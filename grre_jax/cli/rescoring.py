"""`grre rollouts rescore`, `reverify` and the comparison of `verify --model`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from typing import TYPE_CHECKING

from grre_jax.cli.parsing import add_command
from grre_jax.console import make_console, make_table, progress_bar
from grre_jax.errors import UsageError

if TYPE_CHECKING:
    from grre_jax.rollouts.tools.reverify import Changes

MOST_ROWS = 20  # of the table of changes


def add_parsers(actions: argparse._SubParsersAction) -> None:
    """Adds `rescore` and `reverify` to the actions of `grre rollouts`."""
    add_command(
        actions,
        "rescore",
        _rescore,
        "log-probs of stored completions under a checkpoint",
        """
        folder FOLDER: a rollout folder
        --model MODEL|RUN[:STEP]!: a Hugging Face folder, or a run's checkpoint, the
            last without a step
        --output FOLDER!: the new folder
        --as ROLE [behavior]: behavior, reference or proximal
        --temperature X: of the log-probs; each group's if not given
        --replace: overwrite existing log-probs of that role
        --dtype DTYPE []: of the parameters; float32, or the run's, if not given
        --compute-dtype DTYPE []: of the activations; the parameters' if not given
        """,
        description="Copies a folder with the log-probs of its completions under a policy, for data"
        " that has none, or as those of a reference or proximal policy. A copy that was interrupted"
        " continues where it stopped.",
        computes=True,
    )
    add_command(
        actions,
        "reverify",
        _reverify,
        "rewards of stored completions under another verifier",
        """
        folder FOLDER: a rollout folder
        --task NAME!: a task's name, or FILE.py:FUNCTION for a task that you define
        --output FOLDER!: the new folder
        """,
        description="Copies a folder with the rewards that a task's verifier gives now, and prints"
        " the changes; the former rewards stay with the groups. Fields of the task are given as for"
        " train: --task.options.NAME VALUE, --task.verify-processes 4, --task.verify-timeout 5.",
        takes_fields=True,
    )


def _rescore(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax import rollouts
    from grre_jax.rollouts.tools.rescore import Request, rescore
    from grre_jax.training.policies import find_scorer

    # Before the weights are read: it may be refused.
    role = getattr(known, "as")
    request = Request(role, known.temperature, known.replace)
    total = len(rollouts.read(known.folder))
    scorer = find_scorer(known.model, dtype=known.dtype, compute_dtype=known.compute_dtype)
    with progress_bar(total, "groups") as done:
        count = rescore(known.folder, known.output, scorer, request, done=done)
    print(
        f"scored {count:,} of {total:,} groups under {known.model} as {role} log-probs:"
        f" {known.output}"
    )
    return 0


def compared(folder: str, model: str) -> int:
    """Prints how far a folder's log-probs are from a model's; returns 0 if they may be its own."""
    from grre_jax import rollouts
    from grre_jax.rollouts.tools.rescore import compare
    from grre_jax.training.policies import find_scorer

    with progress_bar(len(rollouts.read(folder)), "groups") as done:
        found = compare(folder, find_scorer(model), done=done)
    print(f"{found.tokens:,} tokens of {found.groups:,} groups under {model}: {found.described}")
    return 0 if found.plausible else 1


def _reverify(known: argparse.Namespace, rest: list[str]) -> int:
    from grre_jax import rollouts
    from grre_jax.rollouts.tools.reverify import reverify
    from grre_jax.tasks.config import TaskConfig
    from grre_jax.tasks.environments import is_environment
    from grre_jax.tasks.pool import make_judge
    from grre_jax.tasks.provenance import reward_name
    from grre_jax.training.config.overrides import override
    from grre_jax.training.config.run import Config, differences

    plain = Config(name="reverify", task=TaskConfig(known.task))
    config = override(plain, rest)
    changed = differences(dataclasses.asdict(plain), dataclasses.asdict(config))
    if other := [name for name in changed if not name.startswith(("task.", "seed"))] or [
        "task.name"
    ] * (config.task.name != known.task):
        raise UsageError(
            "grre rollouts reverify takes only seed and the other fields of task, got"
            f" {', '.join(other)}"
        )
    task = config.task.build(config.seed)
    if is_environment(task):
        raise UsageError(
            f"task {task.name} has environments: they give rewards while a trajectory is sampled,"
            " and none to a text that is stored; name a task with a verifier"
        )
    judge = make_judge(
        task,
        config.task.spec(config.seed),
        processes=config.task.verify_processes,
        timeout=config.task.verify_timeout,
        failed_reward=config.task.failed_reward,
    )
    described = {
        "task": config.task.name,
        "options": {name: str(value) for name, value in config.task.options.items()},
        "reward": reward_name(task),
    }
    total = len(rollouts.read(known.folder))
    with contextlib.closing(judge), progress_bar(total, "groups") as done:
        changes = reverify(known.folder, known.output, judge, described, done=done)
    _print_changes(changes)
    print(f"wrote {known.output}")
    return 0


def _print_changes(changes: Changes) -> None:
    """Prints the changed rewards with their numbers and examples, and the failures of the
    verifier.
    """
    console, count = make_console(), changes.counts.total()
    if count:
        rows = []
        for kind, number in changes.counts.most_common(MOST_ROWS):
            before, now = map(_reward, kind) if kind else ("others", "others")
            rows.append((before, now, f"{number:,}", ", ".join(changes.examples[kind])))
        titles = ("before", "now", "completions", "for instance")
        console.print(make_table(titles, rows, "changed rewards"))
        if len(changes.counts) > MOST_ROWS:
            console.print(f"and {len(changes.counts) - MOST_ROWS:,} rarer changes")
    for name, number in changes.failures.items():
        console.print(f"{name.replace('_', ' ')}: {number:,}", style="yellow")
    console.print(f"{count:,} of {changes.completions:,} rewards changed")


def _reward(value: float | None) -> str:
    return "no verdict" if value is None else f"{value:g}"
