"""Who holds a role in a run's folder on an object store, which has no locks: the highest of the fences.

A fence is an object that can be made once, which the store decides for all who try (If-None-Match on S3, a generation of 0 on GCS). Whoever makes the next one
holds the role, and a former holder that wakes finds a fence above its own, whatever else it may have written in between.

    RUN/learner.fence/00000003    holds the owner's name; lower ones are removed by the holder
"""

from __future__ import annotations

import contextlib

from grre_jax.rollouts.store_path import StorePath


class Fences:
    """The fences of a role.

    Args:
        file: the JSON file that says who holds it.
    """

    def __init__(self, file: StorePath):
        self._folder = file.parent / f"{file.stem}.fence"

    def newest(self) -> int:
        """The highest fence, 0 if there is none yet.

        Raises:
            OSError: the store cannot be asked.
        """
        return max(self._numbers(), default=0)

    def take(self, token: int, owner: str) -> bool:
        """Makes a fence, if nobody was faster, and removes those below it; whether this owner has it.

        Raises:
            OSError: the store cannot be asked.
        """
        if not (self._folder / f"{token:08d}").create(owner):
            return False
        for number in self._numbers():
            if number < token:
                with contextlib.suppress(OSError):  # it says nothing any more; the next holder tries again
                    (self._folder / f"{number:08d}").unlink(missing_ok=True)
        return True

    def _numbers(self) -> list[int]:
        return [int(path.name) for path in self._folder.iterdir() if path.name.isdigit()]
