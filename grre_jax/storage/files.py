"""Files that are written whole or not at all, their digests, and their locks (flock)."""

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from grre_jax.errors import UsageError

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # file systems without flock


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_below(folder: Path) -> list[str]:
    """Returns the paths of all files in a folder, relative to it and in order."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def replace(path: Path, content: bytes | str) -> None:
    """Writes a file beside the old one and renames it, so that a reader finds the old or the new
    content, never a part.

    Args:
        path: in a folder that exists.
        content: text is written as UTF-8.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)  # the disk may be full
        raise


def lock(file: IO[Any], operation: int) -> None:
    """Locks an open file, if its file system has locks. The kernel drops the lock when the file is
    closed or the process ends, in any way.

    Args:
        file: open for writing if the lock is exclusive.
        operation: as for `fcntl.flock`.

    Raises:
        BlockingIOError: another process has locked it, with LOCK_NB.
        OSError: the file cannot be locked for another reason.
    """
    try:
        fcntl.flock(file, operation)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


@contextlib.contextmanager
def exclusive(path: Path, refusal: str) -> Iterator[None]:
    """Holds the lock of a file, which is made if it is absent.

    Args:
        path: in a folder that exists.
        refusal: the message if another process holds the lock.

    Raises:
        UsageError: another process of this machine holds it.
    """
    with open(path, "a") as file:
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(refusal) from error
        yield
