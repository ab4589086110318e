"""Stopping a run between two steps, so that neither a step nor a seal is cut in half."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any


class Stopped(Exception):
    """The run was asked to stop (SIGTERM or SIGINT) and has saved what it had."""


@dataclasses.dataclass
class StopRequest:
    """Set by a signal, looked at between steps: a step or a seal is never cut in half."""

    signal_name: str = ""

    def __enter__(self) -> StopRequest:
        def note(number: int, _: Any) -> None:
            self.signal_name = signal.Signals(number).name

        # Only the main thread may listen to signals; elsewhere (a notebook's worker) the run cannot be asked to stop.
        self._before = {}
        try:
            self._before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
        except ValueError:
            self._before = {}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
