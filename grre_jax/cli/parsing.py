"""Parts that commands share: their parsers, options of several processes, an end by a signal."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

CONFIG = "config CONFIG: a Python file with config() -> grre_jax.config.Config"
# Options of several processes.
PROCESSES = """
    --coordinator HOST:PORT: address of process 0, with a free port of its host
    --num-processes N: number of processes; 1 for this one alone, on any machine
    --process-id N: index of this process, from 0
    --join-timeout N [300]: longest wait for the others at the start, in seconds
"""
_ENTRY = re.compile(
    r"(?P<name>[\w-]+)(?: (?P<value>[^\s[]\S*?))?(?P<many>\.\.\.)?(?P<required>!)?"
    r"(?: \[(?P<default>\S*)\])?: (?P<meaning>.*)"
)
_TYPES = {"N": int, "K": int, "X": float}


def add_command(
    commands: argparse._SubParsersAction,
    name: str,
    run: Callable[[argparse.Namespace, list[str]], int | None],
    help: str,
    *options: str,
    description: str | None = None,
    **defaults: Any,
) -> argparse.ArgumentParser:
    """Adds a command.

    Args:
        commands: of the command line, or of one of its commands.
        name: of the command.
        run: called with the parsed arguments and the words that are left over; returns the exit
            status, or None for 0.
        help: one line on the command.
        *options: its arguments and options, see `add_options`.
        description: the paragraph of its own help.
        **defaults: of the parsed arguments: `takes_fields` if the words that are left over are
            fields of a configuration, `computes` if the process runs JAX programs.

    Returns:
        The command's parser.
    """
    parser = commands.add_parser(name, help=help, description=description, allow_abbrev=False)
    parser.set_defaults(run=run, **defaults)
    for some in options:
        if some is PROCESSES:
            several = parser.add_argument_group(
                "several processes",
                "The same command in every process. On TPU pods, under Slurm and on GKE the"
                " processes find each other; elsewhere, say how. They must share the run folder.",
            )
            add_options(several, some)
        else:
            add_options(parser, some)
    return parser


def add_options(parser: argparse._ActionsContainer, text: str) -> None:
    """Adds arguments and options to a parser.

    Args:
        parser: of a command, or a group of its options.
        text: an entry a line, its next lines indented: `folder RUN: meaning` for an argument,
            `--deep: meaning` for a flag, `--count N [3]: meaning` for an option with a default,
            which the help repeats. The word after the name stands for the value: N and K are
            integers, X is a float, `a|b` a choice, any other a string. `...` after it: may be given
            several times; `!`: must be given.
    """
    for entry in re.split(r"\n(?=\S)", inspect.cleandoc(text)):
        match = _ENTRY.fullmatch(" ".join(entry.split()))
        name, value, meaning = match["name"], match["value"], match["meaning"].replace("%", "%%")
        options: dict[str, Any] = {}
        if value is None:
            options["action"] = "store_true"
        elif re.fullmatch(r"[a-z0-9-]+(\|[a-z0-9-]+)+", value):
            options["choices"] = value.split("|")
        else:
            options |= {"metavar": value, "type": _TYPES.get(value, str)}
        if match["many"]:
            is_option = name.startswith("--")
            options |= {"action": "append", "default": []} if is_option else {"nargs": "+"}
            meaning += "; may be given several times" * is_option
        if match["required"]:
            options["required"] = True
        if match["default"] is not None:
            options["default"] = options.get("type", str)(match["default"])
            meaning += f"; {match['default']} if not given" * bool(match["default"])
        parser.add_argument(name, help=meaning, **options)


def joined(known: argparse.Namespace, **options: Any) -> AbstractContextManager[None]:
    """Returns the context in which this process has joined the others."""
    from grre_jax.parallel import distributed

    own = (known.coordinator, known.num_processes, known.process_id)
    return distributed.joined(*own, timeout=known.join_timeout, **options)


def run_joined(known: argparse.Namespace, work: Callable[[], object]) -> int:
    """Runs `work` with the other processes; returns 0, or the exit status of the signal that ended
    it, which is printed.
    """
    from grre_jax.training.runtime import stopping

    try:
        with joined(known, agreed=(stopping.Stopped,)):
            work()
    except stopping.Stopped as stopped:
        print(f"grre: {stopped}", file=sys.stderr)
        return stopped.exit_status
    return 0


def configured(known: argparse.Namespace, words: list[str]) -> Any:
    """Returns the configuration of `known.config` with the fields that the words override."""
    from grre_jax.training.config import run as configs
    from grre_jax.training.config.overrides import override

    return override(configs.load_file(known.config), words)


def configured_run(known: argparse.Namespace, words: list[str]) -> Any:
    """As `configured`, of a command that runs the configuration's programs: this process then keeps
    what it compiles where the configuration says.
    """
    from grre_jax.machine import keep_compiled

    config = configured(known, words)
    keep_compiled(config.compiled)
    return config
