"""Checking a rollout folder: every file against the manifest, every record against its own checksum."""

import dataclasses
import hashlib
import os
from pathlib import Path

from grre_jax.errors import DataError
from grre_jax.rollouts import manifest, reader
from grre_jax.rollouts.writer import INCOMPLETE


@dataclasses.dataclass
class VerifyReport:
    """What `verify` found.

    Attributes:
      folder: the rollout folder.
      datasets, groups, bytes: how much the manifest lists.
      intact_groups: how many of the groups read as they were written.
      problems: what is wrong, as errors that name file, record where it is known, and fix.
      ignored: files and folders beside the data sets, which do not count (foreign ones, and data sets that no manifest line lists).
      incomplete: data sets that are being written, or that killed writers left; the next writer removes the latter.
    """

    folder: Path
    datasets: int = 0
    groups: int = 0
    bytes: int = 0
    intact_groups: int = 0
    problems: list[DataError] = dataclasses.field(default_factory=list)
    ignored: list[str] = dataclasses.field(default_factory=list)
    incomplete: list[str] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(folder: str | os.PathLike[str]) -> VerifyReport:
    """Reads a rollout folder in full and reports what is not as it was written.

    Raises:
      DataError: the folder does not exist or holds something else. Damage is reported, not raised.
    """
    root = Path(folder).expanduser()
    reader.check_folder(root)
    report = VerifyReport(root)
    shards = reader.Shards(root)
    tail = manifest.Tail(root)
    names: set[str] = set()
    for entry in tail.scan():
        if isinstance(entry, manifest.CorruptManifest):
            report.problems.append(entry)
            continue
        if entry.name in names:
            report.problems.append(DataError(f"{root / manifest.FILENAME}: lists data set {entry.name} twice; delete one of the lines."))
            continue
        names.add(entry.name)
        report.datasets += 1
        report.groups += entry.groups
        report.bytes += entry.bytes
        _verify_dataset(report, shards, entry)
    if tail.unfinished:
        report.incomplete.append(f"{manifest.FILENAME} (its last line)")
    if (root / INCOMPLETE).is_dir():
        report.incomplete += sorted(f"{INCOMPLETE}/{path.name}" for path in (root / INCOMPLETE).iterdir())
    own = names | {manifest.FILENAME, INCOMPLETE}
    report.ignored += sorted(path.name for path in root.iterdir() if path.name not in own)
    return report


def _verify_dataset(report: VerifyReport, shards: reader.Shards, entry: manifest.Entry) -> None:
    """Checks one data set, file by file and record by record."""
    path = report.folder / entry.name
    readable = True
    for name, sealed in entry.files.items():
        try:
            reader.check_size(path / name, sealed.bytes)
        except reader.CorruptShard as error:
            report.problems.append(error)
            readable &= name != entry.data_file
            continue
        with open(path / name, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sealed.sha256:
                message = f"{path / name}: its SHA-256 is not the one in the manifest; restore it from a copy."
                report.problems.append(reader.CorruptShard(message, str(path / name)))
    if path.is_dir():
        report.ignored += sorted(f"{entry.name}/{extra.name}" for extra in path.iterdir() if extra.name not in entry.files)
    for place in range(entry.groups) if readable else ():
        try:
            shards.group(entry, place)
            report.intact_groups += 1
        except reader.CorruptShard as error:
            report.problems.append(error)
            return
        except DataError as error:
            report.problems.append(error)
