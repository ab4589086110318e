"""Reading a rollout folder: random access to every group that the manifest lists, each checked
as it is read; and where the folder is: on a disk, or in an object store by way of local files.

    URL/manifest.jsonl      a line for each data set, as on a disk
    URL/NAME/features.json, ..., rollouts-train.array_record-00000-of-00001

A folder is written on a disk; `training.run_folder` copies the one of a run to a store.
"""

import bisect
import contextlib
import dataclasses
import fcntl
import functools
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grre_jax.errors import DataError
from grre_jax.rollouts import encoding, manifest, schema
from grre_jax.rollouts.manifest import CorruptShard
from grre_jax.storage.files import lock
from grre_jax.storage.remote import Store, is_url, temporary_folder

KEPT_TOKENS = 4_000_000  # of groups kept in memory until they are read, some 20 bytes each
INCOMPLETE = ".incomplete"  # folder of the data sets that are being written
OPEN_FILES = 256  # data files kept open at once; a process may usually have 1,024 files open


def read(folder: str | os.PathLike[str]) -> "RolloutReader":
    """Opens a rollout folder.

    Args:
        folder: a path, or the URL of a folder in an object store (s3://, gs://).

    Raises:
        DataError: the folder does not exist or is not a rollout folder, or its manifest is damaged.

    Examples:
        >>> from grre_jax import rollouts
        >>> group = rollouts.Group(group_id="a", prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        >>> _ = rollouts.write("my_rollouts", [group], writer="me")
        >>> for group in rollouts.read("my_rollouts"):
        ...     print(group.prompt, group.texts, group.rewards)
        1+1= ['2', '3'] [1. 0.]
    """
    return RolloutReader(folder)


