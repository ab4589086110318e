"""The output of `grre rollouts info | show`: totals and provenance, and groups."""

import itertools
import json
import os
from collections.abc import Callable

import numpy as np

from grre_jax.console import make_console, make_table
from grre_jax.errors import DataError
from grre_jax.rollouts.manifest import Entry
from grre_jax.rollouts.reader import read
from grre_jax.rollouts.schema import LOGPROB_FIELDS, Group
from grre_jax.rollouts.views import pieces
from grre_jax.tasks.judging import FIELD, REASONS

MOST_CHARACTERS = 300  # of the values of a provenance field


def info(folder: str | os.PathLike[str], last: int = 10) -> None:
    """Prints totals and provenance of a rollout folder, and its newest data sets.

    Args:
        folder: the rollout folder.
        last: number of data sets to list, the newest ones, at least 1.

    Raises:
        DataError: the folder cannot be read.
    """
    console = make_console()
    entries = read(folder).datasets
    if not entries:
        raise DataError(f"Rollout folder {folder} has no data sets.")
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
    rows = {
        "data sets": f"{len(entries):,}, {sum(entry.bytes for entry in entries) / 2**20:,.1f} MiB",
        "groups": f"{sum(entry.groups for entry in entries):,}",
        "completions": f"{completions:,}",
        "tokens": f"{sum(entry.tokens for entry in entries):,}",
        "mean reward": f"{rewards / max(completions - failures, 1):.4f}",
        "without a verdict": f"{failures:,} completions",
        "policy versions": f"{min(versions)} to {max(versions)}",
        "sealed (UTC)": f"{_time(entries[0])} to {_time(entries[-1])}",
        "writers": ", ".join(sorted({entry.writer for entry in entries})),
    }
    for key in dict.fromkeys(key for entry in entries for key in entry.metadata):
        values = [json.dumps(entry.metadata[key]) for entry in entries if key in entry.metadata]
        rows[key.replace("_", " ")] = _cut(", ".join(dict.fromkeys(values)), MOST_CHARACTERS)
    return rows


def show(
    folder: str | os.PathLike[str],
    count: int = 3,
    *,
    start: int = 0,
    keep: Callable[[Group], bool] = lambda group: True,
    width: int = 300,
) -> None:
    """Prints groups: prompt, answer, and the completions with their rewards, best first.

    Args:
        folder: the rollout folder.
        count: number of groups, at least 1.
        start: number of the first group; negative counts from the end.
        keep: only groups for which this is True.
        width: characters of a text shown; the rest is cut.

    Raises:
        DataError: the folder cannot be read, or no group fits.
    """
    reader = read(folder)
    numbers = range(len(reader))[start:]
    selected = ((number, group) for number in numbers if keep(group := reader[number]))
    shown = list(itertools.islice(selected, count))
    if not shown:
        raise DataError(f"No group of {reader.folder} matches, of {len(reader):,}.")
    for number, group in shown:
        _print_group(number, reader.locate(number)[0], group, width)


def _print_group(number: int, entry: Entry, group: Group, width: int) -> None:
    """Prints one group."""
    logprobs = [name for name in LOGPROB_FIELDS if getattr(group, name) is not None]
    played = f"{group.environment} {group.environment_version}".strip()
    facts = {
        f"group {number}": group.group_id,
        "data set": entry.name,
        "question": group.question_id,
        "position": str(group.position) if group.position >= 0 else "",
        "environment": f"{played}, seed {group.environment_seed}" if played else "",
        "log-probs": ", ".join(name.removesuffix("_logprobs") for name in logprobs),
    }
    print(" · ".join(f"{name}: {value}" for name, value in facts.items() if value))
    print(f"prompt: {_cut(group.prompt, width)}")
    print(f"answer: {_cut(group.answer, width)}")
    for k in np.argsort(-group.rewards, kind="stable"):  # those without a reward last
        values = _verdict(group, k) | {
            "ended": group.finish_reasons[k],
            "tokens": str(group.lengths[k]) if group.lengths[k] else "",
            "version": str(group.policy_version[k]),
            "source": (group.sources[k] or "policy") + " (expert)" * bool(group.is_expert[k]),
        }
        print("completion: " + ", ".join(f"{name} {value}" for name, value in values.items()))
        for text in pieces(group, k):
            print("  " + _cut(text, width).replace("\n", "\n  "))


def _verdict(group: Group, k: int) -> dict[str, str]:
    """Returns the verdict on a completion by name, or the reason why there is none."""
    if not group.judged[k]:
        reasons = group.extra.get(REASONS) or [""] * group.num_completions
        return {"no verdict": f"({group.extra[FIELD][k]}: {reasons[k]})"}
    components = {name: f"{row[k]:g}" for name, row in group.components.items()}
    return {"reward": f"{group.rewards[k]:g}"} | components


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[:width] + f"… ({len(text) - width:,} more)"


def _time(entry: Entry) -> str:
    return entry.created[:19].replace("T", " ")
