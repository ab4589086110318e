"""Reading a rollout folder: random access to every group that the manifest lists, each checked as it is read."""

import bisect
import collections
import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError
from grre_jax.rollouts import manifest, record, schema

OPEN_FILES = 256  # shards kept open at once; a process may usually have 1,024 files open


class CorruptShard(DataError):
    """A file of a data set is missing, truncated or damaged.

    Attributes:
      file: its path.
    """

    def __init__(self, message: str, file: str) -> None:
        super().__init__(message)
        self.file = file


def read(folder: str | os.PathLike[str]) -> "RolloutReader":
    """Opens a rollout folder.

    Raises:
      DataError: the folder does not exist, holds something else, or its manifest is damaged.
    """
    return RolloutReader(folder)


class RolloutReader:
    """All groups of a rollout folder, in the order in which their data sets were sealed.

    `len(reader)`, `reader[number]` and iteration give groups; a number stays that group's number for ever, since data sets are only ever
    added. Threads may share a reader. A folder to which nothing has been written yet has no groups.

    Args:
      folder: the rollout folder.

    Raises:
      DataError: the folder does not exist, holds something else, or its manifest is damaged.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser()
        check_folder(self.folder)
        self._tail = manifest.Tail(self.folder)
        self._datasets: list[manifest.Entry] = []
        self._ends: list[int] = []
        self._index: dict[int, list[int]] = {}
        self._indexed = 0
        self._shards = Shards(self.folder)
        self.refresh()

    @property
    def datasets(self) -> tuple[manifest.Entry, ...]:
        """The manifest's entries, in the order in which they were sealed."""
        return tuple(self._datasets)

    @property
    def contains(self) -> frozenset[str]:
        """Benchmark splits that the questions come from, as the data sets' provenance says ("gsm8k/test")."""
        return frozenset(split for entry in self._datasets for split in entry.metadata.get("contains", ()))

    @property
    def index(self) -> Mapping[int, list[int]]:
        """Numbers of the groups at each place in the prompt stream, oldest first (imported groups, at -1, are left out)."""
        for entry, end in zip(self._datasets[self._indexed :], self._ends[self._indexed :], strict=True):
            number = end - entry.groups
            for first, count in entry.positions:
                for position in range(first, first + count) if first >= 0 else ():
                    self._index.setdefault(position, []).append(number + position - first)
                number += count
        self._indexed = len(self._datasets)
        return self._index

    def refresh(self) -> int:
        """Takes in data sets sealed since the folder was opened or last refreshed.

        Returns:
          The number of groups that were added.

        Raises:
          CorruptManifest: a finished line of the manifest is damaged.
        """
        before = len(self)
        for entry in self._tail.new():
            self._datasets.append(entry)
            self._ends.append(len(self) + entry.groups)
        return len(self) - before

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> schema.Group:
        """The group of that number; negative numbers count from the end.

        Raises:
          IndexError: there is no such group.
          CorruptShard, CorruptRecord: it cannot be read as it was written; the message names file and record.
        """
        return self._shards.group(*self.locate(number))

    def __iter__(self) -> Iterator[schema.Group]:
        return (self[number] for number in range(len(self)))

    def locate(self, number: int) -> tuple[manifest.Entry, int]:
        """Data set of a group and the group's place in it.

        Raises:
          IndexError: there is no such group.
        """
        wanted = number + len(self) if number < 0 else number
        if not 0 <= wanted < len(self):
            raise IndexError(f"group {number} of {len(self)} in {self.folder}")
        which = bisect.bisect_right(self._ends, wanted)
        entry = self._datasets[which]
        return entry, wanted - (self._ends[which] - entry.groups)

    def find(self, position: int, policy_version: int | None = None) -> int | None:
        """Number of the newest group at a place in the prompt stream, or None.

        Args:
          position: the place.
          policy_version: only groups of data sets of this policy version, when given.
        """
        for number in reversed(self.index.get(position, [])):
            if policy_version is None or self.locate(number)[0].policy_version == policy_version:
                return number
        return None

    def at(self, position: int, policy_version: int | None = None) -> schema.Group:
        """The newest group at a place in the prompt stream.

        Args:
          position: the place.
          policy_version: only groups of data sets of this policy version, when given.

        Raises:
          DataError: there is none, or it is damaged.
        """
        number = self.find(position, policy_version)
        if number is None:
            version = "" if policy_version is None else f" of policy version {policy_version}"
            span = f"{min(self.index)} to {max(self.index)}" if self.index else "unknown, as they are imported"
            raise DataError(
                f"Rollout folder {self.folder} holds no group{version} at position {position}; its groups' positions are {span}."
            )
        return self[number]


class Shards:
    """The data files of a rollout folder, opened as they are needed and kept open, the most recently used ones.

    Args:
      folder: the rollout folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: collections.OrderedDict[Path, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def group(self, entry: manifest.Entry, place: int) -> schema.Group:
        """The group at a place of a data set.

        Raises:
          CorruptShard, CorruptRecord: it cannot be read as it was written; the message names file and record.
        """
        path = self.folder / entry.name / entry.data_file
        try:
            return record.decode(self._shard(entry, path).read([place])[0])
        except (RuntimeError, DataError) as error:  # RuntimeError: ArrayRecord's own checks of its chunks
            if isinstance(error, CorruptShard):
                raise
            raise record.CorruptRecord(
                f"{path}, record {place}: damaged ({_first_clause(error)}); restore the file from a copy "
                f"(`grre rollouts verify {self.folder}` shows what else is damaged).",
                str(path),
                place,
            ) from error

    def _shard(self, entry: manifest.Entry, path: Path) -> Any:
        """The data file's ArrayRecord reader (which threads may share)."""
        from array_record.python import array_record_module

        with self._lock:
            if path in self._open:
                self._open.move_to_end(path)
                return self._open[path]
        check_size(path, entry.files[entry.data_file].bytes)
        try:
            shard = array_record_module.ArrayRecordReader(str(path), options="readahead_buffer_size:0", file_reader_buffer_size=32768)
            count = shard.num_records()
        except RuntimeError as error:
            raise CorruptShard(f"{path}: damaged ({_first_clause(error)}); restore it from a copy.", str(path)) from error
        if count != entry.groups:
            raise CorruptShard(f"{path}: holds {count} records where the manifest says {entry.groups}; restore it from a copy.", str(path))
        with self._lock:
            self._open[path] = shard
            while len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)  # closed when the last thread that reads it lets go
        return shard


def check_folder(folder: Path) -> None:
    """Checks that a folder is a rollout folder, or empty.

    Raises:
      DataError: it does not exist or holds something else.
    """
    if not folder.is_dir():
        raise DataError(f"Rollout folder {folder} does not exist; check the path.")
    if not (folder / manifest.FILENAME).exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise DataError(f"{folder} is not a rollout folder: it holds files but no {manifest.FILENAME}; check the path.")


def check_size(path: Path, expected: int) -> None:
    """Checks that a file is there and as large as the manifest says.

    Raises:
      CorruptShard: it is not.
    """
    size = None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        size = path.stat().st_size
    if size is None:
        raise CorruptShard(f"{path}: the manifest lists this file but it is missing; restore it from a copy.", str(path))
    if size != expected:
        raise CorruptShard(f"{path}: {size:,} bytes where the manifest says {expected:,}; restore it from a copy.", str(path))


def _first_clause(error: Exception) -> str:
    return str(error).split(";")[0].rstrip(".")
