"""The output of `grre rollouts info | show`: totals and provenance, and groups."""

import heapq
import itertools
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from grre_jax.console import make_console, make_table
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts.manifest import Entry
from grre_jax.rollouts.reader import RolloutReader, read
from grre_jax.rollouts.schema import LOGPROB_FIELDS, Group
from grre_jax.rollouts.views import pieces
from grre_jax.tasks.judging import FIELD, REASONS
from grre_jax.tasks.task import CORRECT

if TYPE_CHECKING:
    from rich.console import Console


def info(folder: str | os.PathLike[str], last: int = 10) -> None:
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
    console = make_console()
    entries = _nonempty(folder).datasets
    console.print(make_table((), totals(entries).items()))
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


def totals(entries: tuple[Entry, ...]) -> dict[str, str]:
    """Returns totals of data sets and their provenance, as texts by name."""
    completions = sum(entry.completions for entry in entries)
    failures = sum(entry.failures for entry in entries)
    rewards = sum(entry.reward_mean * (entry.completions - entry.failures) for entry in entries)
    versions = [entry.policy_version for entry in entries]
    runs = [run for entry in entries for run in entry.positions if run[0] >= 0]
    places = [place for first, count in runs for place in (first, first + count - 1)] or ["none"]
    times = [_time(entry) for entry in entries]
    rows = {
        "data sets": f"{len(entries):,}, {size(sum(entry.bytes for entry in entries))}",
        "groups": f"{sum(entry.groups for entry in entries):,}",
        "completions": f"{completions:,}",
        "tokens": f"{sum(entry.tokens for entry in entries):,}",
        "mean reward": f"{rewards / max(completions - failures, 1):.4f}",
        "without a verdict": f"{failures:,} completions",
        "policy versions": f"{_version(min(versions))} to {_version(max(versions))}",
        "positions": f"{min(places)} to {max(places)}",
        "sealed (UTC)": f"{min(times)} to {max(times)}",
        "writers": ", ".join(sorted({entry.writer for entry in entries})),
    }
    for key in dict.fromkeys(key for entry in entries for key in entry.metadata):
        found = (_text(entry.metadata[key]) for entry in entries if key in entry.metadata)
        values = list(dict.fromkeys(found))
        more = f" and {len(values) - 3:,} more" if len(values) > 3 else ""
        rows[key.replace("_", " ")] = ", ".join(values[:3]) + more
    return rows


def show(
    folder: str | os.PathLike[str],
    count: int = 3,
    *,
    start: int = 0,
    by: str = "stored",
    keep: Callable[[Group], bool] = lambda group: True,
    width: int = 300,
) -> None:
    """Prints groups: prompt, answer, and the completions with their rewards, best first.

    Args:
        folder: the rollout folder.
        count: number of groups.
        start: number of the first group; negative counts from the end.
        by: "stored", the order in which they were sealed; "reward", the highest mean reward first;
            "worst", the lowest first.
        keep: only groups for which this is True.
        width: characters of a text shown; the rest is cut.

    Raises:
        UsageError: a count or width below 1.
        DataError: the folder cannot be read, or no group fits.
    """
    if count < 1 or width < 1:
        raise UsageError(
            f"Cannot show {count} groups with {width} characters a text; give at least 1 of each."
        )
    reader = _nonempty(folder)
    numbers = range(len(reader))[start:]
    selected = ((number, group) for number in numbers if keep(group := reader[number]))
    if by == "stored":
        shown = list(itertools.islice(selected, count))
    else:
        sign = 1 if by == "worst" else -1
        judged = (item for item in selected if item[1].judged.any())
        shown = heapq.nsmallest(
            count, judged, lambda item: (sign * item[1].judged_rewards.mean(), item[0])
        )
    if not shown:
        raise DataError(
            f"No group of {reader.folder} matches; it has {len(reader):,}: loosen the filters."
        )
    console = make_console()
    for number, group in shown:
        _print_group(console, number, reader.locate(number)[0], group, width)


def _print_group(console: "Console", number: int, entry: Entry, group: Group, width: int) -> None:
    """Prints one group."""
    from rich.padding import Padding
    from rich.text import Text

    known = [name for name in LOGPROB_FIELDS if getattr(group, name) is not None]
    facts = [f"group {number}: {group.group_id}", f"data set {entry.name}"]
    facts += [f"question {group.question_id or '?'}"]
    facts += [f"position {group.position}"] if group.position >= 0 else []
    played = f"{group.environment} {group.environment_version}".strip()
    facts += [f"environment {played}, seed {group.environment_seed}"] if played else []
    facts += [f"log-probs: {', '.join(name.removesuffix('_logprobs') for name in known) or 'none'}"]
    print_plain(console, " · ".join(facts), "bold")
    print_plain(console, f"prompt: {_cut(group.prompt, width)}")
    print_plain(console, f"answer: {_cut(group.answer, width)}")
    if absent := int((~group.judged).sum()):
        print_plain(console, f"{absent} of {group.num_completions} completions without a verdict")
    for k in np.argsort(-group.rewards, kind="stable"):  # those without a reward last
        said = _verdict(group, k)
        said |= {
            "ended": group.finish_reasons[k],
            "tokens": str(group.lengths[k]) if group.lengths[k] else "",
            "version": _version(int(group.policy_version[k])),
            "source": (group.sources[k] or "policy") + " (expert)" * bool(group.is_expert[k]),
        }
        shown = ", ".join(f"{name} {value}" for name, value in said.items() if value)
        print_plain(console, f"completion: {shown}", "dim")
        for text in pieces(group, k):
            console.print(Padding(Text(_cut(text, width)), (0, 0, 0, 2)))


def _verdict(group: Group, k: int) -> dict[str, str]:
    """Returns the verdict on a completion by name, or the reason why there is none."""
    if not group.judged[k]:
        reasons = group.extra.get(REASONS) or [""] * group.num_completions
        return {"no verdict": f"({group.extra[FIELD][k]}: {reasons[k]})"}
    verdict = {"reward": f"{group.rewards[k]:g}"}
    if group.correct is not None:
        verdict[CORRECT] = "yes" if group.correct[k] else "no"
    others = group.components.items()
    return verdict | {name: f"{row[k]:g}" for name, row in others if name not in verdict}


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[:width] + f"… ({len(text) - width:,} more)"


def print_plain(console: "Console", text: str, style: str = "") -> None:
    """Prints a text unchanged, in a style."""
    console.print(text, style=style, markup=False, highlight=False)


def size(bytes: int) -> str:
    """Returns a number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if bytes < 1024:
            return f"{bytes:,.0f} {unit}" if unit == "B" else f"{bytes:,.1f} {unit}"
        bytes /= 1024
    return f"{bytes:,.1f} GiB"


def _nonempty(folder: str | os.PathLike[str]) -> RolloutReader:
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


def _time(entry: Entry) -> str:
    return entry.created[:19].replace("T", " ")


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _version(version: int) -> str:
    return "unknown" if version < 0 else str(version)
