"""Data sets that are being written: each writer has a locked folder under `.incomplete`, and removes what killed writers left there."""

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from grre_jax.rollouts import manifest

INCOMPLETE = ".incomplete"


@contextlib.contextmanager
def opened(root: Path) -> Iterator[Path]:
    """A staging folder of the rollout folder, which is made when it does not exist."""
    (root / INCOMPLETE).mkdir(parents=True, exist_ok=True)
    (root / manifest.FILENAME).touch()  # first of all: it is what makes the folder a rollout folder
    remove_leftovers(root)
    with staging(root) as place:
        yield place


def remove_leftovers(folder: str | os.PathLike[str]) -> list[str]:
    """Removes what killed writers left under `.incomplete`; data sets that are being written stay (their writers hold a lock).

    Returns:
      Names of what was removed.
    """
    removed = []
    with contextlib.suppress(FileNotFoundError), os.scandir(Path(folder) / INCOMPLETE) as found:
        for leftover in found:
            if not leftover.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):  # locked: its writer lives; gone: another writer cleans too
                with _locked(Path(leftover.path)):
                    shutil.rmtree(leftover.path)
                    removed.append(leftover.name)
    return removed


@contextlib.contextmanager
def staging(root: Path) -> Iterator[Path]:
    """A new folder under `.incomplete`, locked while this process writes to it; removed at the end with what is left in it."""
    while True:
        place = root / INCOMPLETE / uuid.uuid4().hex
        place.mkdir()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_locked(place))
            except OSError:
                continue
            if not place.exists():
                continue  # taken for a leftover between mkdir and lock
            try:
                yield place
            finally:
                shutil.rmtree(place, ignore_errors=True)
            return


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which the kernel drops when the process dies however it dies. OSError when another holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
