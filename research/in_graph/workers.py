"""The process pool of a study: on a CPU one single-threaded process per core, on an accelerator one
process that computes many runs side by side.

This module imports nothing of numpy or jax: a process sets its number of threads before they load.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from grre_jax.errors import DataError, UsageError

# One process per core with one thread each is faster than one process with a thread per core: the
# products of a tiny model are too small to be shared out.
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
ONE_THREAD_XLA = "--xla_cpu_multi_thread_eigen=false"

Task = tuple[Callable[..., Any], *tuple[Any, ...]]


class Workers:
    """A context manager around the processes.

    Args:
        count: number of processes on a CPU.

    Attributes:
        platform: that they compute on, as jax names it.
        machine: the devices of one of them, the architecture and the version of jax, in words.

    Raises:
        DataError: a process fails or ends early.
    """

    def __init__(self, count: int):
        from research.in_graph import worker

        self._pool = make_pool(1)
        self.platform, self.machine = _answer(self._pool.submit(worker.describe))
        if self.platform == "cpu" and count > 1:  # an accelerator has one owner
            self._pool.shutdown()
            self._pool = make_pool(count)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: Any) -> None:
        if exception[0] is not None:
            # As `kill_workers` of Python 3.14: nobody waits for the tasks that are running.
            for process in list((self._pool._processes or {}).values()):
                process.kill()
        self._pool.shutdown(cancel_futures=True)

    def answers(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        """Yields every task, a function and its arguments, with its result, as they are done."""
        return answers(self._pool, tasks)


def make_pool(count: int) -> ProcessPoolExecutor:
    """Returns a pool of `count` single-threaded processes that end with this one."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=spawn, initializer=_begin)


def answers(pool: ProcessPoolExecutor, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
    """Yields every task with its result, as they are done.

    Raises:
        DataError: a task fails, with its error, or its process ends.
    """
    futures = {pool.submit(*task): task for task in tasks}
    for future in as_completed(futures):
        yield futures[future], _answer(future)


def _answer(future: Future) -> Any:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise DataError(
            "a worker of the study ended in the middle: run the study again, it continues"
        ) from error
    except (DataError, UsageError) as error:
        raise DataError(f"a worker of the study failed: {error}") from error
    except Exception as error:
        raise DataError(f"a worker of the study failed: {type(error).__name__}: {error}") from error


def _begin() -> None:
    """Begins a process: one thread, no interrupts from the keyboard, and an end with its parent."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD_XLA}".strip()
    os.environ.update({**ONE_THREAD, "XLA_FLAGS": flags})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A parent that is killed cannot close the pool, and an accelerator would keep its owner.
    multiprocessing.parent_process().join()
    os._exit(1)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
