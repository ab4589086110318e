"""Copies of a rollout folder with changed groups.

Groups are read, changed and written a few at a time, so memory does not grow with the folder. The
copies are sealed as data sets as they fill up. A command that was killed keeps the data sets that
it had sealed, and continues after them when it is started again.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import Group, RolloutReader, writer
from grre_jax.rollouts.storage import local
from grre_jax.rollouts.tools import copying
from grre_jax.storage import staging

SECONDS_PER_DATASET = 600  # what a killed command loses at most, about


def derive(
    source: RolloutReader,
    output: str | Path,
    changed: Callable[[range], Iterator[Group]],
    step: dict[str, Any],
    metadata: dict[str, Any],
    *,
    done: Callable[[int], None] = lambda groups: None,
) -> int:
    """Writes the changed groups of a folder into another, in order.

    Writer, policy version and metadata of each data set are kept.

    Args:
        source: the folder.
        output: the new folder; one that holds the beginning of the same copy is continued.
        changed: numbers of groups of the source to those groups, changed, in order and one at a
            time.
        step: a JSON value added to the data sets' `history`.
        metadata: takes the place of the data sets' own fields of these names.
        done: called once with the number of groups that the output had before.

    Returns:
        The number of groups written now.

    Raises:
        UsageError: the output has other groups, or another process of this machine writes to
            it.
        DataError: the source is empty, or a group cannot be read or written.
    """
    if not len(source):
        raise DataError(f"rollout folder {source.folder} has no groups")
    with _alone(output):
        finished, start = _finished(source, output, step), 0
        done(finished)
        copying.warn_of_newer(source)
        for entry in source.datasets:
            numbers = range(max(start, finished), start + entry.groups)
            start += entry.groups
            about = copying.provenance(entry)
            about["metadata"] = copying.with_step(entry.metadata | metadata, step)
            groups = changed(numbers)
            for first in groups:
                part = itertools.chain([first], _some(groups, copying.GROUPS_PER_DATASET - 1))
                writer.write_all(output, [writer.DataSet(groups=part, **about)])
    return len(source) - finished


@contextlib.contextmanager
def _alone(output: str | Path) -> Iterator[None]:
    """Keeps other processes of this machine from writing to the output on a disk; an object store
    has no such lock.
    """
    root = local.open_storage(output).root
    if not isinstance(root, Path) or root.is_file():
        yield
        return
    root.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(staging.locked(root))
        except BlockingIOError as error:
            raise UsageError(
                f"{output} is being written by another process: wait for it, or name another"
                " folder with --output"
            ) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # it has groups
                root.rmdir()


def _finished(source: RolloutReader, output: str | Path, step: dict[str, Any]) -> int:
    """Returns the number of groups of the source that the output has already, from the same
    request.
    """
    before = rollouts.read(output)
    steps = [entry.metadata.get("history", [None])[-1] for entry in before.datasets]
    same = len(before) <= len(source) and all(found == step for found in steps)
    ends = {0, len(before) - 1} if len(before) else ()
    if not same or any(before[n].group_id != source[n].group_id for n in ends):
        raise UsageError(
            f"{output} has other groups than the beginning of this copy: name a new folder"
            " with --output"
        )
    return len(before)


def _some(groups: Iterator[Group], most: int) -> Iterator[Group]:
    """Yields the next groups, until there are enough, or enough time has passed."""
    until = time.monotonic() + SECONDS_PER_DATASET
    while most > 0 and time.monotonic() < until and (group := next(groups, None)) is not None:
        most -= 1
        yield group
