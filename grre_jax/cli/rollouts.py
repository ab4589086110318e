"""`grre rollouts`: commands on rollout folders."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any, Literal

from grre_jax.cli.arguments import add_command
from grre_jax.domains import AboveZero, Positive
from grre_jax.errors import UsageError

if TYPE_CHECKING:
    from grre_jax.rollouts import RolloutReader


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Adds `rollouts` to the commands."""
    help = "look at, check, copy, import and export rollout folders"
    actions = commands.add_parser("rollouts", help=help).add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    for run in (info, show, verify, merge, filter_, export, import_, rescore, reverify):
        add_command(actions, run, computes=run in (verify, rescore))


def info(folder: str) -> None:
    """Print the contents of a rollout folder.

    Args:
        folder: a rollout folder.
    """
    from grre_jax.rollouts.tools import inspection

    inspection.info(folder)


def show(folder: str, *, count: Positive = 3, width: Positive = 300, where: str = "True") -> None:
    """Print groups.

    Args:
        folder: a rollout folder.
        count: number of groups.
        width: characters of a text before it is cut.
        where: only groups of which this Python expression holds, as of filter.
    """
    from grre_jax.rollouts.tools import copying, inspection

    inspection.show(folder, count, keep=copying.predicate(where), width=width)


def verify(folder: str) -> int:
    """Check every checksum and record; status 1 if damaged.

    Args:
        folder: a rollout folder.
    """
    from grre_jax.rollouts.tools import inspection

    report = inspection.verify(folder)
    for problem in report.problems:
        print(f"damaged: {problem}")
    print(
        f"{report.folder}: {report.intact_groups:,} of {report.groups:,} groups in"
        f" {report.datasets:,} data sets are intact, {len(report.problems)} problem(s)."
    )
    return 1 if report.problems else 0


def merge(folders: tuple[str, ...], *, output: str) -> None:
    """Copy several folders into a new one, or one into fewer files; of equal groups one.

    Args:
        folders: rollout folders.
        output: the folder to make.
    """
    from grre_jax.rollouts.tools import copying

    _print_copy(copying.merge(folders, output))


def filter_(folder: str, *, output: str, where: str) -> None:
    """Copy the groups that fit into a new folder.

    Args:
        folder: a rollout folder.
        output: the folder to make.
        where: only groups of which this Python expression holds, such as "reward_mean > 0.2 and
            length_max < 512"; an unknown name lists the names.
    """
    from grre_jax.rollouts.tools import copying

    _print_copy(copying.filter(folder, output, copying.predicate(where), where))


def _print_copy(copy: RolloutReader) -> None:
    print(f"{copy.folder}: {len(copy):,} groups, in {len(copy.datasets):,} data sets.")


def export(folder: str, path: str) -> None:
    """Write a folder as one file of JSON lines.

    Args:
        folder: a rollout folder.
        path: the file to write, which ends in .jsonl.
    """
    from grre_jax.rollouts.tools import exchange

    groups = exchange.export(folder, path)
    print(f"Wrote {groups:,} groups to {path}.")


def import_(
    kind: Literal["jsonl", "parquet", "datasets", "trl", "verl"],
    path: str,
    folder: str,
    *,
    mapping: dict[str, Any] | None = None,
    tokenizer: str | None = None,
    system_prompt: str | None = None,
    template_arguments: dict[str, Any] | None = None,
    task: str = "",
    contains: tuple[str, ...] = (),
) -> None:
    """Make rollouts of foreign data.

    jsonl, parquet: a group or a completion a row; datasets: the same, of a folder of
    datasets.save_to_disk or NAME:SPLIT on the Hub; trl: completions that its trainers logged; verl:
    lines of its rollout_data_dir.

    Args:
        kind: what the file is.
        path: the file, folder or name.
        folder: the rollout folder to write.
        mapping: the columns' names as JSON: {"prompt": "question", "reward": "score"}.
        tokenizer: folder of the policy's tokenizer, which renders chat messages and made the tokens
            that rows have.
        system_prompt: goes before chat prompts that begin with none, as model.system_prompt.
        template_arguments: variables of the chat template as JSON, as model.template_arguments.
        task: the task's name, where rows have none.
        contains: benchmark splits that the questions come from, by commas: gsm8k/test.
    """
    from grre_jax import rollouts

    loaded = None
    if tokenizer is not None:
        from grre_jax.tasks import load_tokenizer

        loaded = load_tokenizer(tokenizer, system_prompt, template_arguments=template_arguments)
    elif system_prompt is not None or template_arguments:
        raise UsageError("--system-prompt, --template-arguments: expected --tokenizer beside them")
    # As elsewhere on the command line, commas too.
    splits = tuple(name.strip() for text in contains for name in text.split(","))
    names = rollouts.import_rows(
        kind, path, folder, mapping=mapping, task=task, contains=splits, tokenizer=loaded
    )
    print(f"Imported {path} as {len(names):,} data sets of {folder}.")


