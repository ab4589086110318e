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
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from grre_jax.errors import DataError
from grre_jax.rollouts import manifest
from grre_jax.storage.remote import Store, temporary_folder


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


class ObjectStorage:
    """The rollout folder at a URL, with the methods of `LocalStorage`.

    Args:
        url: of the folder.

    Raises:
        UsageError: fsspec does not have the URL's scheme, or lacks the package for it.
    """

    def __init__(self, url: str) -> None:
        self._store = Store(url)
        self.root: str = self._store.url
        self._temporary = temporary_folder()
        self._folder = Path(self._temporary.name)

    def check(self) -> None:
        """Checks that the folder is a rollout folder, or empty."""
        with self._listing():
            if not manifest_lines(self._store) and self._store.names():
                raise DataError(
                    f"{self.root} is not a rollout folder: it has objects but no"
                    f" {manifest.FILENAME}; check the URL."
                )

    @contextlib.contextmanager
    def _listing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"Rollout folder {self.root} cannot be read ({error}); check its name and your"
                " access to it."
            ) from error

    def tail(self) -> "ObjectTail":
        """Returns a reader of the manifest."""
        return ObjectTail(self)

    def copy_manifest(self) -> None:
        """Copies the manifest as it is now to the local disk."""
        with self._listing():
            (self._folder / manifest.FILENAME).write_bytes(manifest_lines(self._store))

    def file(self, entry: manifest.Entry, name: str) -> Path:
        """Returns the path on this machine of a copy of a data set's file, which has the listed
        size; its records are checked when they are read.
        """
        file = f"{entry.name}/{name}"
        path = self._folder / file
        if path.exists():
            return path
        with temporary_folder() as temporary:
            part = Path(temporary) / file
            try:
                self._store.download([file], Path(temporary))
            except FileNotFoundError as error:
                raise manifest.CorruptShard(
                    f"{self.root}/{file}", "the manifest lists this object but it is missing"
                ) from error
            except OSError as error:
                raise DataError(
                    f"{self.root}/{file} cannot be read ({error}); check your access to it and the"
                    f" space in {temporary}."
                ) from error
            if part.stat().st_size != entry.files[name].bytes:
                raise manifest.CorruptShard(
                    f"{self.root}/{file}",
                    f"{part.stat().st_size:,} bytes where the manifest lists"
                    f" {entry.files[name].bytes:,}",
                )
            path.parent.mkdir(exist_ok=True)
            shutil.move(part, path)
        return path

    def release(self, entry: manifest.Entry) -> None:
        """Removes the local copies of a data set's files."""
        shutil.rmtree(self._folder / entry.name, ignore_errors=True)

    def strays(self, entries: Mapping[str, manifest.Entry]) -> tuple[list[str], list[str]]:
        """Returns the names of objects that do not count; none are being written for all to see."""
        listed = {f"{name}/{file}" for name, entry in entries.items() for file in entry.files}
        with self._listing():
            strays = set(self._store.names()) - listed - {manifest.FILENAME}
        return sorted(name for name in strays if not name.startswith("manifest/")), []

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Makes a local folder for new data sets."""
        with temporary_folder() as folder:
            yield Path(folder)

    def publish(self, staged: list[tuple[Path, manifest.Entry]]) -> list[str]:
        """Uploads data sets and enters them in the manifest, all or none."""
        entries = []
        uploaded: list[str] = []
        try:
            for folder, entry in staged:
                unique = dataclasses.replace(entry, name=f"{entry.name}-{uuid.uuid4().hex[:8]}")
                folder = folder.rename(folder.with_name(unique.name))
                names = [f"{unique.name}/{name}" for name in entry.files]
                uploaded += names
                self._store.upload(names, folder.parent)
                entries.append(unique)
        except OSError:
            with contextlib.suppress(OSError):  # the upload's own error is the one to report
                self._store.remove(uploaded)
            raise
        # If this fails, the objects stay: the store may have taken it, and its answer was lost.
        lines = b"".join(map(manifest.to_line, entries))
        self._store.write(manifest.FILENAME, manifest_lines(self._store) + lines)
        return [entry.name for entry in entries]


class ObjectTail(manifest.Tail):
    """Reads the entries of an object store's manifest from where the last reading stopped.

    Args:
        storage: of the rollout folder.
    """

    unfinished = False  # an object is there whole or not at all

    def __init__(self, storage: ObjectStorage) -> None:
        super().__init__(storage._folder)
        self.shown = f"{storage.root}/{manifest.FILENAME}"
        self._storage = storage

    def scan(self) -> Iterator[manifest.Entry | manifest.CorruptManifest]:
        """Yields new entries, and the error of a damaged line in its place.

        Raises:
            DataError: the store cannot be read.
        """
        self._storage.copy_manifest()
        yield from super().scan()
