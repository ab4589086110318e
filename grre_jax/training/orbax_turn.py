"""One Orbax operation at a time in a process.

Orbax (0.12) numbers the operations of a process by one counter that its threads share. A checkpoint that is being written in the background waits for signals of the
counter's number, so that one read by another thread meanwhile leaves the writer waiting for ever. A learner and an explorer that one process plays in two threads,
as a notebook may, would meet that.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

_PAUSE = 0.002  # seconds between two looks whether what is written in the background is done
_turn = threading.RLock()


def _nothing() -> bool:
    return False


_writing: Callable[[], bool] = _nothing


@contextlib.contextmanager
def turn(writing: Callable[[], bool] = _nothing) -> Iterator[None]:
    """Waits until no other thread uses Orbax and nothing is written in the background, and keeps others out until the block ends.

    Args:
        writing: whether what the block began is still being written in the background; the next turn waits for it.
    """
    global _writing
    with _turn:
        while _writing():
            time.sleep(_PAUSE)
        _writing = writing
        yield