def rescore(
    folder: str,
    *,
    model: str,
    output: str,
    as_: Literal["behavior", "reference", "proximal"] = "behavior",
    temperature: AboveZero | None = None,
    replace: bool = False,
    dtype: str = "",
    compute_dtype: str = "",
    cluster: str = "",
) -> None:
    """Add log-probs of stored completions under a checkpoint.

    For data that has none, or as those of a reference or proximal policy.

    Args:
        folder: a rollout folder.
        model: a Hugging Face folder, or RUN[:STEP], a run's checkpoint, the last without a step.
        output: the new folder.
        as_: behavior, reference or proximal.
        temperature: of the log-probs; each group's if not given.
        replace: overwrite existing log-probs of that role.
        dtype: of the parameters; float32, or the run's, if not given.
        compute_dtype: of the activations; the parameters' if not given.
        cluster: local, auto or HOST:PORT of a Ray cluster, each of whose tasks scores a data set.
    """
    from grre_jax import ray_cluster
    from grre_jax.rollouts.tools.rescoring import rescore
    from grre_jax.training.policies import find_scorer

    load = (find_scorer, model, dtype, compute_dtype)
    scorer = find_scorer(model, dtype, compute_dtype)
    with ray_cluster.connected(cluster) as ray:
        rescore(
            folder,
            output,
            scorer,
            role=as_,
            temperature=temperature,
            replace=replace,
            ray=ray,
            load=load,
        )
    print(f"scored under {model} as {as_} log-probs: {output}")


def reverify(folder: str, words: list[str], *, task: str, output: str, cluster: str = "") -> None:
    """Judge stored completions by another verifier.

    Copies a folder with the rewards that a task's verifier gives now. Fields of the task are given
    as for train: --task.verify-timeout 5.

    Args:
        folder: a rollout folder.
        task: a task's name, or FILE.py:FUNCTION for a task that you define.
        output: the new folder.
        cluster: local, auto or HOST:PORT of a Ray cluster, all processors of which judge.
    """
    from grre_jax import ray_cluster
    from grre_jax.rollouts.tools.rescoring import reverify
    from grre_jax.tasks.config import TaskConfig
    from grre_jax.tasks.pool import ClusterJudges, make_judge, start_judges
    from grre_jax.tasks.task import is_environment, reward_name
    from grre_jax.training.config.run import Config, override

    config = override(Config("reverify", task=TaskConfig(task)), words)
    fields = config.task
    if Config("reverify", task=fields, seed=config.seed) != config or fields.name != task:
        raise UsageError(f"expected seed and fields of task but its name, got {' '.join(words)}")
    built = fields.build(config.seed)
    if is_environment(built):
        raise UsageError(f"--task: expected a task with a verifier, got {task!r} with environments")
    described = {
        "task": task,
        "options": {name: str(value) for name, value in fields.options.items()},
        "reward": reward_name(built),
    }
    with ray_cluster.connected(cluster) as ray:
        if ray:
            count = int(ray.cluster_resources().get("CPU", 0)) or 1
            judges = start_judges(ray, fields, config.seed, count)
            judge = ClusterJudges(fields, config.seed, judges)
        else:
            judge = make_judge(built, fields, config.seed)
        with contextlib.closing(judge):
            changes = reverify(folder, output, judge, described)
    print(f"{changes:,} rewards changed: {output}")
