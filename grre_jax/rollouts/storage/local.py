"""Rollout folders on a disk."""

import contextlib
import dataclasses
import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grre_jax.errors import DataError
from grre_jax.rollouts import manifest
from grre_jax.storage.locks import lock

INCOMPLETE = ".incomplete"  # folder of the data sets that are being written


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
        names = {path.name for path in self.path.iterdir()}
        return names <= {manifest.FILENAME, INCOMPLETE} and not self.tail().new()

    def tail(self) -> manifest.Tail:
        """Returns a reader of the manifest."""
        return manifest.Tail(f"{self.root}/{manifest.FILENAME}", self.read_manifest)

    def read_manifest(self) -> bytes:
        """Returns the manifest; empty before the first data set."""
        try:
            with open(self.path / manifest.FILENAME, "rb") as file:
                lock(file, fcntl.LOCK_SH)  # lines that a full disk cuts short are removed first
                return file.read()
        except FileNotFoundError:
            return b""

    def file(self, entry: manifest.Entry, name: str) -> Path:
        """Returns the path on this machine of a data set's file, which has the listed size.

        Raises:
            CorruptShard: the file is missing, or has another size.
            DataError: the store cannot be read.
        """
        path = self.path / entry.name / name
        shown = entry.location(self.root, name)
        expected = entry.files[name]["bytes"]
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

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Makes a local folder for new data sets, and the rollout folder, which is removed if
        nothing is sealed in it.

        Raises:
            OSError: the folder cannot be made.
        """
        is_made_here = not self.path.exists()
        listing = self.path / manifest.FILENAME
        incomplete = self.path / INCOMPLETE
        incomplete.mkdir(parents=True, exist_ok=True)
        listing.touch()  # first of all: it is what makes the folder a rollout folder
        try:
            with tempfile.TemporaryDirectory(dir=incomplete, ignore_cleanup_errors=True) as folder:
                yield Path(folder)
        except BaseException:
            if is_made_here and listing.stat().st_size == 0:
                shutil.rmtree(self.path, ignore_errors=True)
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
        listed = self.read_manifest()
        entries: list[manifest.Entry] = []
        try:
            for folder, entry in staged:
                name = self._unused_name(entry.name, listed)
                folder.rename(self.path / name)  # never replaces a folder that has files
                entries.append(dataclasses.replace(entry, name=name))
            manifest.sync_folder(self.path)
            manifest.append(self.path, *entries)
        except OSError:
            for entry in entries:  # without their lines they do not exist
                shutil.rmtree(self.path / entry.name, ignore_errors=True)
            raise
        return [entry.name for entry in entries]

    def _unused_name(self, stem: str, listed: bytes) -> str:
        """Returns a name that no folder and no line of the manifest has: the folder of a listed
        data set may have been lost.
        """
        name = stem
        numbers = itertools.count(2)
        while f'"name":"{name}"'.encode() in listed or os.path.lexists(self.path / name):
            name = f"{stem}-{next(numbers)}"
        return name
