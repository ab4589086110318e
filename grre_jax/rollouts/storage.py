"""Where a rollout folder is: on a disk, or in an object store by way of local files.

    URL/manifest.jsonl      a line for each data set, as on a disk
    URL/NAME/features.json, ..., rollouts-train.array_record-00000-of-00001

A folder is written on a disk; `training.run_folder` copies the one of a run to a store.
"""

import contextlib
import dataclasses
import fcntl
import functools
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError
from grre_jax.rollouts import encoding, manifest, schema
from grre_jax.rollouts.manifest import CorruptShard
from grre_jax.storage.locks import lock
from grre_jax.storage.remote import Store, is_url, temporary_folder

INCOMPLETE = ".incomplete"  # folder of the data sets that are being written
OPEN_FILES = 256  # data files kept open at once; a process may usually have 1,024 files open


class LocalStorage:
    """A rollout folder on a disk, which machines may share.

    Attributes:
        path: its path.
        root: its name: the path, or the URL of which the path has copies.
    """

    def __init__(self, path: Path, root: str = "") -> None:
        self.path = path
        self.root: Path | str = root or path
        # Of this object: a decorated method would keep every storage alive, with its open files.
        self._opened = functools.lru_cache(OPEN_FILES)(self._open)

    def check(self) -> None:
        """Checks that the folder is a rollout folder, or empty.

        Raises:
            DataError: it is neither, or cannot be read.
        """
        if not self.path.is_dir():
            raise DataError(f"Rollout folder {self.path} does not exist; check the path.")
        names = os.listdir(self.path)
        if manifest.FILENAME not in names and any(name[0] != "." for name in names):
            raise DataError(
                f"{self.path} is not a rollout folder: it has files but no"
                f" {self.path / manifest.FILENAME}; check the path, or restore the manifest."
            )

    def is_new(self) -> bool:
        """True if nothing is there but what a writer that failed left."""
        if not self.path.is_dir():
            return not self.path.exists()
        names = set(os.listdir(self.path))
        return names <= {manifest.FILENAME, INCOMPLETE} and not self.read_manifest()

    def read_manifest(self) -> bytes:
        """Returns the manifest; empty before the first data set."""
        try:
            with open(self.path / manifest.FILENAME, "rb") as file:
                lock(file, fcntl.LOCK_SH)  # lines that a full disk cuts short are removed first
                return file.read()
        except FileNotFoundError:
            return b""

    def file(self, entry: manifest.Entry, name: str) -> Path:
        """Returns the path on this machine of a data set's file, which may be missing."""
        return self.path / entry.name / name

    def group(self, entry: manifest.Entry, number: int) -> schema.Group:
        """Returns a group of a data set. Threads may call this together.

        Args:
            entry: the data set's.
            number: of the record in the data set.

        Raises:
            CorruptShard: it cannot be read as it was written; the message names file and record.
        """
        shard = self._opened(entry)
        try:
            return encoding.decode(shard.read([number])[0])
        except (RuntimeError, DataError) as error:  # RuntimeError: ArrayRecord's checks of chunks
            path = entry.location(self.root, entry.data_file)
            raise CorruptShard(path, f"damaged ({error})", number) from error

    def _open(self, entry: manifest.Entry) -> Any:
        """Returns the ArrayRecord reader of a data set's records."""
        from array_record.python import array_record_module

        shown = entry.location(self.root, entry.data_file)
        path = self.file(entry, entry.data_file)
        if not path.is_file():
            raise CorruptShard(shown, manifest.MISSING)
        try:
            shard = array_record_module.ArrayRecordReader(
                str(path), options="readahead_buffer_size:0", file_reader_buffer_size=32768
            )
            count = shard.num_records()
        except RuntimeError as error:
            raise CorruptShard(shown, f"damaged ({error})") from error
        if count != entry.groups:
            problem = f"holds {count} records where the manifest lists {entry.groups}"
            raise CorruptShard(shown, problem)
        return shard

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Makes a local folder for new data sets, and the rollout folder.

        Raises:
            OSError: the folder cannot be made.
        """
        incomplete = self.path / INCOMPLETE
        incomplete.mkdir(parents=True, exist_ok=True)
        # First of all: it is what makes the folder a rollout folder.
        (self.path / manifest.FILENAME).touch()
        with tempfile.TemporaryDirectory(dir=incomplete, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def publish(self, staged: list[tuple[Path, manifest.Entry]]) -> list[str]:
        """Stores data sets and enters them in the manifest, all or none.

        Args:
            staged: folders with the files of data sets, and the entry of each, whose name is made
                unique.

        Returns:
            Their names.

        Raises:
            OSError: they cannot be stored.
        """
        listed = self.read_manifest()
        entries: list[manifest.Entry] = []
        try:
            for folder, entry in staged:
                # The folder of a listed data set may have been lost.
                is_listed = f'"name":"{entry.name}"'.encode() in listed
                if is_listed or os.path.lexists(self.path / entry.name):
                    name = f"{entry.name}-{uuid.uuid4().hex[:8]}"
                    entry = dataclasses.replace(entry, name=name)
                folder.rename(self.path / entry.name)  # never replaces a folder that has files
                entries.append(entry)
            # First the names: a power cut must not leave a line without its data set.
            manifest.sync_folder(self.path)
            manifest.append(self.path, *entries)
        except OSError:
            for entry in entries:  # without their lines they do not exist
                shutil.rmtree(self.path / entry.name, ignore_errors=True)
            raise
        return [entry.name for entry in entries]


class ObjectStorage(LocalStorage):
    """The rollout folder at a URL as it is when it is opened, which is read only: a run's is
    written on the local disk, and copied (`training.run_folder`). Files are copied to a temporary
    folder as they are read.

    Args:
        url: of the folder.

    Raises:
        UsageError: fsspec does not have the URL's scheme, or lacks the package for it.
        DataError: the store cannot be read.
    """

    def __init__(self, url: str) -> None:
        self._store = Store(url)
        self._temporary = temporary_folder()
        super().__init__(Path(self._temporary.name), self._store.url)
        self._copying = threading.Lock()  # of threads that read together
        self._copy(manifest.FILENAME)
        if not self.read_manifest() and self._store.names():
            raise DataError(
                f"{self.root} is not a rollout folder: it has objects but no"
                f" {manifest.FILENAME}; check the URL."
            )

    def file(self, entry: manifest.Entry, name: str) -> Path:
        """Returns the path of a copy of a data set's file, which may be missing."""
        self._copy(f"{entry.name}/{name}")
        return super().file(entry, name)

    def _copy(self, name: str) -> None:
        """Copies an object to the temporary folder, unless it is there or does not exist."""
        with self._copying:
            if (self.path / name).exists():
                return
            try:
                self._store.download([name], self.path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise DataError(
                    f"Rollout folder {self.root} cannot be read ({error}); check its name, your"
                    f" access to it, and the space in {self.path}."
                ) from error


def open_storage(folder: str | os.PathLike[str]) -> LocalStorage:
    """Returns the storage of a rollout folder.

    Args:
        folder: a path, or the URL of a folder in an object store (s3://, gs://, or any other scheme
            that fsspec has).

    Raises:
        UsageError: a URL that cannot be used.
    """
    text = os.fspath(folder)
    return ObjectStorage(text) if is_url(text) else LocalStorage(Path(text).expanduser())
