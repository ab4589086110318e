"""Checking a rollout folder: every file against the manifest, every record against its own
checksum.
"""

import dataclasses
import os
from pathlib import Path

from grre_jax.errors import DataError
from grre_jax.rollouts import manifest
from grre_jax.rollouts.storage import LocalStorage, open_storage
from grre_jax.storage.files import sha256


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
