"""The output of `grre rollouts info | verify | import | export | merge | filter`.

Each function returns the exit status.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grre_jax.console import make_console, make_table
from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import json_object
from grre_jax.rollouts.manifest import Entry
from grre_jax.rollouts.reader import RolloutReader, read
from grre_jax.rollouts.tools import copying
from grre_jax.rollouts.tools.exchange import exporters, importers
from grre_jax.rollouts.tools.verify import verify as verify_folder

if TYPE_CHECKING:
    from rich.console import Console

    from grre_jax.tasks import Tokenizer

MOST_LISTED = 20  # of duplicates and other files


def info(folder: str | os.PathLike[str], last: int = 10) -> int:
    """Prints totals and provenance of a rollout folder, and its newest data sets.

    Args:
        folder: the rollout folder.
        last: number of data sets to list, the newest ones.

    Raises:
        UsageError: `last` is below 1.
        DataError: the folder cannot be read.
    """
    if last < 1:
        raise UsageError(f"--last: expected 1 or more, got {last}.")
    console, entries = make_console(), nonempty(folder).datasets
    console.print(make_table((), _totals(entries)))
    rows = [
        (
            entry.name,
            f"{entry.groups:,}",
            f"{entry.tokens:,}",
            f"{entry.reward_mean:.3f}",
            _time(entry),
        )
        for entry in entries[-last:]
    ]
    columns = ("data set", "groups", "tokens", "reward", "sealed (UTC)")
    console.print(make_table(columns, rows, f"newest of {len(entries):,} data sets"))
    return 0


def verify(folder: str | os.PathLike[str], *, deep: bool = False) -> int:
    """Reads a rollout folder in full, prints its damage, and returns 0 if there is no damage, 1
    otherwise.

    Args:
        folder: the rollout folder.
        deep: also look for log-probs that no policy can have given.

    Raises:
        DataError: the folder does not exist or is not a rollout folder.
    """
    console, report = make_console(), verify_folder(folder, deep=deep)
    for problem in report.problems:
        print_plain(console, f"damaged: {problem}", "red")
    for kind, names in (
        ("duplicate, of which the first counts", report.duplicates),
        ("ignored, not in the manifest", report.ignored),
        ("being written, or left by a killed writer", report.incomplete),
    ):
        for name in names[:MOST_LISTED]:
            print_plain(console, f"{kind}: {name}", "yellow")
        if len(names) > MOST_LISTED:
            print_plain(console, f"{kind}: {len(names) - MOST_LISTED:,} more", "yellow")
    damage = f"{len(report.problems)} problem(s), {report.intact_groups:,} groups intact"
    print_plain(
        console,
        f"{report.folder}: {report.datasets:,} data sets, {report.groups:,} groups,"
        f" {_size(report.bytes)}: {damage if report.problems else 'all intact'}",
    )
    return 1 if report.problems else 0


def import_(
    kind: str,
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    mapping: dict[str, Any] | None = None,
    task: str = "",
    contains: tuple[str, ...] = (),
    tokenizer: "Tokenizer | None" = None,
) -> int:
    """Imports a file into a rollout folder and prints the number of groups and completions.

    Args:
        kind: the file's format: a name in `sources.READERS`, or gsm8k-solutions.
        path: the file.
        folder: the rollout folder, made when it does not exist.
        mapping: the file's own column names by the importer's.
        task: the task's name where rows have none.
        contains: benchmark splits that the questions come from.
        tokenizer: the policy's, which renders chat messages and made the tokens that rows have.

    Raises:
        UsageError: an option that the format does not take, or a file that is already in the
            folder.
        DataError: the file is missing or a line is wrong; nothing is imported then.
    """
    if kind == "gsm8k-solutions":
        if mapping or contains or task or tokenizer is not None:
            raise UsageError(
                f"Format {kind!r} has fixed fields and provenance; give mapping, task, contains and"
                " tokenizer with another format."
            )
        names = [importers.import_gsm8k_solutions(path, folder)]
    else:
        names = importers.import_rows(
            kind, path, folder, mapping=mapping, task=task, contains=contains, tokenizer=tokenizer
        )
    entries = [entry for entry in read(folder).datasets if entry.name in names]
    total = dict(_totals(tuple(entries)))
    what = f"data set {names[0]}" if len(names) == 1 else f"{len(names):,} data sets"
    console = make_console()
    print_plain(
        console,
        f"Imported {total['groups']} groups, {total['completions']} completions, mean reward"
        f" {total['mean reward']}, as {what} of {folder}"
        f" ({_size(sum(entry.bytes for entry in entries))}).",
    )
    if splits := total.get("contains"):
        print_plain(
            console,
            f"Its questions come from {splits}: a model trained on them has seen that split.",
            "yellow",
        )
    return 0


def read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the mapping of a JSON file: an object of the file's column names by field.

    Raises:
        UsageError: the file cannot be read, or has another type.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"--mapping {path}: cannot be read ({error}).") from error
    return json_object(text, f"--mapping {path}")


def export(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Writes a rollout folder to a file, and prints its size.

    See `exporters.export` for arguments and errors.
    """
    groups = exporters.export(folder, path)
    size = _size(Path(path).expanduser().stat().st_size)
    print_plain(make_console(), f"Wrote {groups:,} groups to {path} ({size}).")
    return 0


