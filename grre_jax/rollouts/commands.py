"""What `grre rollouts info | show | verify | import` print. Each function returns the exit status."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import importers
from grre_jax.rollouts.manifest import Entry
from grre_jax.rollouts.reader import RolloutReader, read
from grre_jax.rollouts.schema import LOGPROB_FIELDS, Group
from grre_jax.rollouts.verify import verify as verify_folder

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

IMPORTERS = {"jsonl": importers.import_jsonl, "gsm8k-solutions": importers.import_gsm8k_solutions}


def info(folder: str | os.PathLike[str], *, last: int = 10, console: "Console | None" = None) -> int:
    """Prints what a rollout folder holds: totals, provenance, and its newest data sets.

    Args:
      folder: the rollout folder.
      last: how many data sets to list, the newest ones.
      console: where to print; standard output by default.

    Raises:
      DataError: the folder cannot be read.
    """
    from rich.table import Table

    console = console or _console()
    entries = _nonempty(folder).datasets
    totals = Table.grid(padding=(0, 2))
    for name, value in _totals(entries):
        totals.add_row(f"[bold]{name}[/bold]", _plain(value))
    console.print(totals)
    table = Table(title=f"newest of {len(entries):,} data sets" if len(entries) > last else "data sets")
    for name in ("data set", "writer", "policy version", "groups", "completions", "tokens", "reward", "positions", "sealed (UTC)"):
        table.add_column(name, justify="left" if name in ("data set", "writer", "sealed (UTC)") else "right")
    for entry in entries[-last:]:
        table.add_row(
            _plain(entry.name),
            _plain(entry.writer),
            _version(entry.policy_version),
            f"{entry.groups:,}",
            f"{entry.completions:,}",
            f"{entry.tokens:,}",
            f"{entry.reward_mean:.3f}",
            _positions((entry,)),
            entry.created[:19].replace("T", " "),
        )
    console.print(table)
    return 0


def show(
    folder: str | os.PathLike[str],
    count: int = 3,
    *,
    start: int = 0,
    position: int | None = None,
    question: str | None = None,
    signal: bool = False,
    width: int = 300,
    console: "Console | None" = None,
) -> int:
    """Prints groups: prompt, answer, and the completions with their rewards, best first.

    Args:
      folder: the rollout folder.
      count: how many groups.
      start: number of the first group looked at; negative counts from the end.
      position: only groups at this place in the prompt stream.
      question: only groups whose question id or prompt contains this.
      signal: only groups whose rewards differ.
      width: characters of a text shown; the rest is cut.
      console: where to print; standard output by default.

    Raises:
      UsageError: a count or width below 1.
      DataError: the folder cannot be read, or no group fits.
    """
    if count < 1 or width < 1:
        raise UsageError(f"Cannot show {count} groups with {width} characters a text; give at least 1 of each.")
    console = console or _console()
    reader = _nonempty(folder)
    shown = 0
    for number in _numbers(reader, start, position):
        group = reader[number]
        asked = question is None or question in group.question_id or question in group.prompt
        if not asked or (signal and not group.has_signal):
            continue
        _print_group(console, number, reader.locate(number)[0], group, width)
        shown += 1
        if shown == count:
            break
    if not shown:
        raise DataError(f"No group of {reader.folder} fits; it holds {len(reader):,}: loosen the filters.")
    return 0


def verify(folder: str | os.PathLike[str], *, console: "Console | None" = None) -> int:
    """Reads a rollout folder in full, prints what is damaged, and returns 0 when nothing is, 1 otherwise.

    Raises:
      DataError: the folder does not exist or is no rollout folder.
    """
    console = console or _console()
    report = verify_folder(folder)
    for problem in report.problems:
        console.print(_plain(f"damaged: {problem}"), style="red")
    for name in report.ignored:
        console.print(_plain(f"ignored: {name} (not in the manifest)"), style="yellow")
    for name in report.incomplete:
        console.print(_plain(f"incomplete: {name} (being written, or left by a killed writer: the next writer removes it)"), style="yellow")
    verdict = "all intact" if report.ok else f"{len(report.problems)} problem(s), {report.intact_groups:,} groups intact"
    console.print(_plain(f"{report.folder}: {report.datasets:,} data sets, {report.groups:,} groups, {_size(report.bytes)}: {verdict}"))
    return 0 if report.ok else 1


def import_(
    kind: str,
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    mapping: dict[str, str] | None = None,
    contains: tuple[str, ...] = (),
    console: "Console | None" = None,
) -> int:
    """Imports a file into a rollout folder and prints what came in.

    Args:
      kind: the file's format: a name in IMPORTERS.
      path: the file.
      folder: the rollout folder, made when it does not exist.
      mapping: for "jsonl": the file's own field names by the importer's.
      contains: for "jsonl": benchmark splits that the questions come from.
      console: where to print; standard output by default.

    Raises:
      UsageError: an unknown format, an option that it does not take, or a file that is already in the folder.
      DataError: the file is missing or a line is wrong; nothing is imported then.
    """
    console = console or _console()
    if kind not in IMPORTERS:
        raise UsageError(f"Unknown format {kind!r}; import one of {', '.join(sorted(IMPORTERS))}.")
    if kind != "jsonl" and (mapping or contains):
        raise UsageError(f"Format {kind!r} has fixed fields and provenance; give mapping and contains with format 'jsonl' only.")
    options = {"mapping": mapping, "contains": contains} if kind == "jsonl" else {}
    name = IMPORTERS[kind](path, folder, **options)
    entry = next(entry for entry in read(folder).datasets if entry.name == name)
    console.print(
        _plain(
            f"Imported {entry.groups:,} groups, {entry.completions:,} completions, mean reward {entry.reward_mean:.3f}, "
            f"as data set {name} of {Path(folder)} ({_size(entry.bytes)})."
        )
    )
    if splits := entry.metadata.get("contains"):
        console.print(_plain(f"Its questions come from {', '.join(splits)}: a model trained on them has seen that split."), style="yellow")
    return 0


def _nonempty(folder: str | os.PathLike[str]) -> RolloutReader:
    reader = read(folder)
    if not reader.datasets:
        raise DataError(f"Rollout folder {reader.folder} holds no data sets; sample some with `grre train`, or use `grre rollouts import`.")
    return reader


def _numbers(reader: RolloutReader, start: int, position: int | None) -> Iterator[int]:
    if position is not None:
        return iter(reader.index.get(position, ()))
    return iter(range(max(0, start + len(reader) if start < 0 else start), len(reader)))


def _totals(entries: tuple[Entry, ...]) -> list[tuple[str, str]]:
    completions = sum(entry.completions for entry in entries)
    reward = sum(entry.reward_mean * entry.completions for entry in entries) / completions
    versions = sorted({entry.policy_version for entry in entries})
    shown_versions = _version(versions[0]) + (f" to {_version(versions[-1])}" if len(versions) > 1 else "")
    rows = [
        ("data sets", f"{len(entries):,}, {_size(sum(entry.bytes for entry in entries))}"),
        ("groups", f"{sum(entry.groups for entry in entries):,}"),
        ("completions", f"{completions:,}"),
        ("tokens", f"{sum(entry.tokens for entry in entries):,}"),
        ("mean reward", f"{reward:.4f}"),
        ("policy versions", shown_versions),
        ("positions", _positions(entries)),
        ("writers", ", ".join(sorted({entry.writer for entry in entries}))),
        ("sealed (UTC)", " to ".join(dict.fromkeys((entries[0].created[:19], entries[-1].created[:19]))).replace("T", " ")),
    ]
    for key in dict.fromkeys(key for entry in entries for key in entry.metadata):
        values = list(dict.fromkeys(_text(entry.metadata[key]) for entry in entries if key in entry.metadata))
        rows.append((key.replace("_", " "), ", ".join(values[:3]) + (f" and {len(values) - 3:,} more" if len(values) > 3 else "")))
    return rows


def _print_group(console: "Console", number: int, entry: Entry, group: Group, width: int) -> None:
    from rich.table import Table

    known = [name for name in LOGPROB_FIELDS if getattr(group, name) is not None]
    facts = [f"group {number}: {group.group_id}", f"data set {entry.name}", f"question {group.question_id or '?'}"]
    facts += [f"position {group.position}"] if group.position >= 0 else []
    facts += [f"log-probs: {', '.join(name.removesuffix('_logprobs') for name in known) or 'none'}"]
    console.print(_plain(" · ".join(facts)), style="bold")
    console.print(_plain(f"prompt: {_cut(group.prompt, width)}"))
    console.print(_plain(f"answer: {_cut(group.answer, width)}"))
    table = Table(show_lines=True)
    for name in ("reward", "ended", "tokens", "version", "source", "completion"):
        table.add_column(name, justify="right" if name in ("reward", "tokens") else "left")
    for k in sorted(range(group.num_completions), key=lambda k: -float(group.rewards[k])):
        table.add_row(
            f"{group.rewards[k]:g}",
            _plain(group.finish_reasons[k]),
            str(group.lengths[k]) if group.lengths[k] else "",
            _version(int(group.policy_version[k])),
            _plain(group.sources[k] or "policy"),
            _plain(_cut(group.texts[k], width)),
        )
    console.print(table)


def _console() -> "Console":
    from rich.console import Console

    return Console()


def _plain(text: str) -> "Text":
    """Text that rich prints as it is: completions are full of square brackets."""
    from rich.text import Text

    return Text(text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[:width] + f"… ({len(text) - width:,} more)"


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _version(version: int) -> str:
    return "unknown" if version < 0 else str(version)


def _positions(entries: tuple[Entry, ...]) -> str:
    runs = [run for entry in entries for run in entry.positions if run[0] >= 0]
    return f"{min(first for first, _ in runs)} to {max(first + count - 1 for first, count in runs)}" if runs else "none"


def _size(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
