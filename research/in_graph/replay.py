"""The final policy of a study's finished run, computed again and written as a model folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grre_jax import random_streams
from grre_jax.config import Regime
from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from research import command_line
from research.in_graph import worker
from research.in_graph.batch import Scale
from research.in_graph.campaign import side_by_side
from research.in_graph.workers import Workers
from research.runs import Entry, Ledger, Program, Result, Run


def replay(folder: Path, key: str, output: Path, console: Any) -> Result:
    """Computes a finished run again, with the program that computed it, and writes its final
    policy as a Hugging Face folder that `grre evaluate` takes. Its warm start is made again if the
    folder lacks it.

    Args:
        folder: of the study, with settings.json and runs.jsonl.
        key: of the run in runs.jsonl.
        output: the folder to write; it does not exist or is empty.
        console: to print on.

    Returns:
        The curves of the run, as computed now.

    Raises:
        UsageError: the folder has no such run, its algorithm was edited since, its draws are of
            another version, or `output` is not empty.
        DataError: a file of the folder cannot be read.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"--output {output} exists and is not empty: name another folder")
    records = Ledger(folder / "runs.jsonl").records
    if key not in records:
        raise UsageError(f"{folder / 'runs.jsonl'} has no finished run {key!r}")
    record, path = records[key], folder / "settings.json"
    try:
        known = json.loads(path.read_text())
        shared, own = dict(known["scale"]), known["entries"][record["run"]["algorithm"]]
        draws = shared.pop("random_streams", None)
        scale = Scale(**shared | {"task_options": tuple(map(tuple, shared["task_options"]))})
        run = Run(**record["run"] | {"regime": Regime(**record["run"]["regime"])})
        program, stored = Program(**record["program"]), record["result"]
        entry = Entry(run.algorithm, own["name"], own["options"], own.get("ess_exponent", 0.0))
        identity = json.loads(json.dumps(entry.identity))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} or runs.jsonl beside it lacks what is needed to compute {key!r} again"
            f" ({type(error).__name__}: {error})"
        ) from error
    if draws != random_streams.VERSION:
        raise UsageError(
            f"{path}: its runs have draws of version {draws}, and these are of version"
            f" {random_streams.VERSION}: replay it with the version of grre_jax that made it"
        )
    if identity != own:
        raise UsageError(
            f"{path}: the file of {entry.label!r} was edited since its runs: restore it"
        )
    with Workers(1) as workers:
        runs = [run] * side_by_side(workers.platform)
        task = (worker.Bench(scale, (entry,), folder).save_policy, output, program, runs)
        ((_, found),) = workers.answers([task])
    console.print(
        f"computed again: {'the same' if found == stored else 'other'} numbers as stored; greedy"
        f" accuracy {found['greedy_accuracy'][-1]}, stored {stored['greedy_accuracy'][-1]}",
        highlight=False,
    )
    name, options = scale.named_task
    words = " ".join(f"--task.options.{option} {value}" for option, value in options.items())
    console.print(
        f"wrote {output}; evaluate it with: grre evaluate {output} --task.name {name} {words}"
        f" --evaluation.questions {scale.questions} --evaluation.num-samples 1"
        f" --evaluation.temperature 0 --evaluation.max-new-tokens {scale.task.answer_length}",
        highlight=False,
        soft_wrap=True,
    )
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Replays a run; returns the exit status."""
    parser = command_line.make_parser(
        "in_graph.replay",
        "The final policy of a finished run of claims or staleness, computed again, as a Hugging"
        " Face folder; prints how it is evaluated greedily.",
    )
    parser.add_argument("folder", type=Path, help="the folder of the study")
    parser.add_argument("key", help="the run's key, as runs.jsonl has it")
    parser.add_argument("--output", type=Path, required=True, help="a folder that is empty or new")
    known = parser.parse_args(words)
    command_line.leave_accelerators()
    return command_line.finish(
        lambda: replay(known.folder, known.key, known.output, make_console())
    )


if __name__ == "__main__":
    sys.exit(main())
