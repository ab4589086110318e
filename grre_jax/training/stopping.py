"""Stopping a run between two steps, so that no step and no data set is cut in half; with several
processes, at the same step in all of them.

SIGTERM and SIGINT stop a run. A run of several processes is also stopped by a notice of JAX's
preemption service, which reports machines that are about to be reclaimed or maintained, and a
SIGTERM that arrived before the run had installed its handlers.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

import jax
from jax.experimental import multihost_utils

from grre_jax.parallel import processes


class Stopped(Exception):
    """The run was stopped by SIGTERM, SIGINT or a preemption notice (treated as SIGTERM), after its
    state was saved.

    Attributes:
        exit_status: 128 plus the signal's number, as shells report it.
    """

    def __init__(self, message: str, number: signal.Signals):
        super().__init__(message, number)
        self.exit_status = 128 + number

    def __str__(self) -> str:
        return self.args[0]


class StopRequest:
    """A context that records SIGTERM and SIGINT, for a check between steps.

    Only the main thread can handle signals: in others (a notebook's worker) the context does
    nothing.

    Attributes:
        received: the signal, or None; another process's only after `agreed` returned it.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._calls = 0
        self._largest = processes.LargestOf()

    def __enter__(self) -> StopRequest:
        def note(number: int, _: Any) -> None:
            self.received = signal.Signals(number)

        listening = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if listening else ()
        self._before = {number: signal.signal(number, note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def agreed(self) -> signal.Signals | None:
        """Returns the signal to stop by, or None; the same in all processes, which call this
        equally often.

        A single process stops at once. With several, a signal of one of them stops all at the next
        call, so that none waits in a computation for one that left. After a preemption notice the
        service itself finds the call at which all of them stop.
        """
        self._calls += 1
        if (
            processes.many()
            and jax.config.jax_enable_preemption_service
            and multihost_utils.reached_preemption_sync_point(self._calls)
        ):
            self.received = signal.SIGTERM
            return self.received
        number = self._largest(int(self.received or 0))
        self.received = signal.Signals(number) if number else self.received
        return self.received if number else None

    def stopped(self, where: str) -> Stopped:
        """Returns the exception that ends the run, after `agreed` returned a signal.

        Args:
            where: the point at which it stops, the saved steps, and how to continue.
        """
        return Stopped(f"stopped by {self.received.name} {where}", self.received)
