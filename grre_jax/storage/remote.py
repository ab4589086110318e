"""Folders in an object store: s3://, gs://, and any other scheme that fsspec has.

Everything works on files of the local disk. What a process needs of a folder in a store is copied
there first, and what it writes is copied to the store afterwards: files first, then the object that
enters them. An object exists whole or not at all, so readers find entered files, and a folder in
a store has one writer.
"""

import contextlib
import glob
import hashlib
import os
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from grre_jax.errors import DataError, UsageError

FOLDER_VARIABLE = "GRRE_CACHE"


def is_url(folder: str | os.PathLike[str]) -> bool:
    """True for the URL of a folder in an object store, False for a path."""
    return "://" in os.fspath(folder)


def local_folder(folder: str | os.PathLike[str]) -> Path:
    """Returns the folder in which a learner works: the path itself; of a URL, a folder below
    $GRRE_CACHE, else ~/.cache/grre_jax.
    """
    if not is_url(folder):
        return Path(folder)
    url = os.fspath(folder).rstrip("/")
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    cache = Path(os.environ.get(FOLDER_VARIABLE) or "~/.cache/grre_jax").expanduser()
    return cache / "runs" / f"{url.rpartition('/')[2]}-{digest}"


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Makes a local folder that is removed with the returned object, at the latest when the process
    ends.
    """
    return tempfile.TemporaryDirectory(prefix="grre-", ignore_cleanup_errors=True)


@contextlib.contextmanager
def as_os_error() -> Iterator[None]:
    """Raises the errors of libraries that have classes of their own (stores' clients, ArrayRecord)
    as OSError.
    """
    try:
        yield
    except (OSError, DataError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class Store:
    """A folder in an object store; objects are named by their paths below it.

    Args:
        url: of the folder.

    Attributes:
        url: without a slash at its end.

    Raises:
        OSError: from every method, if the store cannot be accessed; FileNotFoundError if an object
            to be read does not exist.
        UsageError: fsspec does not have the URL's scheme, or lacks the package for it.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self.url: str = url.rstrip("/")
        try:
            # Without a cache of listings: another process adds to them.
            self._files, self._root = url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:
            raise UsageError(
                f"{self.url}: {error}; pip install 'grre-jax[s3]' for s3://, 'grre-jax[gs]' for"
                " gs:// (gcsfs)."
            ) from error
        except ValueError as error:
            raise UsageError(f"{self.url}: {error}; use a path, s3:// or gs://.") from error

    def names(self, below: str = "") -> list[str]:
        """Returns the names of all objects, or of those below a folder, in order."""
        folder = f"{self._root}/{below}".rstrip("/")
        with as_os_error():
            paths = self._files.find(folder)
        return sorted(path[len(self._root) + 1 :] for path in paths if path != folder)

    def read(self, name: str) -> bytes:
        """Returns an object."""
        with as_os_error():
            return self._files.cat_file(f"{self._root}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Makes or replaces an object."""
        with as_os_error():
            self._files.pipe_file(f"{self._root}/{name}", content)

    def download(self, names: Collection[str], folder: Path) -> None:
        """Copies objects into a local folder, several at a time."""
        with as_os_error():
            self._files.get(self._paths(names), [f"{folder}/{name}" for name in names])

    def upload(self, names: Collection[str], folder: Path) -> None:
        """Makes or replaces objects from the files of a local folder, several at a time."""
        with as_os_error():
            self._files.put([f"{folder}/{name}" for name in names], self._paths(names))

    def remove(self, names: Collection[str]) -> None:
        """Removes objects; those that do not exist are skipped."""
        # `rm` takes names for patterns.
        paths = [glob.escape(path) for path in self._paths(names)]
        with as_os_error(), contextlib.suppress(FileNotFoundError):
            self._files.rm(paths)

    def _paths(self, names: Collection[str]) -> list[str]:
        return [f"{self._root}/{name}" for name in names]
