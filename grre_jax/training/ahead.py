"""The next step's data is read, packed and put on the devices by a thread while the devices compute.

What a step trains on is a function of the step, so the thread holds nothing that a resumed run would miss: what it prepared and nobody took is prepared again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, TypeVar

Prepared = TypeVar("Prepared")


class Ahead(Generic[Prepared]):
    """Hands out what `prepare(step)` makes, the next step's made in advance where its data is there already. A context manager: it ends its thread.

    Args:
        prepare: makes a step's data. It runs in this thread or in another one, never in both at once.
        ready: whether a step's data is there to be read. Asked in this thread; cheap.
    """

    def __init__(self, prepare: Callable[[int], Prepared], ready: Callable[[int], bool]):
        self._prepare, self._ready = prepare, ready
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._step = -1
        self._made: Future[Prepared] | None = None

    def __enter__(self) -> Ahead[Prepared]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def begin(self, step: int) -> None:
        """Has a step prepared in the background, if its data is there; the one begun before is forgotten unless it was taken."""
        self.settle()
        self._step, self._made = step, self._pool.submit(self._prepare, step) if self._ready(step) else None

    def settle(self) -> None:
        """Waits until nothing runs in the background: what the thread reads may then be changed."""
        if self._made is not None and not self._made.done():
            self._made.exception()

    def take(self, step: int) -> Prepared:
        """What was prepared of a step, or what is prepared now. An error of the background is raised here, as that of the step that it is of."""
        made, begun = self._made, self._step
        self.settle()
        self._made = None
        return made.result() if made is not None and begun == step else self._prepare(step)
