"""The operating system's file locks (flock), and file systems that have none."""

import errno
import fcntl
import socket
from pathlib import Path

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


def machine() -> str:
    """Returns a name of this machine since its last start."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}".strip()
