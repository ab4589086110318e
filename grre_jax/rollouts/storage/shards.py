"""The data files of a rollout folder: opened as they are needed, every record checked as it is
read.
"""

import collections
import threading
from typing import Any

from grre_jax.errors import DataError
from grre_jax.rollouts import encoding, manifest, schema
from grre_jax.rollouts.manifest import CorruptShard
from grre_jax.rollouts.storage.local import LocalStorage

OPEN_FILES = 256  # shards kept open at once; a process may usually have 1,024 files open


class Shards:
    """The data files of a rollout folder. The most recently used ones are kept open.

    Args:
        storage: of the folder.
    """

    def __init__(self, storage: LocalStorage) -> None:
        self.storage = storage
        self._open: collections.OrderedDict[str, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def group(self, entry: manifest.Entry, number: int) -> schema.Group:
        """Returns a group of a data set.

        Args:
            entry: the data set's.
            number: of the record in the data set.

        Raises:
            CorruptShard: it cannot be read as it was written; the message names file and record.
        """
        path = entry.location(self.storage.root, entry.data_file)
        try:
            return encoding.decode(self._shard(entry, path).read([number])[0])
        except CorruptShard:
            raise
        except (RuntimeError, DataError) as error:  # RuntimeError: ArrayRecord's checks of chunks
            raise CorruptShard(path, f"damaged ({error})", number) from error

    def _shard(self, entry: manifest.Entry, path: str) -> Any:
        """Returns the data file's ArrayRecord reader, which threads may share."""
        from array_record.python import array_record_module

        with self._lock:
            if entry.name in self._open:
                self._open.move_to_end(entry.name)
                return self._open[entry.name][1]
        local = self.storage.file(entry, entry.data_file)
        try:
            shard = array_record_module.ArrayRecordReader(
                str(local), options="readahead_buffer_size:0", file_reader_buffer_size=32768
            )
            count = shard.num_records()
        except RuntimeError as error:
            raise CorruptShard(path, f"damaged ({error})") from error
        if count != entry.groups:
            problem = f"holds {count} records where the manifest lists {entry.groups}"
            raise CorruptShard(path, problem)
        with self._lock:
            self._open[entry.name] = entry, shard
            while len(self._open) > OPEN_FILES:
                # Its file is closed when the last thread that reads it is done.
                _, (oldest, _) = self._open.popitem(last=False)
                self.storage.release(oldest)
        return shard
