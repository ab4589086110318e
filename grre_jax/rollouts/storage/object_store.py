"""A rollout folder in an object store: s3://, gs://, and any other scheme that fsspec knows.

    URL/manifest/00000000.jsonl, 00000001.jsonl, ...    data sets sealed together, a line for each
    URL/NAME/features.json, ..., rollouts-train.array_record-00000-of-00001

Data sets are written on the local disk, uploaded whole under a unique name, and then entered: the
entry is the next number in `manifest/`, created only if it does not exist (a conditional write,
which S3, GCS and the like decide in one place). So entries have one order for all readers, nothing
is ever overwritten, and a writer that is killed leaves a sealed data set or objects that no entry
lists. Readers read through a bounded local cache, which checks each file's SHA-256.
"""

import contextlib
import dataclasses
import hashlib
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from grre_jax.errors import DataError
from grre_jax.rollouts import manifest
from grre_jax.storage import cache
from grre_jax.storage.store_path import StorePath, as_os_error, upload_files

MANIFEST = "manifest"
AT_ONCE = 500  # entries fetched together


class ObjectStorage:
    """The rollout folder at a URL, with the methods of `LocalStorage`.

    Args:
        url: of the folder.
        copies: as for `open_storage`.

    Raises:
        UsageError: fsspec does not know the URL's scheme, or lacks the package for it.
    """

    def __init__(self, url: str, copies: Path | None = None) -> None:
        self.root: str = url.rstrip("/")
        self._folder = StorePath(self.root)
        self._files, self._path = self._folder.opened
        name = hashlib.sha256(self.root.encode()).hexdigest()[:16]
        self._cache = cache.Cache(copies, limit_bytes=0) if copies else cache.standard(name)

    def check(self) -> None:
        """Checks that the folder is a rollout folder, or empty."""
        with self._listing():
            names = {path.name for path in self._folder.iterdir()}
        if names and MANIFEST not in names:  # a store has no empty folders
            raise DataError(
                f"{self.root} is not a rollout folder: it has objects but no {MANIFEST}/; check"
                " the URL."
            )

    @contextlib.contextmanager
    def _listing(self) -> Iterator[None]:
        try:
            with as_os_error():
                yield
        except OSError as error:
            raise DataError(
                f"Rollout folder {self.root} cannot be listed ({error}); check its name and your"
                " access to it."
            ) from error

    def tail(self) -> "ObjectTail":
        """Returns a reader of the manifest."""
        return ObjectTail(self._folder / MANIFEST)

    def file(self, entry: manifest.Entry, name: str) -> Path:
        """Returns the path on this machine of a copy of a data set's file, which is as listed."""
        remote, sealed = self._folder / entry.name / name, entry.files[name]
        key = f"{entry.name}/{name}"
        try:
            path = self._cache.file(key, sealed.sha256, sealed.bytes, remote.download)
        except FileNotFoundError as error:
            raise manifest.CorruptShard(
                remote, "the manifest lists this object but it is missing"
            ) from error
        except OSError as error:
            raise DataError(
                f"{remote} cannot be read ({error}); check your access to it and the space in"
                f" {self._cache.folder}."
            ) from error
        if path is None:
            raise manifest.CorruptShard(remote, manifest.OTHER_DIGEST)
        return path

    def strays(self, entries: Mapping[str, manifest.Entry]) -> tuple[list[str], list[str]]:
        """Returns the names of objects that do not count; none are being written for all to see."""
        own = {f"{name}/{file}" for name, entry in entries.items() for file in entry.files}
        with self._listing():
            found = {name[len(self._path) + 1 :] for name in self._files.find(self._path)}
        return sorted(name for name in found - own if not name.startswith(f"{MANIFEST}/")), []

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Makes a local folder for new data sets."""
        with tempfile.TemporaryDirectory(prefix="grre-rollouts-") as folder:
            yield Path(folder)

    def publish(self, staged: list[tuple[Path, manifest.Entry]]) -> list[str]:
        """Uploads data sets and enters them in the manifest's next object, all or none. If that
        object cannot be created, the data sets' objects stay, as the store may have taken it.
        """
        entries = [
            dataclasses.replace(entry, name=f"{entry.name}-{uuid.uuid4().hex[:8]}")
            for _, entry in staged
        ]
        targets = [self._folder / entry.name for entry in entries]
        try:
            for (folder, entry), target in zip(staged, targets, strict=True):
                upload_files(folder, target, entry.files)
        except OSError:
            for target in targets:  # no entry names them yet
                with contextlib.suppress(OSError):  # the upload's own error is the one to report
                    target.remove_all()
            raise
        lines = b"".join(map(manifest.to_line, entries)).decode()
        number = max(self.tail().numbers(), default=-1) + 1
        while not (self._folder / MANIFEST / f"{number:08d}.jsonl").create(lines):
            number += 1  # another writer was faster
        return [entry.name for entry in entries]


class ObjectTail(manifest.Tail):
    """Reads the entries of an object store's manifest from where the last reading stopped.

    Args:
        folder: the folder of the manifest's objects.
    """

    unfinished = False  # an object is there whole or not at all

    def __init__(self, folder: StorePath) -> None:
        self.shown, self._folder, self._last = str(folder), folder, -1

    def numbers(self) -> list[int]:
        """Returns the numbers of the manifest's objects, in order.

        Raises:
            OSError: they cannot be listed.
        """
        return [int(path.stem) for path in self._folder.glob("*.jsonl") if path.stem.isdigit()]

    def scan(self) -> Iterator[manifest.Entry | manifest.CorruptManifest]:
        """Yields new entries, and the error of a damaged line in its place.

        Raises:
            DataError: the store cannot be read.
        """
        files, path = self._folder.opened
        try:
            numbers = [number for number in self.numbers() if number > self._last]
            for start in range(0, len(numbers), AT_ONCE):
                names = [
                    f"{path}/{number:08d}.jsonl" for number in numbers[start : start + AT_ONCE]
                ]
                with as_os_error():
                    found = files.cat(names)  # of one name it is the content itself
                for name in names:
                    lines = (found[name] if isinstance(found, dict) else found).splitlines()
                    location = f"{self.shown}/{name.rpartition('/')[2]}, line "
                    yield from manifest.parsed(lines, location)
        except OSError as error:
            raise DataError(
                f"{self.shown} cannot be read ({error}); check your access to it."
            ) from error
        self._last = max([self._last, *numbers])
