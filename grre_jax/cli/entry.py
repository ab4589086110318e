"""The command line: `grre COMMAND`.

A request that fails ends with one sentence; exit status 2 for usage, 1 for data; no traceback
without --debug.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import grre_jax
from grre_jax.allocation import keep_freed_memory
from grre_jax.cli import evaluate, rescoring, roles, rollouts, sample
from grre_jax.cli.algorithms import algorithms_command
from grre_jax.cli.parsing import (
    CONFIG,
    PROCESSES,
    add_command,
    configured,
    configured_run,
    run_joined,
)
from grre_jax.errors import DataError, UsageError, naming, system_failure


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an encoding may lack dots and dashes
    debug = "--debug" in arguments
    parser = make_parser()
    known, rest = parser.parse_known_args([word for word in arguments if word != "--debug"])
    if rest and not getattr(known, "takes_fields", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    # If jax is loaded, a caller has begun already, with settings of its own.
    if getattr(known, "computes", False) and "jax" not in sys.modules:
        keep_freed_memory()
    try:
        status = known.run(known, rest) or 0
        with naming("standard output"):
            sys.stdout.flush()  # here, where a failure can be reported
        return status
    except KeyboardInterrupt:
        print("grre: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if debug:
            raise
        return _failed(error)


def _failed(error: Exception) -> int:
    """Prints an error and returns the exit status; raises the program's own again."""
    if isinstance(error, BrokenPipeError):
        # `grre algorithms | head`: nobody reads on. Nothing is printed, as rich does with its
        # tables; the interpreter flushes once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, UsageError | DataError):
        print(f"grre: {error}", file=sys.stderr)
        return error.exit_status
    sentence = system_failure(error)
    if sentence is None:
        raise error
    print(f"grre: {sentence}", file=sys.stderr)
    return DataError.exit_status


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of every command."""
    parser = argparse.ArgumentParser(
        prog="grre",
        description=(
            "Off-policy reinforcement learning of language models with group-relative REINFORCE."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"grre_jax {grre_jax.__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_training(commands)
    roles.add_parsers(commands)
    evaluate.add_parser(commands)
    sample.add_parser(commands)
    _add_models_and_reports(commands)
    rescoring.add_parsers(rollouts.add_parser(commands))
    return parser


def _add_training(commands: argparse._SubParsersAction) -> None:
    add_command(
        commands,
        "train",
        _train,
        "run a configuration",
        CONFIG,
        """
        --resume: continue the run in the folder from its last checkpoint
        --overwrite: replace the run in the folder
        --print-config: print every field with its value, and stop
        """,
        PROCESSES,
        description="Trains by the configuration, into its run folder. Any field of the"
        " configuration is overridden by its dotted name: --training.steps 100",
        takes_fields=True,
        computes=True,
    )
    add_command(
        commands,
        "explain",
        _explain,
        "schedule of policy versions, the data of each step and the objective's inputs, before"
        " anything runs",
        CONFIG,
        """
        --steps N: explain the first N steps; the whole run if not given
        --json: print one JSON object
        """,
        description="Reads the configuration alone: no model is built, no device is used. Fields"
        " are overridden as for train.",
        takes_fields=True,
    )
    add_command(
        commands,
        "compile",
        _compile,
        "memory and collectives of a configuration, on a TPU slice without one",
        CONFIG,
        """
        --topology SLICE: generation and sizes of a slice: v5e:16x16, v5p:4x4x4; this machine's
            devices if not given
        --program step|sampler|evaluation: only this one; all programs of the run if not given
        --json: print one JSON object
        """,
        description="Compiles the train step and the calls of the sampler, training's and"
        " evaluation's, and prints memory, collectives, FLOPs and the compiler's cycles. Runs"
        " nothing. Fields are overridden as for train. Ends with status 1 if something does not"
        " fit.",
        takes_fields=True,
    )


def _add_models_and_reports(commands: argparse._SubParsersAction) -> None:
    add_command(
        commands,
        "report",
        _report,
        "summary table and curves of one or several runs",
        """
        folders RUN...: run folders
        --output DIR: the folder for plots/, summary.json and report.html: the run's own for one
            run, A-vs-B beside the first for several, if not given
        --completions N [200]: the most completions of each run on the page
        """,
    )
    add_command(
        commands,
        "algorithms",
        algorithms_command,
        "the objectives, one per line; of NAME also defaults, variants, data, paper and numbers",
    ).add_argument("names", nargs="*", metavar="NAME", help="details of these, with their numbers")
    add_command(
        commands,
        "export",
        _export,
        "write a run's model as a Hugging Face folder",
        """
        folder RUN: a run folder
        output OUTPUT: the folder to write; it must not exist
        --step N: number of the checkpoint; the last if not given
        --adapter: write only the LoRA weights, as a folder that PEFT loads; they are merged into
            the model if not given
        """,
    )
    add_command(
        commands,
        "fetch",
        _fetch,
        "download a model from the Hugging Face Hub",
        """
        repo REPO: its name, such as HuggingFaceTB/SmolLM2-135M-Instruct
        --output DIR: the folder to write; models/ and the last part of the name if not given
        --revision REVISION: a branch, tag or commit; the main branch if not given
        """,
    )


def _train(known: argparse.Namespace, rest: list[str]) -> int:
    if known.print_config:
        print(configured(known, rest).to_json(), end="")
        return 0
    from grre_jax.training import loop

    def train() -> None:  # once the processes are joined: a configuration is Python, may compute
        loop.train(configured_run(known, rest), resume=known.resume, overwrite=known.overwrite)

    return run_joined(known, train)


def _explain(known: argparse.Namespace, rest: list[str]) -> None:
    from grre_jax.explain import command

    command.run(configured(known, rest), steps=known.steps, as_json=known.json)


def _compile(known: argparse.Namespace, rest: list[str]) -> int:
    import dataclasses
    import json

    from grre_jax.planner import compile as compiler

    programs = {"step": ("train step",), None: ()}.get(known.program, (known.program,))
    found = compiler.compile_run(configured(known, rest), known.topology, programs=programs)
    if known.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        print(compiler.as_text(found))
    return 0 if all(report.fits for report in found.programs) else 1


def _report(known: argparse.Namespace, _: list[str]) -> None:
    from grre_jax.reporting import report
    from grre_jax.storage.remote import is_url
    from grre_jax.training import mirror

    urls = [folder for folder in known.folders if is_url(folder)]
    if urls and len(known.folders) > 1 and not known.output:
        raise UsageError(f"--output: expected a folder for several runs with {urls[0]}, got none")
    with contextlib.ExitStack() as stack:
        copies = {
            stack.enter_context(mirror.copied(folder, figures=True)): folder
            for folder in known.folders
        }
        stored = {copy: f"{folder}/rollouts" for copy, folder in copies.items() if folder in urls}
        report([*copies], known.output, completions=known.completions, rollouts=stored)


def _export(known: argparse.Namespace, _: list[str]) -> None:
    from grre_jax.training import mirror, policies

    with mirror.copied(known.folder, steps=[known.step]) as folder:
        step = policies.export(folder, Path(known.output), known.step, adapter=known.adapter)
    print(f"wrote the {'adapter' if known.adapter else 'model'} of step {step} to {known.output}")


def _fetch(known: argparse.Namespace, _: list[str]) -> None:
    from grre_jax.models.checkpoints.fetch import fetch

    output = known.output or f"models/{known.repo.rpartition('/')[2]}"
    print(fetch(known.repo, output, known.revision))