def print_copy(report: copying.CopyReport) -> int:
    """Prints the report of a copy; returns 0, or 1 if something was damaged."""
    console, left_out = make_console(), ""
    if report.duplicates:
        left_out = f", {report.duplicates:,} left out that were there before"
    print_plain(
        console,
        f"{report.folder}: {report.groups:,} of {report.read:,} groups, in {report.datasets:,}"
        f" data sets{left_out}.",
    )
    for problem in report.damaged:
        print_plain(console, f"left out: {problem}", "red")
    return 1 if report.damaged else 0


def nonempty(folder: str | os.PathLike[str]) -> RolloutReader:
    """Opens a rollout folder that has at least one data set.

    Raises:
        DataError: it does not, or cannot be read.
    """
    reader = read(folder)
    if not reader.datasets:
        raise DataError(
            f"Rollout folder {reader.folder} has no data sets; sample some with `grre train`, or"
            " use `grre rollouts import`."
        )
    return reader


def _totals(entries: tuple[Entry, ...]) -> list[tuple[str, str]]:
    completions = sum(entry.completions for entry in entries)
    failures = sum(entry.failures for entry in entries)
    rewards = sum(entry.reward_mean * (entry.completions - entry.failures) for entry in entries)
    reward = rewards / max(completions - failures, 1)
    versions = [entry.policy_version for entry in entries]
    runs = [run for entry in entries for run in entry.positions if run[0] >= 0]
    ends = [first + count - 1 for first, count in runs]
    spans = {
        "policy versions": [version_name(f(versions)) for f in (min, max)],
        "positions": [str(min(runs)[0]), str(max(ends))] if runs else ["none"],
        "sealed (UTC)": [f(map(_time, entries)) for f in (min, max)],
    }
    rows = {
        "data sets": f"{len(entries):,}, {_size(sum(entry.bytes for entry in entries))}",
        "groups": f"{sum(entry.groups for entry in entries):,}",
        "completions": f"{completions:,}",
        "tokens": f"{sum(entry.tokens for entry in entries):,}",
        "mean reward": f"{reward:.4f}",
        **({"without a verdict": f"{failures:,} completions"} if failures else {}),
        **{name: " to ".join(dict.fromkeys(ends)) for name, ends in spans.items()},
        "writers": ", ".join(sorted({entry.writer for entry in entries})),
    }
    for key in dict.fromkeys(key for entry in entries for key in entry.metadata):
        found = (_text(entry.metadata[key]) for entry in entries if key in entry.metadata)
        values = list(dict.fromkeys(found))
        more = f" and {len(values) - 3:,} more" if len(values) > 3 else ""
        rows[key.replace("_", " ")] = ", ".join(values[:3]) + more
    return list(rows.items())


def _time(entry: Entry) -> str:
    return entry.created[:19].replace("T", " ")


def print_plain(console: "Console", text: str, style: str = "") -> None:
    """Prints a text unchanged, in a style."""
    console.print(text, style=style, markup=False, highlight=False)


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def version_name(version: int) -> str:
    """Returns a policy version for people: "unknown" for -1."""
    return "unknown" if version < 0 else str(version)


def _size(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
