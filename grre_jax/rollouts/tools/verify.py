"""Checking a rollout folder: every file against the manifest, every record against its own
checksum.
"""

import dataclasses
import hashlib
import os
from pathlib import Path

from grre_jax.errors import DataError
from grre_jax.rollouts import manifest
from grre_jax.rollouts.storage import object_store, shards
from grre_jax.storage.files import sha256

INFO = "dataset_info.json"


@dataclasses.dataclass
class VerifyReport:
    """The findings of `verify`.

    Attributes:
        folder: the rollout folder.
        datasets, groups, bytes: their numbers in the manifest.
        intact_groups: number of groups that are as they were written.
        problems: errors that name file, record if it is known, and fix.
        duplicates: groups that were sealed before (same task, seed, position, attempt and policy
            version): the first one counts.
        ignored: files and folders beside the data sets, which do not count (foreign ones, and data
            sets that no manifest line lists).
        incomplete: data sets that are being written, or that killed writers left; a later writer
            removes the latter.
    """

    folder: Path | str
    datasets: int = 0
    groups: int = 0
    bytes: int = 0
    intact_groups: int = 0
    problems: list[DataError] = dataclasses.field(default_factory=list)
    duplicates: list[str] = dataclasses.field(default_factory=list)
    ignored: list[str] = dataclasses.field(default_factory=list)
    incomplete: list[str] = dataclasses.field(default_factory=list)

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
    """
    storage = object_store.open_storage(folder)
    storage.check()
    seen: set[bytes] = set()
    report = VerifyReport(storage.root)
    opened = shards.Shards(storage)
    tail = storage.tail()
    entries: dict[str, manifest.Entry] = {}
    for entry in tail.scan():
        if isinstance(entry, manifest.CorruptManifest):
            report.problems.append(entry)
            continue
        if entry.name in entries:
            problem = f"lists data set {entry.name} twice; delete one of the lines."
            report.problems.append(DataError(f"{tail.shown}: {problem}"))
            continue
        entries[entry.name] = entry
        report.datasets += 1
        report.groups += entry.groups
        report.bytes += entry.bytes
        _verify_files(report, opened, entry)
        _verify_records(report, opened, entry, seen)
    report.ignored, report.incomplete = storage.strays(entries)
    if tail.unfinished:
        report.incomplete.append(f"{manifest.FILENAME} (its last line)")
    # A data set is a folder on a disk, and the files of one in a store, which has no folders.
    data_sets = [
        name
        for name in report.ignored
        if name.endswith(f"/{INFO}") or (storage.path / name / INFO).is_file()
    ]
    if data_sets and not entries:
        report.problems.append(
            DataError(
                f"{tail.shown}: lists nothing, and {len(data_sets)} complete data set(s) are there"
                f" ({data_sets[0]}, ...): the manifest was emptied or cut short; restore it from a"
                " copy. A run samples again what its steps still need."
            )
        )
    return report


def _verify_files(report: VerifyReport, opened: shards.Shards, entry: manifest.Entry) -> None:
    for name, sealed in entry.files.items():
        try:
            path = opened.storage.file(entry, name)
        except manifest.CorruptShard as error:
            report.problems.append(error)
            continue
        if sha256(path) != sealed.sha256:
            shown = entry.location(report.folder, name)
            problem = "its SHA-256 is not the one in the manifest"
            report.problems.append(manifest.CorruptShard(shown, problem))


def _verify_records(
    report: VerifyReport, opened: shards.Shards, entry: manifest.Entry, seen: set[bytes]
) -> None:
    for record in range(entry.groups):
        try:
            group = opened.group(entry, record)
        except manifest.CorruptShard as error:
            if str(error) not in map(str, report.problems):
                report.problems.append(error)
            return
        except DataError as error:
            report.problems.append(error)
            continue
        report.intact_groups += 1
        versions = group.policy_version.tolist()
        # Groups whose policy is unknown came from elsewhere, where places and seeds are others.
        if group.position < 0 or min(versions) < 0:
            continue
        place = (group.task, group.seed, group.position, group.attempt, versions)
        digest = hashlib.sha256(repr(place).encode()).digest()
        if digest in seen:
            report.duplicates.append(f"{entry.name}, record {record}: group {group.group_id}")
        seen.add(digest)
