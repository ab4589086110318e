"""Checking a rollout folder: every file against the manifest, every record against its own
checksum.
"""

import dataclasses
import hashlib
import os
from pathlib import Path

from grre_jax.errors import DataError
from grre_jax.rollouts import logprob_checks, manifest
from grre_jax.rollouts.storage import object_store, shards
from grre_jax.rollouts.storage.local import LocalStorage
from grre_jax.storage.files import sha256


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


def verify(folder: str | os.PathLike[str], *, deep: bool = False) -> VerifyReport:
    """Reads a rollout folder in full and reports all that is not as it was written.

    Args:
        folder: the rollout folder.
        deep: also report log-probs that no policy can have given (`logprobs.Checks`).

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
    checks = logprob_checks.Checks()
    report = _verify(object_store.open_storage(folder), checks if deep else None)
    report.problems += [DataError(f"{report.folder}: {problem}") for problem in checks.problems()]
    return report


def _verify(storage: LocalStorage, checks: logprob_checks.Checks | None) -> VerifyReport:
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
        _verify_dataset(report, opened, entry, seen, checks)
    if tail.unfinished:
        report.incomplete.append(f"{manifest.FILENAME} (its last line)")
    report.ignored, being_written = storage.strays(entries)
    report.incomplete += being_written
    unlisted = [name for name in report.ignored if _is_data_set(storage, name)]
    if unlisted and not entries:
        report.problems.append(
            DataError(
                f"{tail.shown}: lists nothing, and {len(unlisted)} complete data set(s) are there"
                f" ({unlisted[0]}, ...): the manifest was emptied or cut short; restore it from a"
                " copy. A run samples again what its steps still need."
            )
        )
    return report


def _is_data_set(storage: LocalStorage, name: str) -> bool:
    """True if a name beside the listed data sets is one: a folder on a disk, a file in a store,
    which has no folders.
    """
    inside = storage.path / name / "dataset_info.json"
    return name.endswith("/dataset_info.json") or inside.is_file()


def _verify_dataset(
    report: VerifyReport,
    opened: shards.Shards,
    entry: manifest.Entry,
    seen: set[bytes],
    checks: logprob_checks.Checks | None,
) -> None:
    """Checks one data set, file by file and record by record."""
    readable = True
    for name, sealed in entry.files.items():
        try:
            path = opened.storage.file(entry, name)
        except manifest.CorruptShard as error:
            report.problems.append(error)
            readable &= name != entry.data_file
            continue
        if sha256(path) != sealed.sha256:
            shown = entry.location(report.folder, name)
            report.problems.append(manifest.CorruptShard(shown, manifest.OTHER_DIGEST))
    for record in range(entry.groups) if readable else ():
        try:
            group = opened.group(entry, record)
        except DataError as error:
            report.problems.append(error)
            if isinstance(error, manifest.CorruptShard):
                return
            continue
        report.intact_groups += 1
        if checks:
            checks.add(group)
        versions = group.policy_version.tolist()
        place = (group.task, group.seed, group.position, group.attempt, versions)
        # Groups whose policy is unknown came from elsewhere, where places and seeds are others.
        own = group.position >= 0 and min(versions) >= 0
        if not own:
            continue
        digest = hashlib.sha256(repr(place).encode()).digest()
        if digest in seen:
            report.duplicates.append(f"{entry.name}, record {record}: group {group.group_id}")
        seen.add(digest)
