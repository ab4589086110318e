"""Paths in an object store, with the part of `pathlib.Path` that the folder of a run needs.

An object exists whole or not at all, so `write_text` is what a rename is on a disk. A store has no
folders: one exists as long as an object is below it. A request that fails (a lost connection, a
refusal) raises OSError and never means "it does not exist", as fsspec's `isfile` has it.
"""

import contextlib
import dataclasses
import fnmatch
import functools
import os
import posixpath
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from grre_jax.errors import DataError, UsageError
from grre_jax.storage.files import sha256

AT_ONCE = 8  # files that are sent together


@contextlib.contextmanager
def as_os_error() -> Iterator[None]:
    """Raises the errors of stores' clients, which have classes of their own, as OSError."""
    try:
        yield
    except (OSError, DataError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def of(folder: "str | os.PathLike[str]") -> "Path | StorePath":
    """Returns the folder of a path or URL (s3://, gs://, or any other that fsspec knows)."""
    text = os.fspath(folder)
    return StorePath(text) if "://" in text else Path(text)


def remove_tree(path: "Path | StorePath") -> None:
    """Removes a file, or a folder with all files below it.

    Raises:
        OSError: it cannot be removed.
    """
    if isinstance(path, StorePath):
        path.remove_all()
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def inside(path: str, folder: "Path | StorePath") -> bool:
    """True if a path or URL is a folder, or is below it."""
    if isinstance(folder, StorePath) or "://" in path:
        return f"{path.rstrip('/')}/".startswith(f"{folder}/")
    return Path(path).resolve().is_relative_to(folder.resolve())


def upload_files(
    source: Path, target: "StorePath", names: Iterable[str]
) -> dict[str, tuple[int, str]]:
    """Uploads files of a local folder, a few at a time.

    Args:
        source: the local folder.
        target: the folder in the store.
        names: paths of the files below both.

    Returns:
        Size in bytes and SHA-256 of each file.

    Raises:
        OSError: a file cannot be uploaded; others may have been.
    """

    def send(name: str) -> tuple[str, tuple[int, str]]:
        about = (source / name).stat().st_size, sha256(source / name)
        (target / name).upload(source / name)
        return name, about

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(pool.map(send, names))


@dataclasses.dataclass(frozen=True, order=True)
class StorePath:
    """A path in an object store, which is not accessed before it is needed.

    Args:
        url: such as s3://bucket/run.

    Raises:
        OSError: from every method that accesses the store, if it cannot; FileNotFoundError if the
            object to be read or removed does not exist.
        UsageError: as `opened`.
    """

    url: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", self.url.rstrip("/"))

    def __str__(self) -> str:
        return self.url

    __fspath__ = __str__

    def __truediv__(self, name: str) -> "StorePath":
        return StorePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return posixpath.basename(self.url)

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> "StorePath":
        """The path without its last part."""
        return StorePath(posixpath.dirname(self.url))

    @functools.cached_property
    def opened(self) -> tuple[Any, str]:
        """fsspec's file system of the URL, and the path in it.

        Raises:
            UsageError: fsspec does not know the URL's scheme, or lacks the package for it.
        """
        from fsspec.core import url_to_fs

        try:
            # Without a cache of listings: other writers add to them.
            return url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:
            raise UsageError(
                f"{self}: {error}; pip install 'grre-jax[s3]' for s3://, 'grre-jax[gs]' for gs://"
                " (gcsfs)."
            ) from error
        except ValueError as error:
            raise UsageError(f"{self}: {error}; use a path, s3:// or gs://.") from error

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """Returns what a method of the file system returns for the path."""
        files, path = self.opened
        with as_os_error():
            return getattr(files, method)(path, *args, **options)

    def exists(self) -> bool:
        """True if there is an object of that name, or one below it."""
        return bool(self._kind())

    def is_file(self) -> bool:
        """True if there is an object of that name."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """True if there are objects below it."""
        return self._kind() == "directory"

    def _kind(self) -> str:
        try:
            return str(self._call("info")["type"])
        except FileNotFoundError:
            return ""

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a store has no folders without objects."""

    def iterdir(self) -> Iterator["StorePath"]:
        """Yields the paths directly below, in order."""
        try:
            found = self._call("ls", detail=False)
        except FileNotFoundError:
            return
        own = self.opened[1]
        names = {posixpath.basename(name.rstrip("/")) for name in found if name.rstrip("/") != own}
        for name in sorted(names):
            yield self / name

    def glob(self, pattern: str) -> Iterator["StorePath"]:
        """Yields the paths directly below whose names match a pattern, in order."""
        return (path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern))

    def read_bytes(self) -> bytes:
        """Returns the object."""
        return self._call("cat_file")

    def read_text(self) -> str:
        """Returns the object as text."""
        return self.read_bytes().decode()

    def write_text(self, text: str) -> None:
        """Makes or replaces the object."""
        self._call("pipe_file", text.encode())

    def create(self, text: str) -> bool:
        """Makes the object if it does not exist, which the store decides for all writers.

        Returns:
            True if the object now has this text.
        """
        try:
            self._call("pipe_file", text.encode(), mode="create")
        except FileExistsError:
            # Another was faster, or our first attempt succeeded and its answer was lost.
            return self.read_text() == text
        return True

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the object."""
        try:
            self._call("rm_file")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_all(self) -> None:
        """Removes the object and all objects below it."""
        with contextlib.suppress(FileNotFoundError):
            self._call("rm", recursive=True)

    def upload(self, source: Path) -> None:
        """Makes or replaces the object from a local file, which may grow meanwhile."""
        (files, path), size = self.opened, source.stat().st_size
        with as_os_error():
            files.put_file(str(source), path)
        if (stored := self._call("info")["size"]) < size:
            raise OSError(f"{self} has {stored} bytes after its upload where {size} were sent")

    def download(self, target: Path) -> None:
        """Copies the object to a local file."""
        self._call("get_file", str(target))
