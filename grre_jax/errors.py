"""The two kinds of user errors, with their exit statuses, and sentences for errors of the operating
system.
"""

import contextlib
import errno
import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path


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


_FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk, a quota


def system_failure(error: BaseException) -> str | None:
    """Returns file and cause of an error of the operating system as a sentence.

    Args:
        error: an OSError; or the error of a library that quotes the system's message of a full
            disk, as TensorStore and safetensors do.

    Returns:
        The sentence without a full stop; None for an error of another kind.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    text = str(error)
    if isinstance(error, OSError) and error.errno is None:  # a library's own message
        return text.splitlines()[0] if text else None
    if cause is not None:
        number = cause.errno
        file = os.fsdecode(cause.filename or "")
    else:
        number = next((number for number in _FULL if os.strerror(number) in text), None)
        quoted = re.search(r"""["'](/[^"']+)["']""", text)
        file = quoted[1] if quoted else ""
    if number is None:
        return None
    fix = ". Make room there and start it again" if number in _FULL else ""
    return f"{file or 'a file that the system does not name'}: {os.strerror(number)}{fix}"


def raised_in(file: str | os.PathLike[str], error: BaseException) -> str:
    """Returns a Python file and the line in it where an error was raised, or from which."""
    frames = traceback.extract_tb(error.__traceback__)
    path = Path(file).resolve()
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path]
    return f"{file}, line {lines[-1]}" if lines else f"{file}"


@contextlib.contextmanager
def naming(file: str | os.PathLike[str]) -> Iterator[None]:
    """A context that adds a file's name to an OSError without one, as for files that are open."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(file)
        raise
