"""The operating system's file locks (flock), and file systems that have none."""

import contextlib
import errno
import fcntl
import socket
from collections.abc import Iterator
from pathlib import Path

from grre_jax.errors import UsageError

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # file systems without flock


def locked(descriptor: int, operation: int) -> bool:
    """Locks an open file or folder. The kernel drops the lock when the process ends, in any way.

    Args:
        descriptor: of the file.
        operation: as for `fcntl.flock`.

    Returns:
        False when its file system has no locks.

    Raises:
        BlockingIOError: another holds it, with LOCK_NB.
        OSError: anything else that is wrong with the file.
    """
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


@contextlib.contextmanager
def exclusive(file: Path, refusal: str) -> Iterator[None]:
    """Holds the lock of a file, which is made if it is absent.

    Args:
        file: in a folder that exists.
        refusal: the message if another process holds the lock.

    Raises:
        UsageError: another process of this machine holds it.
    """
    with open(file, "a") as opened:
        try:
            locked(opened.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(refusal) from error
        yield


def machine() -> str:
    """Returns a name of this machine since its last start."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}".strip()
