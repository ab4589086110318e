"""The operating system's file locks (flock)."""

import contextlib
import errno
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from grre_jax.errors import UsageError

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # file systems without flock


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
