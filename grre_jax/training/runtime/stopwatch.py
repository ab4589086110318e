"""Seconds of a run's work by kind, on the clock of the host."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator, Mapping

from jax import monitoring


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


class Beginning(Stopwatch):
    """The time of a run until its first update, with the compiler's seconds in all threads. A
    context manager, which ends the counting of these.
    """

    def __init__(self) -> None:
        super().__init__()
        self._start, self._compiling = time.monotonic(), 0.0

    def __enter__(self) -> Beginning:
        monitoring.register_event_duration_secs_listener(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        monitoring.unregister_event_duration_listener(self._count)

    def line(self, step: Mapping[str, float]) -> str:
        """Returns the seconds up to now and their parts.

        Args:
            step: scalars of the first update's row; its `seconds_NAME` are parts too.
        """
        parts = self._seconds + collections.Counter(
            {
                name.removeprefix("seconds_"): value
                for name, value in step.items()
                if name.startswith("seconds_")
            }
        )
        whole = time.monotonic() - self._start
        parts["preparation"] = whole - sum(parts.values())
        shown = ", ".join(f"{name} {value:.1f}s" for name, value in parts.items() if value >= 0.05)
        return (
            f"first update after {whole:.1f}s: {shown}; compilation {self._compiling:.1f}s of these"
        )

    def _count(self, event: str, seconds: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self._compiling += seconds
