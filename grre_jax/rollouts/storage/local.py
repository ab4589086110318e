"""Rollout folders on a disk."""

import contextlib
import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import manifest
from grre_jax.storage import staging
from grre_jax.storage.staging import INCOMPLETE

INDEX = ".index.sqlite"  # left by versions that kept an index beside the manifest


class LocalStorage:
    """A rollout folder on a disk, which machines may share.

    Attributes:
        path: its path.
        root: its name: the path, or the URL of which the path has copies.
    """

    def __init__(self, path: Path, root: str = "") -> None:
        self.path = path
        self.root: Path | str = root or path

    def check(self) -> None:
        """Checks that the folder is a rollout folder, or empty.

        Raises:
            DataError: it is neither, or cannot be read.
        """
        if not self.path.is_dir():
            raise DataError(f"Rollout folder {self.path} does not exist; check the path.")
        if not (self.path / manifest.FILENAME).exists() and any(
            not path.name.startswith(".") for path in self.path.iterdir()
        ):
            raise DataError(
                f"{self.path} is not a rollout folder: it has files but no"
                f" {self.path / manifest.FILENAME}; check the path, or restore the manifest."
            )

    def is_new(self) -> bool:
        """True if nothing is there but what a writer that failed left."""
        if not self.path.is_dir():
            return not self.path.exists()
        left = {manifest.FILENAME, INCOMPLETE}
        others = [path for path in self.path.iterdir() if path.name not in left]
        return not others and not self.tail().new()

    def tail(self) -> manifest.Tail:
        """Returns a reader of the manifest."""
        return manifest.Tail(self.path)

    def file(self, entry: manifest.Entry, name: str) -> Path:
        """Returns the path on this machine of a data set's file, which has the listed size.

        Raises:
            CorruptShard: the file is missing, or has another size.
            DataError: the store cannot be read.
        """
        path = self.path / entry.name / name
        shown = entry.location(self.root, name)
        expected = entry.files[name].bytes
        try:
            size = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError) as error:
            problem = "the manifest lists this file but it is missing"
            raise manifest.CorruptShard(shown, problem) from error
        if size != expected:
            problem = f"{size:,} bytes where the manifest lists {expected:,}"
            raise manifest.CorruptShard(shown, problem)
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
            if (self.path / name).is_dir()
            for path in sorted((self.path / name).iterdir())
            if path.name not in entry.files
        ]
        own = {*entries, manifest.FILENAME, INCOMPLETE}
        ignored += sorted(
            path.name
            for path in self.path.iterdir()
            if path.name not in own and not path.name.startswith(INDEX)
        )
        return ignored, sorted(
            f"{INCOMPLETE}/{path.name}" for path in self.path.glob(f"{INCOMPLETE}/*")
        )

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Makes a local folder for new data sets, and the rollout folder, which is removed if
        nothing is sealed in it.

        Raises:
            OSError, UsageError: the folder cannot be made.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"Rollout folder {self.path} is a file; name a folder.")
        made = not self.path.exists()
        listing = self.path / manifest.FILENAME
        (self.path / INCOMPLETE).mkdir(parents=True, exist_ok=True)
        listing.touch()  # first of all: it is what makes the folder a rollout folder
        staging.remove_leftovers(self.path)
        try:
            with staging.staging(self.path) as folder:
                yield folder
        except BaseException:
            with contextlib.suppress(OSError):  # another writer may have come meanwhile
                if made and listing.stat().st_size == 0:
                    (self.path / INCOMPLETE).rmdir()
                    listing.unlink()
                    self.path.rmdir()
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
            manifest.sync_folder(self.path)
            manifest.append(self.path, *entries)
        except OSError:
            for entry in entries:  # without their lines they do not exist
                shutil.rmtree(self.path / entry.name, ignore_errors=True)
            raise
        return [entry.name for entry in entries]

    def _rename(self, folder: Path, stem: str) -> str:
        """Renames a data set into place, under a name that is not used and not listed: the
        folder of a listed data set may have been lost.
        """
        listed = (self.path / manifest.FILENAME).read_bytes()
        for number in itertools.count(1):
            name = stem if number == 1 else f"{stem}-{number}"
            if f'"name":"{name}"'.encode() in listed or os.path.lexists(self.path / name):
                continue
            try:
                os.rename(folder, self.path / name)  # it never replaces a folder that has files
                return name
            except OSError:
                if not os.path.lexists(self.path / name):  # else another writer was faster
                    raise
        raise AssertionError("unreachable")
