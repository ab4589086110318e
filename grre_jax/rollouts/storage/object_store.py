"""A rollout folder in an object store, read and written by way of local files.

    URL/manifest.jsonl                    a line for each data set, as on a disk
    URL/manifest/00000000.jsonl, ...      its lines in folders that earlier versions wrote
    URL/NAME/features.json, ..., rollouts-train.array_record-00000-of-00001

Data sets are written on the local disk, uploaded under a unique name, and then entered: the
manifest is replaced by one with their lines. A folder has one writer. One that is killed leaves a
sealed data set or objects that the manifest does not list.
"""

import contextlib
import dataclasses
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from grre_jax.errors import DataError
from grre_jax.rollouts import manifest
from grre_jax.rollouts.storage.local import LocalStorage
from grre_jax.storage.remote import Store, is_url, temporary_folder


def manifest_lines(store: Store, folder: str = "") -> bytes:
    """Returns the manifest of a rollout folder in a store, in either layout; empty without one.

    Args:
        store: that contains the folder.
        folder: its name in the store, with a slash at its end; the store itself if empty.

    Raises:
        OSError: the store cannot be read.
    """
    try:
        return store.read(f"{folder}{manifest.FILENAME}")
    except FileNotFoundError:
        names = [name for name in store.names(f"{folder}manifest") if name.endswith(".jsonl")]
        return b"".join(map(store.read, names))


class ObjectStorage(LocalStorage):
    """The rollout folder at a URL. Files are copied to a temporary folder as they are read.

    Args:
        url: of the folder.

    Raises:
        UsageError: fsspec does not have the URL's scheme, or lacks the package for it.
    """

    def __init__(self, url: str) -> None:
        self._store = Store(url)
        self._temporary = temporary_folder()
        super().__init__(Path(self._temporary.name), self._store.url)

    def check(self) -> None:
        """Checks that the folder is a rollout folder, or empty."""
        with self._reading():
            if not manifest_lines(self._store) and self._store.names():
                raise DataError(
                    f"{self.root} is not a rollout folder: it has objects but no"
                    f" {manifest.FILENAME}; check the URL."
                )

    def is_new(self) -> bool:
        """True if there are no objects."""
        with self._reading():
            return not self._store.names()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"Rollout folder {self.root} cannot be read ({error}); check its name, your access"
                f" to it, and the space in {self.path}."
            ) from error

    def read_manifest(self) -> bytes:
        """Returns the manifest; empty before the first data set."""
        with self._reading():
            return manifest_lines(self._store)

    def file(self, entry: manifest.Entry, name: str) -> Path:
        """Returns the path of a copy of a data set's file, which has the listed size."""
        file = f"{entry.name}/{name}"
        if not (self.path / file).exists():
            with temporary_folder() as folder, self._reading():
                with contextlib.suppress(FileNotFoundError):  # the listed file is missing
                    self._store.download([file], Path(folder))
                    (self.path / entry.name).mkdir(exist_ok=True)
                    shutil.move(Path(folder) / file, self.path / file)
        return super().file(entry, name)

    def release(self, entry: manifest.Entry) -> None:
        """Removes the local copies of a data set's files."""
        shutil.rmtree(self.path / entry.name, ignore_errors=True)

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Makes a local folder for new data sets."""
        with temporary_folder() as folder:
            yield Path(folder)

    def publish(self, staged: list[tuple[Path, manifest.Entry]]) -> list[str]:
        """Uploads data sets and enters them in the manifest, all or none."""
        entries = []
        for folder, entry in staged:
            unique = dataclasses.replace(entry, name=f"{entry.name}-{uuid.uuid4().hex[:8]}")
            folder = folder.rename(folder.with_name(unique.name))
            self._store.upload([f"{unique.name}/{name}" for name in entry.files], folder.parent)
            entries.append(unique)
        # If this or an upload fails, the objects stay, and do not count.
        lines = b"".join(map(manifest.to_line, entries))
        self._store.write(manifest.FILENAME, manifest_lines(self._store) + lines)
        return [entry.name for entry in entries]


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
