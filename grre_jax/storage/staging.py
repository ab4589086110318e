"""Folders of files that are being written: each writer has a locked one under `.incomplete`, and
removes those that killed writers left there.

The lock of a folder may be visible on its own machine only (NFS keeps a directory's lock to
itself), and some file systems have none. So the lock decides for this machine's folders, whose
names begin with the machine's; others stay until nothing in them has changed for a day.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from grre_jax.storage import locks

INCOMPLETE = ".incomplete"
SILENT_SECONDS = 86400.0  # a folder of another machine without a change for this time is removed


def remove_leftovers(folder: str | os.PathLike[str]) -> list[str]:
    """Removes the folders of killed writers under `.incomplete`; those that are being written stay.

    Returns:
        Names of the removed folders.
    """
    removed = []
    for path in (Path(folder) / INCOMPLETE).glob("*"):
        if path.is_symlink() or not path.is_dir():
            continue
        # OSError: its writer has the lock, or another writer removes it too.
        with contextlib.suppress(OSError), locked(path) as decides:
            own = decides and path.name.startswith(own_prefix())
            if own or _is_silent(path):
                shutil.rmtree(path)
                removed.append(path.name)
    return removed


@contextlib.contextmanager
def staging(root: Path) -> Iterator[Path]:
    """Makes a folder under `.incomplete`, locked while this process writes to it, and removed at
    the end with the files left in it.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        folder = root / INCOMPLETE / f"{own_prefix()}{uuid.uuid4().hex}"
        folder.mkdir()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(folder))
            except (BlockingIOError, FileNotFoundError):
                continue  # being taken for a leftover, between mkdir and lock
            except OSError:
                folder.rmdir()
                raise
            if not folder.exists():
                continue  # taken for a leftover
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


def own_prefix() -> str:
    """Returns the prefix of the names of this machine's folders."""
    return f"{hashlib.sha256(locks.machine().encode()).hexdigest()[:8]}-"


def _is_silent(folder: Path) -> bool:
    """True if nothing in a folder has changed for a day."""
    newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    return time.time() - newest > SILENT_SECONDS


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Holds a folder's lock; gives whether its file system has locks.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield locks.locked(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
