"""The `grre rollouts` part of the command line."""

from __future__ import annotations

import argparse
from functools import partial

from grre_jax.cli.parsing import add_command
from grre_jax.errors import UsageError
from grre_jax.json_files import json_object

# Names of `rollouts.tools.expression.values`.
WHERE = """
--where EXPR{default}: only groups of which this Python expression holds, such as
    "reward_mean > 0.2 and length_max < 512". Its names: group_id, task, question_id, prompt,
    answer, engine, position, attempt, temperature, top_k, top_p, min_p, seed, rewards, reward_mean,
    reward_std, reward_min, reward_max, has_reward_variance, accuracy, has_accuracy, completions,
    failures, tokens, prompt_tokens, lengths, length_min, length_mean, length_max, version_min,
    version_max, stopped, expert, has_logprobs
"""

_FOLDER = "folder FOLDER: a rollout folder"


def add_parser(commands: argparse._SubParsersAction) -> argparse._SubParsersAction:
    """Adds `rollouts` to the commands; returns its sub-commands, to which others may add."""
    rollouts = commands.add_parser(
        "rollouts", help="look at, check, copy, import and export rollout folders"
    )
    actions = rollouts.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (run, help, *options) in _ACTIONS.items():
        add_command(actions, name, run, help, *options, computes=run is _verify)
    actions.choices["import"].description = (
        "jsonl, parquet: a group or a completion a row; huggingface: a folder of"
        " datasets.save_to_disk; trl: completions that its trainers logged; toolace: its"
        " data.json, as demonstrations; gsm8k-solutions: GSM8K's example_model_solutions.jsonl."
    )
    return actions


def _info(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax.rollouts.tools import commands

    return commands.info(known.folder, known.last)


def _show(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax.rollouts.tools.expression import predicate
    from grre_jax.rollouts.tools.show import show

    return show(
        known.folder,
        known.count,
        start=known.start,
        by=known.by,
        keep=predicate(known.where),
        width=known.width,
    )


def _verify(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax.cli.rescoring import compared
    from grre_jax.rollouts.tools import commands

    if known.model and not known.deep:
        raise UsageError("--model compares log-probs, which only --deep reads: give both")
    status = commands.verify(known.folder, deep=known.deep)
    return status if status or not known.model else compared(known.folder, known.model)


def _merge(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax.rollouts.tools import commands, copying

    options = {"skip_damaged": known.skip_damaged, "keep_duplicates": known.keep_duplicates}
    return commands.print_copy(copying.merge(known.folders, known.output, **options))


def _filter(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax.rollouts.tools import commands, copying
    from grre_jax.rollouts.tools.expression import predicate

    keep = predicate(known.where)
    return commands.print_copy(copying.filter(known.folder, known.output, keep, known.where))


def _export(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax.rollouts.tools import commands

    return commands.export(known.folder, known.path)


def _import(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax.rollouts.tools import commands

    arguments = json_object(known.template_arguments, "--template-arguments")
    templated = known.system_prompt is not None or arguments or known.template_date
    if templated and known.tokenizer is None:
        raise UsageError(
            "--system-prompt, --template-arguments, --template-date: expected --tokenizer beside"
            " them, got none. Add it."
        )
    options = {"mapping": commands.read_mapping(known.mapping)} if known.mapping else {}
    if known.tokenizer is not None:
        from grre_jax.tasks import load_tokenizer
        from grre_jax.tasks.tokenizers.chat import today

        load = partial(
            load_tokenizer, known.tokenizer, known.system_prompt, template_arguments=arguments
        )
        tokenizer = load(date=known.template_date)
        if getattr(tokenizer, "reads_date", False) and not known.template_date:
            tokenizer = load(date=today())  # so that the fingerprint has it
        options["tokenizer"] = tokenizer
    return commands.import_(
        known.kind,
        known.path,
        known.folder,
        task=known.task,
        contains=tuple(known.contains),
        **options,
    )


_ACTIONS = {
    "info": (
        _info,
        "print the contents of a rollout folder",
        _FOLDER,
        "--last N [10]: number of data sets to list, the newest ones",
    ),
    "show": (
        _show,
        "print groups",
        _FOLDER,
        """
        --count N [3]: number of groups
        --start N [0]: number of the first group; negative from the end
        --by stored|reward|worst [stored]: as stored; or best or worst mean reward first
        --width N [300]: characters of a text before it is cut
        """,
        WHERE.format(default=" [True]"),
    ),
    "verify": (
        _verify,
        "check every checksum and record; ends with status 1 if something is damaged",
        _FOLDER,
        """
        --deep: also find log-probs that no policy can have given, by their values and relations
        --model MODEL|RUN[:STEP]: with --deep: also compare the behaviour log-probs with those of
            the policy that sampled, or one near it
        """,
    ),
    "merge": (
        _merge,
        "copy several folders into a new one; of one folder: fewer, larger data sets",
        """
        folders FOLDER...: rollout folders
        --output NEW!: the folder to make
        --skip-damaged: leave out and report what cannot be read (status 1)
        --keep-duplicates: copy a record again that was copied before
        """,
    ),
    "filter": (
        _filter,
        "copy the groups that fit into a new folder",
        _FOLDER,
        "--output NEW!: the folder to make",
        WHERE.format(default="!"),
    ),
    "export": (
        _export,
        "write a folder as one JSONL or Parquet file, which imports again as it was",
        _FOLDER,
        "path PATH: the file to write, .jsonl or .parquet",
    ),
    "import": (
        _import,
        "make rollouts of foreign data",
        """
        kind jsonl|parquet|huggingface|trl|toolace|gsm8k-solutions: what the file is, see above
        path PATH: the file or folder
        folder FOLDER: the rollout folder to write
        --mapping FILE: JSON object of the columns' names: {"prompt": "question", "reward": "score"}
            and, of trl, the reward columns' weights: {"components": {"accuracy": 1}}
        --tokenizer FOLDER: the policy's tokenizer, which renders chat messages and made the tokens
            that rows have
        --system-prompt TEXT: goes before chat prompts that begin with none, as model.system_prompt
        --template-arguments JSON [{}]: variables of the chat template, as model.template_arguments
        --template-date YYYY-MM-DD []: as model.template_date; today if not given
        --task NAME []: the task's name, where rows have none
        --contains SPLIT...: benchmark split that the questions come from: gsm8k/test
        """,
    ),
}
