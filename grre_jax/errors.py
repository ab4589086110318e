"""The two kinds of user errors, with their exit statuses, and sentences for errors of the operating
system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator


class UsageError(Exception):
    """A request that cannot be met: an unknown field, a bad value, a run folder that exists.

    Exit status 2.
    """

    exit_status = 2


class DataError(Exception):
    """Data that is missing or damaged: a corrupt shard, an empty data set, an unsupported
    checkpoint. Exit status 1.
    """

    exit_status = 1


# Cause and fix by the error number of the operating system.
_ROOM = "make room there and start it again"
_ACCESS = "give this user access to it, or name another place"
_CAUSES = {
    errno.ENOSPC: ("no space is left on the device", _ROOM),
    errno.EDQUOT: ("the disk quota is used up", _ROOM),
    errno.EFBIG: (
        "the file would be larger than the system allows",
        "raise the limit on file sizes (ulimit -f)",
    ),
    errno.EACCES: ("permission denied", _ACCESS),
    errno.EPERM: ("the operation is not permitted", _ACCESS),
    errno.EROFS: ("the file system is read-only", "name a place that can be written to"),
    errno.EIO: (
        "the device failed (input/output error)",
        "check the disk; its files may have to be restored from a copy",
    ),
    errno.ENAMETOOLONG: ("its name is too long", "name a shorter path"),
    errno.EISDIR: (
        "it is a folder where a file is expected",
        "name another path, or move the folder away",
    ),
    errno.ENOTDIR: (
        "a part of its path is a file where a folder is expected",
        "name another path, or move that file away",
    ),
    errno.ENOENT: ("it does not exist", "check the path, or restore it from a copy"),
    errno.EMFILE: ("this process has too many files open", "raise the limit (ulimit -n)"),
    errno.ENOTEMPTY: ("the folder is not empty", "move it away"),
}


def system_failure(error: BaseException) -> str | None:
    """Returns file, cause and fix of an error of the operating system as a sentence.

    Args:
        error: an OSError; or the error of a library that quotes the system's message, as
            TensorStore and safetensors do.

    Returns:
        The sentence without a full stop; None for an error of another kind.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    text = str(error)
    if isinstance(error, OSError) and error.errno is None:  # a library's own message
        found = None
    number = (
        found.errno
        if isinstance(found, OSError)
        else next((n for n in _CAUSES if os.strerror(n) in text), None)
    )
    if number is None:
        return text.splitlines()[0] if isinstance(error, OSError) and text else None
    quoted, named = re.search(r"""["'](/[^"']+)["']""", text), getattr(found, "filename", None)
    file = os.fsdecode(named) if named else quoted[1] if quoted else ""
    cause, fix = _CAUSES.get(number, (os.strerror(number), "check it and start again"))
    return f"{file or 'a file that the system does not name'}: {cause}; {fix}"


@contextlib.contextmanager
def naming(file: str | os.PathLike[str]) -> Iterator[None]:
    """A context that adds a file's name to an OSError without one, as for files that are open."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(file)
        raise
