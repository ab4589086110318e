"""The final policy of a study's finished run, computed again and written as a model folder."""

from __future__ import annotations

import difflib
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
    scale, entries = _settings(folder / "settings.json")
    run, program, stored = _finished(folder / "runs.jsonl", key)
    entry = entries.get(run.algorithm)
    if entry is None:
        raise DataError(
            f"{folder / 'settings.json'} names no algorithm {run.algorithm!r}: restore it from a"
            " copy"
        )
    with Workers(1) as workers:
        runs = [run] * side_by_side(workers.platform)
        task = (worker.Bench(scale, (entry,), folder).save_policy, output, program, runs)
        ((_, found),) = workers.answers([task])
    _report(stored, found, output, scale, console)
    return found


def _settings(path: Path) -> tuple[Scale, dict[str, Entry]]:
    """Scale and entries, by label, of a study's settings.json."""
    try:
        known = json.loads(path.read_text())
        scale, draws = dict(known["scale"]), known["scale"].get("random_streams")
        scale.pop("random_streams", None)
        options = tuple((name, value) for name, value in scale.pop("task_options"))
        scale = Scale(**scale, task_options=options)
        entries = {
            label: (Entry(label, own["name"], own["options"]), own)
            for label, own in known["entries"].items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is no settings.json of a study's folder ({type(error).__name__}: {error})"
        ) from error
    if draws != random_streams.VERSION:
        raise UsageError(
            f"{path}: its runs have draws of version {draws}, and these are of version"
            f" {random_streams.VERSION}: replay it with the version of grre_jax that made it"
        )
    return scale, {
        label: entry for label, (entry, own) in entries.items() if _unchanged(path, entry, own)
    }


def _unchanged(path: Path, entry: Entry, own: dict[str, Any]) -> bool:
    if entry.own_file is not None and not entry.own_file.exists():
        return False
    if json.loads(json.dumps(entry.identity)) != own:
        raise UsageError(
            f"{path}: the file of {entry.label!r} was edited since its runs: restore it"
        )
    return True


def _finished(path: Path, key: str) -> tuple[Run, Program, Result]:
    """The run of a key, its program and its curves."""
    if not path.exists():
        raise DataError(f"{path} does not exist: name the folder of a study")
    records = Ledger(path).records
    if key not in records:
        near = difflib.get_close_matches(key, records, n=3, cutoff=0)
        raise UsageError(
            f"{path} has no finished run {key!r}: the nearest of its {len(records)} are"
            f" {', '.join(map(repr, near)) or 'none'}"
        )
    record = records[key]
    try:
        run = Run(**record["run"] | {"regime": Regime(**record["run"]["regime"])})
        return run, Program(**record["program"]), record["result"]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path}: the run {key!r} lacks what is needed to compute it again"
            f" ({type(error).__name__}: {error})"
        ) from error


def _report(stored: Result, found: Result, output: Path, scale: Scale, console: Any) -> None:
    same = "the same numbers as stored" if found == stored else "numbers that differ from those"
    if found != stored:
        same += f" stored (greedy accuracy at the end {stored['greedy_accuracy'][-1]})"
    console.print(
        f"computed again: {same}; greedy accuracy at the end {found['greedy_accuracy'][-1]},"
        f" sampled {found['accuracy'][-1]}",
        highlight=False,
    )
    task, options = scale.named_task
    words = " ".join(f"--task.options.{name} {value}" for name, value in options.items())
    console.print(
        f"wrote {output}; evaluate it with: grre evaluate {output} --task.name {task} {words}"
        f" --questions {scale.questions} --num-samples 1 --temperature 0"
        f" --max-new-tokens {scale.task.answer_length}",
        highlight=False,
        soft_wrap=True,
    )


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
