"""Copies of groups from rollout folders into a new one: all of them (`merge`) or a selection
(`filter`).

The provenance of data sets is copied too: the writer, the policy version and the metadata of a
copy are its source's, and `history` gets an entry for the copy. Small data sets that agree in all
of that become one. Groups are read and written one at a time. Fields of a newer minor version of
the schema are left out, with a warning.
"""

import dataclasses
import hashlib
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import manifest, reader, writer
from grre_jax.rollouts.encoding import CorruptRecord, encode
from grre_jax.rollouts.manifest import CorruptShard
from grre_jax.rollouts.schema import SCHEMA_VERSION, Group
from grre_jax.rollouts.storage import local
from grre_jax.storage.staging import INCOMPLETE

_log = logging.getLogger(__name__)

GROUPS_PER_DATASET = 4096  # about 100 MB at 8 completions of 256 tokens

Placed = tuple[dict[str, Any], Group]  # fields of the group's data set, and the group


@dataclasses.dataclass
class CopyReport:
    """The result of a copy.

    Attributes:
        folder: the new folder.
        datasets, groups: their numbers in it.
        read: groups that were read.
        duplicates: groups left out because an equal one was copied before.
        damaged: errors of groups left out because they cannot be read.
    """

    folder: Path | str
    datasets: int = 0
    groups: int = 0
    read: int = 0
    duplicates: int = 0
    damaged: list[str] = dataclasses.field(default_factory=list)


def merge(
    folders: Sequence[str | os.PathLike[str]],
    into: str | os.PathLike[str],
    *,
    skip_damaged: bool = False,
    keep_duplicates: bool = False,
) -> CopyReport:
    """Copies all groups of several folders, folder by folder, into a new one.

    Args:
        folders: rollout folders; one is enough, to make few large data sets of many small ones.
        into: the new folder.
        skip_damaged: leave out groups that cannot be read, and report them.
        keep_duplicates: copy groups that were already copied, too.

    Raises:
        UsageError: the new folder exists and holds something.
        DataError: a folder cannot be read, or holds no groups; a group is damaged. Nothing is
            written then.
    """
    step = {"operation": "merge", "folders": [Path(folder).name for folder in folders]}
    return _copy(folders, into, step, skip_damaged=skip_damaged, keep_duplicates=keep_duplicates)


def filter(
    folder: str | os.PathLike[str],
    into: str | os.PathLike[str],
    keep: Callable[[Group], bool],
    described: str,
) -> CopyReport:
    """Copies the groups for which `keep` is True into a new folder.

    Args:
        folder: the rollout folder.
        into: the new folder.
        keep: the predicate.
        described: the predicate as text, for the copies' history.

    Raises:
        UsageError, DataError: as for `merge`; also when no group is kept.
    """
    step = {"operation": "filter", "kept": described}
    return _copy([folder], into, step, keep, keep_duplicates=True)


def _copy(
    folders: Sequence[str | os.PathLike[str]],
    into: str | os.PathLike[str],
    step: dict[str, Any],
    keep: Callable[[Group], bool] = lambda group: True,
    *,
    skip_damaged: bool = False,
    keep_duplicates: bool = False,
) -> CopyReport:
    """Copies the groups for which `keep` is True into a new folder.

    See `merge` for the other arguments and the errors.
    """
    _check_new(into)
    readers = [reader.read(folder) for folder in folders]
    report = CopyReport(local.open_storage(into).root)
    seen: set[bytes] = set()

    def kept() -> Iterator[Placed]:
        for source, group in _groups(readers, report, skip_damaged):
            if not keep(group):
                continue
            if not keep_duplicates:
                digest = hashlib.sha256(encode(group)).digest()
                if digest in seen:
                    report.duplicates += 1
                    continue
                seen.add(digest)
            yield source, group

    try:
        report.datasets = len(writer.write_all(into, _datasets(kept(), step, report)))
    except DataError:
        if not report.groups and report.read:
            raise DataError(
                f"None of the {report.read:,} groups of {', '.join(map(str, folders))} is kept;"
                " nothing was written."
            ) from None
        raise
    return report


def _check_new(folder: str | os.PathLike[str]) -> None:
    storage, used = local.open_storage(folder), False
    if not isinstance(storage, local.LocalStorage):
        storage.check()
    elif (path := storage.root).exists():
        own = {manifest.FILENAME, INCOMPLETE}  # what is left where a copy failed before
        used = not path.is_dir() or any(found.name not in own for found in path.iterdir())
    if used or storage.tail().new():
        raise UsageError(f"{storage.root} exists already; name a new folder to copy into.")


def _groups(
    readers: Iterable[reader.RolloutReader], report: CopyReport, skip_damaged: bool
) -> Iterator[Placed]:
    """Yields the groups of folders with the provenance of their data sets. Damage is added to the
    report with `skip_damaged`, and raised otherwise.
    """
    for opened in readers:
        warn_of_newer(opened)
        first = 0
        for entry in opened.datasets:
            source = provenance(entry)
            for number in range(first, first + entry.groups):
                report.read += 1
                try:
                    group = opened[number]
                except (CorruptRecord, CorruptShard) as error:
                    if not skip_damaged:
                        raise
                    report.damaged.append(str(error))
                    continue
                yield source, group
            first += entry.groups


def provenance(entry: manifest.Entry) -> dict[str, Any]:
    """Returns the fields of `writer.DataSet` that a copy has from its source."""
    return {
        "writer": entry.writer,
        "policy_version": entry.policy_version,
        "metadata": entry.metadata,
    }


def warn_of_newer(opened: reader.RolloutReader) -> None:
    """Warns if a folder has records of a newer minor version, whose own fields no copy has."""
    versions = {entry.schema_version for entry in opened.datasets}
    newer = [version for version in sorted(versions) if _minor(version) > _minor(SCHEMA_VERSION)]
    if newer:
        _log.warning(
            "%s has records of schema %s: fields that %s lacks are not copied",
            opened.folder,
            ", ".join(newer),
            SCHEMA_VERSION,
        )


def _minor(version: str) -> int:
    return int(version.split(".")[1])


def with_step(metadata: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Returns metadata with a further step in its history."""
    return metadata | {"history": [*metadata.get("history", []), step]}


def _datasets(
    groups: Iterator[Placed],
    step: dict[str, Any],
    report: CopyReport,
) -> Iterator[writer.DataSet]:
    """Yields data sets of consecutive groups whose sources agree."""
    placed, last = 0, None

    def key(item: Placed) -> tuple[dict[str, Any], int]:
        nonlocal placed, last
        placed = placed + 1 if item[0] == last else 0
        last = item[0]
        return last, placed // GROUPS_PER_DATASET

    def counted(items: Iterable[Placed]) -> Iterator[Group]:
        for _, group in items:
            report.groups += 1
            yield group

    for (source, _), items in itertools.groupby(groups, key):
        about = source | {"metadata": with_step(source["metadata"], step)}
        yield writer.DataSet(groups=counted(items), **about)
