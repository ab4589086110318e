"""The data files of a rollout folder: opened as they are needed, every record checked as it is
read.
"""

import collections
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from grre_jax.errors import DataError
from grre_jax.rollouts import encoding, manifest, schema
from grre_jax.rollouts.manifest import CorruptShard

T = TypeVar("T")

TRIES = 30  # openings of a local copy, which other readers may remove to make room
OPEN_FILES = 256  # shards kept open at once; a process may usually have 1,024 files open


class Shards:
    """The data files of a rollout folder. The most recently used ones are kept open.

    Args:
        storage: of the folder.
    """

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self._open: collections.OrderedDict[str, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def group(self, entry: manifest.Entry, number: int) -> schema.Group:
        """Returns a group of a data set.

        Args:
            entry: the data set's.
            number: of the record in the data set.

        Raises:
            CorruptShard, CorruptRecord: it cannot be read as it was written; the message names file
                and record.
        """
        path = entry.location(self.storage.root, entry.data_file)
        try:
            return encoding.decode(self._shard(entry, path).read([number])[0])
        except CorruptShard:
            raise
        except (RuntimeError, DataError) as error:  # RuntimeError: ArrayRecord's checks of chunks
            raise encoding.CorruptRecord(
                f"{path}, record {number}: damaged ({_first_clause(error)}); restore the file from"
                f" a copy (`grre rollouts verify {self.storage.root}` shows all damage).",
                path,
                number,
            ) from error

    def _shard(self, entry: manifest.Entry, path: str) -> Any:
        """Returns the data file's ArrayRecord reader, which threads may share."""
        with self._lock:
            if entry.name in self._open:
                self._open.move_to_end(entry.name)
                return self._open[entry.name]
        try:
            shard = using(
                self.storage, entry, entry.data_file, lambda local: _opened(local, entry, path)
            )
        except RuntimeError as error:
            raise CorruptShard(path, f"damaged ({_first_clause(error)})") from error
        with self._lock:
            self._open[entry.name] = shard
            while len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)  # closed when the last thread that reads it is done
        return shard


def _opened(local: Path, entry: manifest.Entry, path: str) -> Any:
    from array_record.python import array_record_module

    shard = array_record_module.ArrayRecordReader(
        str(local), options="readahead_buffer_size:0", file_reader_buffer_size=32768
    )
    if (count := shard.num_records()) != entry.groups:  # 0 if the file was removed by then
        problem = f"holds {count} records where the manifest lists {entry.groups}"
        raise CorruptShard(path, problem)
    return shard


def using(storage: Any, entry: manifest.Entry, name: str, use: Callable[[Path], T]) -> T:
    """Returns `use(path)` of a data set's file, called again if the local copy was removed before
    it was opened, as another reader made room.

    Args:
        storage: of the rollout folder.
        entry: the data set's.
        name: of the file in the data set.
        use: takes the path on this machine.

    Raises:
        CorruptShard: the file is missing or damaged.
    """
    for more in reversed(range(TRIES)):
        local = storage.file(entry, name)
        before = _identity(local)
        try:
            return use(local)
        except (OSError, RuntimeError, CorruptShard):  # RuntimeError: ArrayRecord cannot open it
            if not more or (before is not None and _identity(local) == before):
                raise
    raise AssertionError("unreachable")


def _identity(path: Path) -> tuple[int, int] | None:
    """Returns a value that differs between a file and another that replaces it."""
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return status.st_ino, status.st_ctime_ns
    return None


def _first_clause(error: Exception) -> str:
    return str(error).split(";")[0].rstrip(".")
