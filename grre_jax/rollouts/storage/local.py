"""Rollout folders on a disk, and the choice of the storage for a path or URL."""

import contextlib
import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import manifest
from grre_jax.rollouts.storage.object_store import ObjectStorage
from grre_jax.storage import staging
from grre_jax.storage.remote import is_url
from grre_jax.storage.staging import INCOMPLETE

INDEX = ".index.sqlite"  # left by versions that kept an index beside the manifest


def open_storage(folder: str | os.PathLike[str]) -> "LocalStorage | ObjectStorage":
    """Returns the storage of a rollout folder.

    Args:
        folder: a path, or the URL of a folder in an object store (s3://, gs://, or any other scheme
            that fsspec has).

    Raises:
        UsageError: a URL that cannot be used.
    """
    text = os.fspath(folder)
    return ObjectStorage(text) if is_url(text) else LocalStorage(Path(text).expanduser())


class LocalStorage:
    """A rollout folder on a disk, which machines may share. `ObjectStorage` has the same methods.

    Attributes:
        root: its path.
    """

    def __init__(self, root: Path) -> None:
        self.root: Path = root

    def check(self) -> None:
        """Checks that the folder is a rollout folder, or empty.

        Raises:
            DataError: it is neither, or cannot be read.
        """
        if not self.root.is_dir():
            raise DataError(f"Rollout folder {self.root} does not exist; check the path.")
        if not (self.root / manifest.FILENAME).exists() and any(
            not path.name.startswith(".") for path in self.root.iterdir()
        ):
            raise DataError(
                f"{self.root} is not a rollout folder: it has files but no"
                f" {self.root / manifest.FILENAME}; check the path, or restore the manifest."
            )

    def tail(self) -> manifest.Tail:
        """Returns a reader of the manifest."""
        return manifest.Tail(self.root)

    def file(self, entry: manifest.Entry, name: str) -> Path:
        """Returns the path on this machine of a data set's file, which has the listed size.

        Raises:
            CorruptShard: the file is missing, or has another size.
            DataError: the store cannot be read.
        """
        path, expected = self.root / entry.name / name, entry.files[name].bytes
        try:
            size = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError) as error:
            raise manifest.CorruptShard(
                path, "the manifest lists this file but it is missing"
            ) from error
        if size != expected:
            raise manifest.CorruptShard(
                path, f"{size:,} bytes where the manifest lists {expected:,}"
            )
        return path

    def release(self, entry: manifest.Entry) -> None:
        """Does nothing: the files are not copies."""

    def strays(self, entries: Mapping[str, manifest.Entry]) -> tuple[list[str], list[str]]:
        """Returns the names of files and folders that do not count, and of data sets that are being
        written.

        Args:
            entries: the listed data sets by name.
        """
        ignored = [
            f"{name}/{path.name}"
            for name, entry in entries.items()
            if (self.root / name).is_dir()
            for path in sorted((self.root / name).iterdir())
            if path.name not in entry.files
        ]
        own = {*entries, manifest.FILENAME, INCOMPLETE}
        ignored += sorted(
            path.name
            for path in self.root.iterdir()
            if path.name not in own and not path.name.startswith(INDEX)
        )
        return ignored, sorted(
            f"{INCOMPLETE}/{path.name}" for path in self.root.glob(f"{INCOMPLETE}/*")
        )

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Makes a local folder for new data sets, and the rollout folder, which is removed if
        nothing is sealed in it.

        Raises:
            OSError, UsageError: the folder cannot be made.
        """
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"Rollout folder {self.root} is a file; name a folder.")
        made, listing = not self.root.exists(), self.root / manifest.FILENAME
        (self.root / INCOMPLETE).mkdir(parents=True, exist_ok=True)
        listing.touch()  # first of all: it is what makes the folder a rollout folder
        staging.remove_leftovers(self.root)
        try:
            with staging.staging(self.root) as folder:
                yield folder
        except BaseException:
            with contextlib.suppress(OSError):  # another writer may have come meanwhile
                if made and listing.stat().st_size == 0:
                    (self.root / INCOMPLETE).rmdir()
                    listing.unlink()
                    self.root.rmdir()
            raise

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
        entries: list[manifest.Entry] = []
        try:
            for folder, entry in staged:
                entries.append(dataclasses.replace(entry, name=self._rename(folder, entry.name)))
            manifest.sync_folder(self.root)
            manifest.append(self.root, *entries)
        except OSError:
            for entry in entries:  # without their lines they do not exist
                shutil.rmtree(self.root / entry.name, ignore_errors=True)
            raise
        return [entry.name for entry in entries]

    def _rename(self, folder: Path, stem: str) -> str:
        """Renames a data set into place, under a name that is not used and not listed: the
        folder of a listed data set may have been lost.
        """
        listed = (self.root / manifest.FILENAME).read_bytes()
        for number in itertools.count(1):
            name = stem if number == 1 else f"{stem}-{number}"
            if f'"name":"{name}"'.encode() in listed or os.path.lexists(self.root / name):
                continue
            try:
                os.rename(folder, self.root / name)  # it never replaces a folder that has files
                return name
            except OSError:
                if not os.path.lexists(self.root / name):  # else another writer was faster
                    raise
        raise AssertionError("unreachable")
