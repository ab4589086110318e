"""The two kinds of user errors, with their exit statuses, and places of errors."""

import os
import traceback
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


def raised_in(file: str | os.PathLike[str], error: BaseException) -> str:
    """Returns a Python file and the line in it where an error was raised, or from which."""
    frames = traceback.extract_tb(error.__traceback__)
    path = Path(file).resolve()
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path]
    return f"{file}, line {lines[-1]}" if lines else f"{file}"
