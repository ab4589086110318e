"""The command line: `grre COMMAND`.

A request that fails ends with one sentence; exit status 2 for usage, 1 for data; no traceback
without --debug.
"""

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import grre_jax
from grre_jax.allocation import keep_freed_memory
from grre_jax.cli import rollouts
from grre_jax.cli.arguments import Processes, add_command, call, configured
from grre_jax.console import make_console
from grre_jax.domains import Count, nearest
from grre_jax.errors import DataError, UsageError
from grre_jax.sampling_params import SampleOptions
from grre_jax.storage import files
from grre_jax.storage.remote import is_url

_LEGEND = """The second column is what each needs besides rewards: stored log-probs of the policy
that sampled (old), of the proximal (prox) and the reference policy (ref), and so on.
grre algorithms NAME: defaults, variants, data, paper, and what its numbers mean."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an encoding may lack dots and dashes
    debug = "--debug" in arguments
    parser = make_parser()
    parsed, words = parser.parse_known_args([word for word in arguments if word != "--debug"])
    if words and not getattr(parsed, "takes_fields", False):
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    # If jax is loaded, a caller has begun already, with settings of its own.
    if parsed.computes and "jax" not in sys.modules:
        keep_freed_memory()
    try:
        status = call(parsed, words)
        sys.stdout.flush()  # here, where a failure can be reported
        return status
    except KeyboardInterrupt:
        print("grre: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `grre algorithms | head`: nobody reads on. Nothing is printed, as rich does with its
        # tables; the interpreter flushes once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (UsageError, DataError, OSError) as error:
        if debug:
            raise
        print(f"grre: {error}", file=sys.stderr)
        return getattr(error, "exit_status", DataError.exit_status)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of every command."""
    parser = argparse.ArgumentParser(
        prog="grre",
        description="Off-policy reinforcement learning of language models.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"grre_jax {grre_jax.__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for run in (train, explain, compile_, evaluate, sample):
        add_command(commands, run, computes=run not in (explain, compile_))
    for run in (report, algorithms, export, fetch):
        add_command(commands, run)
    rollouts.add_parser(commands)
    return parser


def train(
    config: str,
    words: list[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    print_config: bool = False,
    processes: Processes,
) -> int:
    """Run a configuration.

    Trains by the configuration, into its run folder. Any field of the configuration is overridden
    by its dotted name: --training.steps 100.

    Args:
        config: a Python file with config() -> grre_jax.config.Config.
        resume: continue the run in the folder from its last checkpoint.
        overwrite: replace the run in the folder.
        print_config: print every field with its value, and stop.
    """
    if print_config:
        print(configured(config, words).to_json(), end="")
        return 0
    from grre_jax.training import loop

    def work() -> None:  # once the processes are joined: a configuration is Python, may compute
        loaded = configured(config, words, computes=True)
        loop.train(loaded, resume=resume, overwrite=overwrite)

    return processes.run(work)


def explain(config: str, words: list[str]) -> None:
    """Show the policy versions and the data of each step.

    Reads the configuration alone: builds no model, uses no device. Fields are overridden as for
    train.

    Args:
        config: a Python file with config() -> grre_jax.config.Config.
    """
    from grre_jax.explain import run

    run(configured(config, words))


def compile_(config: str, words: list[str], *, topology: str | None = None) -> int:
    """Show memory and collectives on a TPU slice, without one.

    Compiles the train step and the calls of the sampler, and prints memory, collectives and the
    compiler's cycles. Fields are overridden as for train. Status 1 if something does not fit.

    Args:
        config: a Python file with config() -> grre_jax.config.Config.
        topology: generation and sizes of a slice, v5e:16x16 or v5p:4x4x4; this machine's devices if
            not given.
    """
    from grre_jax.planner.compile import compile_run

    reports = compile_run(configured(config, words), topology)
    return 0 if all(report.fits for report in reports) else 1


def evaluate(folder: str, words: list[str], *, output: str = "", processes: Processes) -> int:
    """Evaluate a run's checkpoints, or a model.

    pass@1, pass@k, maj@k and greedy accuracy, with 95% intervals: of the first and the last
    checkpoint of a run, or of a model on the task of --task.name. Any field is overridden by its
    dotted name: --evaluation.questions 1000 --evaluation.num-samples 8.

    Args:
        folder: a run folder, or a Hugging Face folder.
        output: write the result to this file too, as JSON.
    """
    path = Path(output)
    if output and (path.is_dir() or not os.access(path.resolve().parent, os.W_OK)):
        raise UsageError(f"--output {output}: expected a file in a folder that can be written to")

    def work() -> None:
        from grre_jax.parallel.processes import is_first
        from grre_jax.training import evaluation, policies, run_folder

        with run_folder.copied(folder, steps=(0, None)) as source:
            run = evaluation.evaluate_run
            if not policies.is_run(source):
                run = evaluation.evaluate_model
            result = run(source, words)
        if output and is_first():
            files.replace(path, json.dumps(result, indent=2) + "\n")

    return processes.run(work)


def sample(options: SampleOptions) -> int:
    """Complete prompts with a model or with a run's last policy.

    Prompts go through the model's chat template if it has one.
    """
    from grre_jax import generation

    return generation.run(options)


def report(folders: tuple[str, ...], *, output: str | None = None, groups: Count = 24) -> None:
    """Write summary table and curves of one or several runs.

    Args:
        folders: run folders, or their URLs.
        output: the folder for plots/, summary.json and report.html; the run's own if not given, for
            one run.
        groups: the most groups of each run on the page, with their completions.
    """
    from grre_jax import reporting
    from grre_jax.training import run_folder

    with contextlib.ExitStack() as stack:
        copies = {stack.enter_context(run_folder.copied(folder)): folder for folder in folders}
        stored = {copy: f"{folder}/rollouts" for copy, folder in copies.items() if is_url(folder)}
        reporting.report([*copies], output, groups=groups, rollouts=stored)


def algorithms(names: tuple[str, ...] = ()) -> None:
    """List the objectives, or one with its defaults and paper.

    Args:
        names: details of these, with their numbers.
    """
    from grre_jax import objectives
    from grre_jax.objectives.objective import hyperparameters
    from grre_jax.objectives.table import NOTATION

    rows = {row.name: row for row in objectives.algorithm_table()}
    for name in names:
        if name not in rows:
            raise UsageError(f"there is no objective {name!r}{nearest(name, rows)}")
    console = make_console()
    meanings = hyperparameters()
    named = [rows[name] for name in names]
    for row in named:
        defaults = (f"{n}={'(must be given)' if v is None else v}" for n, v in row.defaults.items())
        console.print(row.name, style="bold")
        lines = (
            f"loss, or gradient g: {row.formula}",
            f"defaults: {', '.join(defaults)}",
            f"variants: {', '.join(row.variants)}",
            f"needs: {', '.join(sorted({*row.requires, 'rewards'}))}",
            f"paper: {row.paper}, {row.link}",
        )
        for line in lines:
            console.print(f"  {line}", soft_wrap=True)
    for name in dict.fromkeys(name for row in named for name in row.defaults if name in meanings):
        line = f"{name} ({meanings[name].domain}): {meanings[name].meaning}"
        console.print(line, soft_wrap=True)
    if not names:
        width = max(map(len, rows))
        for row in rows.values():  # a line each at any width: for grep
            needs = ", ".join(sorted(row.requires - {"rewards"})).replace("_logprobs", "") or "-"
            console.print(f"{row.name:<{width}}  {needs:<14}  {row.formula}", soft_wrap=True)
        console.print(f"\n{_LEGEND}", style="dim", highlight=False)
    console.print(f"\n{NOTATION}", style="dim", highlight=False)


def export(folder: str, output: str, *, step: int | None = None, adapter: bool = False) -> None:
    """Write a run's model as a Hugging Face folder.

    Args:
        folder: a run folder.
        output: the folder to write; it must not exist.
        step: number of the checkpoint; the last if not given.
        adapter: write only the LoRA weights, as a folder that PEFT loads; they are merged into the
            model if not given.
    """
    from grre_jax.training import policies, run_folder

    with run_folder.copied(folder, steps=[step]) as source:
        step = policies.export(source, Path(output), step, adapter=adapter)
    print(f"wrote the {'adapter' if adapter else 'model'} of step {step} to {output}")


def fetch(repo: str, *, output: str = "", revision: str | None = None) -> None:
    """Download a model from the Hugging Face Hub.

    Args:
        repo: its name, such as HuggingFaceTB/SmolLM2-135M-Instruct.
        output: the folder to write; models/ and the last part of the name if not given.
        revision: a branch, tag or commit; the main branch if not given.
    """
    from grre_jax.models.checkpoints.fetch import fetch

    print(fetch(repo, output or f"models/{repo.rpartition('/')[2]}", revision))
