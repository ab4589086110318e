"""`grre evaluate` on the command line."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from grre_jax.cli.parsing import PROCESSES, add_command, joined
from grre_jax.cli.sample import add_params, given_params
from grre_jax.errors import UsageError
from grre_jax.storage import files

# Short names of other fields that are often changed in an evaluation.
SHORT = ("questions", "num_samples")


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Adds `evaluate` to the command line's commands."""
    parser = add_command(
        commands,
        "evaluate",
        _evaluate,
        "evaluate a run's checkpoints, or a model",
        """
        folder RUN|MODEL: a run folder, or a Hugging Face folder
        --questions NUMBER: the same as --evaluation.questions
        --num-samples NUMBER: the same as --evaluation.num-samples
        --output FILE: write the result here too, as JSON
        """,
        PROCESSES,
        description="pass@1, pass@k, maj@k and greedy accuracy on held-out questions, with 95%"
        " intervals: of the first and the last checkpoint of a run by its configuration, or of a"
        " model on the task of --task.name. Any field is overridden by its dotted name, also the"
        " fields of evaluation that have the short names below.",
        takes_fields=True,
        computes=True,
    )
    add_params(parser, defaults=False)


def _evaluate(known: argparse.Namespace, rest: list[str]) -> None:
    from grre_jax.parallel import processes
    from grre_jax.training import mirror, policies
    from grre_jax.training.evaluation import command

    given = {name: value for name in SHORT if (value := getattr(known, name)) is not None}
    given |= given_params(known)
    words = [word for name, value in given.items() for word in (f"--evaluation.{name}", f"{value}")]
    output = Path(known.output) if known.output else None
    if output and (output.is_dir() or not os.access(output.resolve().parent, os.W_OK)):
        raise UsageError(f"--output {output}: expected a file in a folder that can be written to")
    with joined(known), mirror.copied(known.folder, steps=(0, None)) as path:
        evaluate = command.evaluate_run if policies.is_run(path) else command.evaluate_model
        result = evaluate(path, [*words, *rest])
        if output and processes.is_first():
            files.replace(output, json.dumps(result, indent=2) + "\n")