class RolloutReader:
    """All groups of a rollout folder, in the order in which their data sets were sealed.

    `len(reader)`, `reader[number]` and iteration give groups. The number of a group never changes,
    since data sets are only ever added. Threads may share a reader. A folder to which nothing has
    been written yet has no groups.

    Args:
        folder: a path, or the URL of a folder in an object store (s3://, gs://), of which there are
            the groups of now.
        most: data sets that are read, the first ones; None for all.

    Raises:
        DataError: the folder does not exist or is not a rollout folder, or its manifest is damaged.

    Examples:
        `refresh` adds the data sets that were sealed since, and returns the number of their groups:

        >>> from grre_jax import rollouts
        >>> group = rollouts.Group(group_id="a", prompt="1+1=", texts=["2", "3"], rewards=[1, 0])
        >>> _ = rollouts.write("my_rollouts", [group], writer="me")
        >>> reader = rollouts.RolloutReader("my_rollouts")
        >>> _ = rollouts.write("my_rollouts", [group], writer="another")
        >>> len(reader), reader.refresh(), len(reader)
        (1, 1, 2)
        >>> [entry.writer for entry in reader.datasets]
        ['me', 'another']
    """

    def __init__(self, folder: str | os.PathLike[str], most: int | None = None) -> None:
        self.storage = open_storage(folder)
        self.folder = self.storage.root
        self.storage.check()
        self._most = most
        self._read = 0  # bytes of the manifest
        self._datasets: list[manifest.Entry] = []
        self._starts = [0]  # number of each one's first group, and of the next one's
        self._names: set[str] = set()
        # Numbers of the groups at each position of the prompt stream, oldest first, without
        # imported groups (at -1).
        self.index: dict[int, list[int]] = {}
        self._growing = threading.Lock()  # held while data sets are added
        self._kept: dict[tuple[str, int], schema.Group] = {}
        self._keeping = threading.Lock()  # held while `_kept` changes
        self.refresh()

    @property
    def datasets(self) -> tuple[manifest.Entry, ...]:
        """The manifest's entries, in the order in which they were sealed."""
        return tuple(self._datasets)

    @property
    def contains(self) -> frozenset[str]:
        """Benchmark splits that the questions come from, by the data sets' provenance
        ("gsm8k/test").
        """
        return frozenset(
            split for entry in self.datasets for split in entry.metadata.get("contains", ())
        )

    def refresh(self) -> int:
        """Adds the data sets sealed since the folder was opened or last refreshed.

        Returns:
            The number of groups that were added.

        Raises:
            CorruptManifest: a finished line of the manifest is damaged; the message names file,
                line and fix. Nothing is added then.
        """
        with self._growing:
            before = len(self)
            content = self.storage.read_manifest()
            shown = f"{self.folder}/{manifest.FILENAME}"
            new = list(manifest.entries(content, shown, self._read))
            for entry in new:
                if isinstance(entry, manifest.CorruptManifest):
                    raise entry
            for entry in new:
                self._add(entry)
            self._read = manifest.finished(content)
            return len(self) - before

    def _add(self, entry: manifest.Entry) -> None:
        if entry.name in self._names or len(self._datasets) == self._most:
            return  # of a line that somebody copied the groups are not there twice
        self._names.add(entry.name)
        # In this order: a thread that counts a group finds its data set too.
        self._datasets.append(entry)
        number = self._starts[-1]
        self._starts.append(number + entry.groups)
        for first, count in entry.positions:
            for place in range(count if first >= 0 else 0):
                self.index.setdefault(first + place, []).append(number + place)
            number += count

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> schema.Group:
        """Returns a group; negative numbers count from the end.

        Raises:
            IndexError: the number is out of range.
            CorruptShard: it cannot be read as it was written; the message names file and record.
        """
        entry, record = self.locate(number)
        with self._keeping:
            group = self._kept.pop((entry.name, record), None)
        return self.storage.group(entry, record) if group is None else group

    def keep(self, dataset: str, groups: Sequence[schema.Group]) -> None:
        """Keeps groups that this process has just sealed in memory, up to KEPT_TOKENS, so that
        the first reading of each need not decode its record.

        Args:
            dataset: the data set's name, as `write` returned it.
            groups: all of its groups, in order.
        """
        with self._keeping:
            tokens = sum(len(group.tokens) for group in self._kept.values())
            for record, group in enumerate(groups):
                tokens += len(group.tokens)
                if tokens > KEPT_TOKENS:
                    return
                self._kept[dataset, record] = group

    def locate(self, number: int) -> tuple[manifest.Entry, int]:
        """Returns the data set of a group, and the number of the group's record in it.

        Raises:
            IndexError: the number is out of range.
        """
        count = len(self)
        index = number + count if number < 0 else number
        if not 0 <= index < count:
            raise IndexError(f"group {number} of {count} in {self.folder}")
        which = bisect.bisect_right(self._starts, index) - 1
        return self._datasets[which], index - self._starts[which]

    def find(self, position: int, policy_version: int | None = None) -> int | None:
        """Returns the number of the newest group at a position of the prompt stream, or of the
        first one of a policy version; None without one.

        Args:
            position: in the prompt stream.
            policy_version: only groups of data sets of this policy version, if given. The first
                that was sealed is found (a learner may have trained on it before the others came).
        """
        numbers = self.index.get(position, [])
        if policy_version is None:
            return numbers[-1] if numbers else None
        for number in numbers:
            if self.locate(number)[0].policy_version == policy_version:
                return number
        return None

    def at(self, position: int, policy_version: int | None = None) -> schema.Group:
        """Returns the group at a position of the prompt stream that `find` finds.

        Args:
            position: in the prompt stream.
            policy_version: only groups of data sets of this policy version, if given.

        Raises:
            DataError: the group does not exist, or is damaged.
        """
        number = self.find(position, policy_version)
        if number is None:
            version = "" if policy_version is None else f" of policy version {policy_version}"
            raise DataError(
                f"Rollout folder {self.folder} has no group{version} at position {position};"
                " imported groups have no position."
            )
        return self[number]


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
