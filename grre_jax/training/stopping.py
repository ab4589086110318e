"""Stopping a run between two steps, so that neither a step nor a seal is cut in half."""

from __future__ import annotations

import dataclasses
import signal
import threading
from typing import Any


class Stopped(Exception):
    """The run was asked to stop (SIGTERM or SIGINT) and has saved what it had.

    Attributes:
        exit_status: 128 plus the signal's number, as shells report it.
    """

    def __init__(self, message: str, number: signal.Signals):
        super().__init__(message)
        self.exit_status = 128 + number


@dataclasses.dataclass
class StopRequest:
    """A context in which SIGTERM and SIGINT are noted, to be looked at between steps.

    Only the main thread may listen to signals: elsewhere (a notebook's worker) the context does nothing.

    Attributes:
        received: the signal, or None.
    """

    received: signal.Signals | None = None

    def __enter__(self) -> StopRequest:
        def note(number: int, _: Any) -> None:
            self.received = signal.Signals(number)

        listening = threading.current_thread() is threading.main_thread()
        self._before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)} if listening else {}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stopped(self, where: str) -> Stopped:
        """The exception that ends a run that was asked to stop; `where` says what is saved and how to go on."""
        return Stopped(f"stopped by {self.received.name} {where}", self.received)
