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


def info(folder: str | os.PathLike[str]) -> None:
    """Prints totals and provenance of a rollout folder.

    Args:
        folder: the rollout folder.

    Raises:
        DataError: the folder cannot be read.
    """
    entries = read(folder).datasets
    if not entries:
        raise DataError(f"Rollout folder {folder} has no data sets.")

    def total(name: str) -> int:
        return sum(getattr(entry, name) for entry in entries)

    completions = total("completions")
    failures = total("failures")
    rewards = sum(entry.reward_mean * (entry.completions - entry.failures) for entry in entries)
    versions = [entry.policy_version for entry in entries]
    rows = {
        "data sets": f"{len(entries):,}, {total('bytes') / 2**20:,.1f} MiB",
        "groups": f"{total('groups'):,}",
        "completions": f"{completions:,}, {failures:,} of them without a verdict",
        "tokens": f"{total('tokens'):,}",
        "mean reward": f"{rewards / max(completions - failures, 1):.4f}",
        "policy versions": f"{min(versions)} to {max(versions)}",
        "sealed (UTC)": f"{entries[0].created} to {entries[-1].created}",
    }
    for key in dict.fromkeys(key for entry in entries for key in entry.metadata):
        values = [json.dumps(entry.metadata[key]) for entry in entries if key in entry.metadata]
        rows[key.replace("_", " ")] = _cut(", ".join(dict.fromkeys(values)), MOST_CHARACTERS)
    make_console().print(make_table((), rows.items()))


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
    print(f"group {number}: {group.group_id}, question {group.question_id}, of {entry.name}")
    print(f"log-probs: {', '.join(logprobs) or 'none'}")
    print(f"prompt: {_cut(group.prompt, width)}")
    print(f"answer: {_cut(group.answer, width)}")
    for k in np.argsort(-group.rewards, kind="stable"):  # those without a reward last
        if group.judged[k]:
            components = {name: row[k] for name, row in group.components.items()}
            rewards = {"reward": group.rewards[k]} | components
            verdict = ", ".join(f"{name} {value:g}" for name, value in rewards.items())
        else:
            reasons = group.extra.get(REASONS) or [""] * group.num_completions
            verdict = f"no verdict ({group.extra[FIELD][k]}: {reasons[k]})"
        print(
            f"completion: {verdict}, ended {group.finish_reasons[k]}, tokens {group.lengths[k]},"
            f" version {group.policy_version[k]}, source {group.sources[k] or 'policy'}"
        )
        for text in pieces(group, k):
            print("  " + _cut(text, width).replace("\n", "\n  "))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[:width] + f"… ({len(text) - width:,} more)"
