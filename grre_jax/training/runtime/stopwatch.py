"""Seconds of a run's work by kind, on the clock of the host."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator


class Stopwatch:
    """Adds up seconds by name until they are taken."""

    def __init__(self) -> None:
        self._seconds: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Counts the time within the context, also of a context that ends by an error."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - start

    def take(self, whole: float) -> dict[str, float]:
        """Returns the seconds since the last call as scalars `seconds_NAME`, and begins anew.

        Args:
            whole: seconds since then; what nothing else took is `seconds_training`.
        """
        found, self._seconds = self._seconds, collections.Counter()
        rest = max(whole - sum(found.values()), 0.0)
        return {f"seconds_{name}": value for name, value in sorted(found.items())} | {
            "seconds_training": rest
        }
