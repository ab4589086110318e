"""What `grre rollouts info | show | verify` find in a folder: totals and provenance, groups, and
whether every file matches the manifest and every record its own checksum.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from grre_jax.console import make_console, make_table
from grre_jax.errors import DataError
from grre_jax.rollouts import manifest
from grre_jax.rollouts.dataset import pieces
from grre_jax.rollouts.reader import LocalStorage, open_storage, read
from grre_jax.rollouts.schema import LOGPROB_FIELDS, Group
from grre_jax.storage.files import sha256
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

    rewards = sum(entry.reward_mean * (entry.completions - entry.failures) for entry in entries)
    versions = [entry.policy_version for entry in entries]
    judged = total("completions") - total("failures")
    rows = {"data sets": f"{len(entries):,}"}
    rows |= {name: f"{total(name):,}" for name in ("groups", "completions", "failures", "tokens")}
    rows |= {
        "mean reward": f"{rewards / max(judged, 1):.4f}",
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
    keep: Callable[[Group], bool] = lambda group: True,
    width: int = 300,
) -> None:
    """Prints groups: prompt, answer, and the completions with their rewards, best first.

    Args:
        folder: the rollout folder.
        count: number of groups, at least 1.
        keep: only groups for which this is True.
        width: characters of a text shown; the rest is cut.

    Raises:
        DataError: the folder cannot be read, or no group fits.
    """
    reader = read(folder)
    selected = ((number, group) for number, group in enumerate(reader) if keep(group))
    shown = list(itertools.islice(selected, count))
    if not shown:
        raise DataError(f"No group of {reader.folder} matches, of {len(reader):,}.")
    for number, group in shown:
        _print_group(number, reader.locate(number)[0], group, width)


def _print_group(number: int, entry: manifest.Entry, group: Group, width: int) -> None:
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


@dataclasses.dataclass
class VerifyReport:
    """The findings of `verify`.

    Attributes:
        folder: the rollout folder.
        datasets, groups: their numbers in the manifest.
        intact_groups: number of groups that are as they were written.
        problems: errors that name file, record if it is known, and fix.
    """

    folder: Path | str
    datasets: int = 0
    groups: int = 0
    intact_groups: int = 0
    problems: list[DataError] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems


def verify(folder: str | os.PathLike[str]) -> VerifyReport:
    """Reads a rollout folder in full and reports all that is not as it was written.

    Args:
        folder: the rollout folder.

    Raises:
        DataError: the folder does not exist or holds something else. Damage is reported, not
            raised.

    Examples:
        >>> from grre_jax import rollouts
        >>> group = rollouts.Group(group_id="a", prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        >>> name = rollouts.write("my_rollouts", [group], writer="me")
        >>> report = rollouts.verify("my_rollouts")
        >>> report.ok, report.datasets, report.intact_groups
        (True, 1, 1)
    """
    storage = open_storage(folder)
    storage.check()
    report = VerifyReport(storage.root)
    shown = f"{storage.root}/{manifest.FILENAME}"
    names: set[str] = set()
    for entry in manifest.entries(storage.read_manifest(), shown):
        if isinstance(entry, manifest.CorruptManifest):
            report.problems.append(entry)
        elif entry.name not in names:  # a copied line does not count
            names.add(entry.name)
            report.datasets += 1
            report.groups += entry.groups
            _verify_dataset(report, storage, entry)
    return report


def _verify_dataset(report: VerifyReport, storage: LocalStorage, entry: manifest.Entry) -> None:
    """Checks one data set, file by file and record by record."""
    for name, sealed in entry.files.items():
        path = storage.file(entry, name)
        shown = entry.location(report.folder, name)
        if path.is_file():
            if sha256(path) != sealed["sha256"]:
                problem = "its SHA-256 is not the one in the manifest"
                report.problems.append(manifest.CorruptShard(shown, problem))
        elif name != entry.data_file:  # else its records are reported
            report.problems.append(manifest.CorruptShard(shown, manifest.MISSING))
    for record in range(entry.groups):
        try:
            storage.group(entry, record)
        except manifest.CorruptShard as error:
            report.problems.append(error)
            if error.record is None:
                return  # the file cannot be opened, for any record
        else:
            report.intact_groups += 1
