"""Newer policies for a call that is under way (--swap-weights)."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from grre_jax.training.checkpoints.contents import CheckpointGone

PAUSE = 1.0  # seconds between two looks at the checkpoints


class NewerPolicies:
    """Reads newer policies in a thread, so that sampling goes on meanwhile. A context manager.

    Args:
        newest: returns the newest version that may sample, -1 if there is none.
        read: returns the parameters of a version; raises CheckpointGone if it was removed.
    """

    def __init__(self, newest: Callable[[], int], read: Callable[[int], Any]):
        self._newest, self._read = newest, read
        self._thread = ThreadPoolExecutor(1)
        self._reading: Future[tuple[Any, int] | None] | None = None
        self._looked = time.monotonic()  # the call begins with the newest

    def __enter__(self) -> NewerPolicies:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def __call__(self, version: int) -> tuple[Any, int] | None:
        """Returns the parameters and the version of a policy newer than `version`, if one has been
        read.
        """
        if self._reading is None:
            if time.monotonic() >= self._looked + PAUSE:
                self._reading = self._thread.submit(self._next, version)
            return None
        if not self._reading.done():
            return None
        found, self._reading, self._looked = self._reading.result(), None, time.monotonic()
        return found

    def _next(self, version: int) -> tuple[Any, int] | None:
        newest = self._newest()
        try:
            return (self._read(newest), newest) if newest > version else None
        except CheckpointGone:
            return None  # a newer one exists
