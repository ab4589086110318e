"""The `grre rollouts` part of the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from grre_jax.cli.parsing import add_command, add_options
from grre_jax.errors import UsageError
from grre_jax.json_files import json_object

if TYPE_CHECKING:
    from grre_jax.rollouts.schema import Group

# Flags that take a range, and what of a group must lie in it: (lowest, highest).
RANGES = {
    "reward": ("reward_mean", "reward_mean", "mean reward"),
    "length": ("length_min", "length_max", "tokens of every completion"),
    "version": ("version_min", "version_max", "policy version of every completion"),
}


_FOLDER = "folder FOLDER: a rollout folder"


def add_parser(commands: argparse._SubParsersAction) -> argparse._SubParsersAction:
    """Adds `rollouts` to the commands; returns its sub-commands, to which others may add."""
    rollouts = commands.add_parser(
        "rollouts", help="look at, check, copy, import and export rollout folders"
    )
    actions = rollouts.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (run, help, *options) in _ACTIONS.items():
        parser = add_command(actions, name, run, help, *options, computes=run is _verify)
        if run in (_show, _filter):
            _add_selection(parser)
    actions.choices["import"].description = (
        "jsonl, parquet: a group or a completion a row; huggingface: a folder of"
        " datasets.save_to_disk; trl: completions that its trainers logged; toolace: its"
        " data.json, as demonstrations; gsm8k-solutions: GSM8K's example_model_solutions.jsonl."
    )
    return actions


def _add_selection(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_argument_group(
        "selection",
        "Groups are taken whole. A range is LOW:HIGH, both included; either may be left out.",
    )
    for flag, (_, _, meaning) in RANGES.items():
        add_options(chosen, f"--{flag} RANGE: only groups with {meaning} in this range")
    add_options(
        chosen,
        """
        --signal: only groups whose rewards differ
        --where EXPR: only groups of which this holds: "reward_mean > 0.2 and length_max < 512"
        """,
    )
    # Else argparse takes a range that begins below 0, as in --reward -1:0.5, for a flag.
    parser._negative_number_matcher = re.compile(r"-[\d.]")


def selection(known: argparse.Namespace) -> tuple[Callable[[Group], bool] | None, str]:
    """Returns the predicate of the selected groups and its expression; None and "" without a
    selection.

    Raises:
        UsageError: a range or an expression that cannot be read.
    """
    from grre_jax.rollouts.tools.expression import predicate

    terms = [
        term
        for flag in RANGES
        if (text := getattr(known, flag)) is not None
        for term in _range(flag, text)
    ]
    terms += ["has_reward_variance"] if known.signal else []
    terms += [f"({known.where})"] if known.where is not None else []
    if known.where is not None:
        predicate(known.where)  # alone: "a) or (b" is an expression only in parentheses
    described = " and ".join(terms)
    return (predicate(described), described) if terms else (None, "")


def _range(flag: str, text: str) -> list[str]:
    low, colon, high = text.partition(":")
    bounds = (low, high if colon else low)
    try:
        numbers = [float(bound) for bound in bounds if bound]
    except ValueError:
        numbers = []
    if not numbers or not all(abs(number) < float("inf") for number in numbers):
        raise UsageError(
            f"--{flag}: expected a range, got {text!r}; give LOW:HIGH, LOW:, :HIGH or a number."
        )
    named = zip(RANGES[flag], (">=", "<="), bounds, strict=False)
    return [f"{name} {sign} {bound}" for name, sign, bound in named if bound]


def _info(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax.rollouts.tools import commands

    return commands.info(known.folder, known.last)


def _show(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax.rollouts.tools.show import show

    chosen = {"position": known.position, "group_id": known.id, "question": known.prompt}
    options = {"start": known.start, "by": known.by, "width": known.width}
    return show(known.folder, known.count, keep=selection(known)[0], **chosen, **options)


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

    keep, described = selection(known)
    if keep is None:
        raise UsageError(
            "filter needs --reward, --length, --version, --signal or --where; to copy everything,"
            " use merge."
        )
    return commands.print_copy(copying.filter(known.folder, known.output, keep, described))


def _export(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax.rollouts.tools import commands

    return commands.export(known.folder, known.path)


def _import(known: argparse.Namespace, _: list[str]) -> int:
    from grre_jax.rollouts.tools import commands

    arguments = json_object(known.template_arguments, "--template-arguments")
    if known.system_prompt is not None and known.tokenizer is None:
        raise UsageError("--system-prompt goes with --tokenizer, whose chat template it is put in.")
    if (arguments or known.template_date) and known.tokenizer is None:
        raise UsageError(
            "--template-arguments, --template-date: expected --tokenizer beside them, got none. Add"
            " it."
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
        --count N [3]: number of groups (with --by prompt: of prompts)
        --start N [0]: number of the first group; negative from the end
        --by stored|reward|worst|prompt [stored]: as stored; best or worst mean reward first; or all
            groups of a prompt together
        --id ID: only groups of this identifier
        --position N: only groups at this position of the prompt stream
        --prompt TEXT: only groups whose question id or prompt contains this
        --width N [300]: characters of a text before it is cut
        """,
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
