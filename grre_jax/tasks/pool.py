"""Verification in processes of their own, with a time limit for each completion.

Each process has a thread here that sends it jobs. One that hangs is killed, whatever it blocks, and
another takes its place. What a completion gets does not depend on which process judged it, or
after what: where a process ends under a completion, a fresh one tries it once more.

The standard library's pools and others' run one task after another but cannot do this:
concurrent.futures and multiprocessing.Pool have no time limit and break with their workers; pebble
(5.2) has one, but its workers share one locked pipe and outlive a killed parent while they hang,
and its limit follows the wall clock.
"""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Pipe
from queue import LifoQueue
from typing import Any

from grre_jax.domains import shown
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.judging import Asked, Failure, InProcess, Judged, judgements, pairs
from grre_jax.tasks.task import Verdict

MOST_PROCESSES = 8  # that are started where nobody says how many
START_SECONDS = 120  # to import and build the task


def process_count(task: Any, processes: int) -> int:
    """Returns how many processes run a task's code, 0 for this one.

    Args:
        task: the task.
        processes: as given; -1 is 0 for a task with `trusted_verifier = True`, and else one a core,
            MOST_PROCESSES at most.
    """
    if processes < 0 and getattr(task, "trusted_verifier", False):
        return 0
    return min(os.cpu_count() or 1, MOST_PROCESSES) if processes < 0 else processes


class VerifierPool:
    """Judges completions in several processes, which start when they are needed. Threads may share
    it.

    Args:
        config: of the task; a process that takes longer than its time limit is killed.
        seed: of the task.
        processes: how many at most.

    Raises:
        UsageError: options that cannot be sent to another process; as a call may, of a question.
    """

    prefix: tuple[int, ...] = ()  # of the keys of trajectories, if others share the processes

    def __init__(self, config: TaskConfig, seed: int, processes: int):
        self._timeout = config.verify_timeout
        self._task = config.name
        built_from = _pickled(config, seed)
        self._workers = [_Worker(config.name, built_from) for _ in range(processes)]
        self._idle: LifoQueue[_Worker] = LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(processes, "verifiers")
        self._finalizer = weakref.finalize(self, _stop, self._workers)

    def __call__(self, asked: Asked) -> list[Judged]:
        """Judges completions in the worker processes; see `judging.InProcess`.

        Raises:
            UsageError: the task cannot be built in another process.
            DataError: the processes do not start.
        """
        answers = self.answers(pairs(asked))
        outcomes = (a if isinstance(a, Failure) else Verdict(**a) for a in answers)
        return judgements(self._task, asked, outcomes)

    def answers(self, asked: Sequence[tuple]) -> list[dict[str, Any] | Failure]:
        """Returns the answers of the worker processes.

        Args:
            asked: arguments for what the worker makes of the task.

        Returns:
            Their answers, in order.

        Raises:
            UsageError, DataError: as for a call.
        """
        for worker in self._workers:
            worker.stopped = False
        jobs = [_pickled(*arguments) for arguments in asked]
        try:
            return list(self._threads.map(self._answer, jobs))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the processes; they are started again when needed."""
        _stop(self._workers)

    def _answer(self, job: bytes) -> dict[str, Any] | Failure:
        worker = self._idle.get()
        try:
            return worker.answer(job, self._timeout)
        finally:
            self._idle.put(worker)


Judge = InProcess | VerifierPool


class _Worker:
    """A process that is started when it is asked, and again after it ended.

    What the death of a parent signals is the end of the thread that started the child: those of
    the pool last as long as it.
    """

    def __init__(self, task: str, built_from: bytes):
        self._task = task
        self._built_from = built_from
        self.process: subprocess.Popen | None = None
        self.stopped = False

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def answer(self, job: bytes, timeout: float) -> dict[str, Any] | Failure:
        """Returns the answer to a job; a second process tries what the first ended under."""
        for _ in range(2):
            if not self.is_running:
                self._start()
            outcome = self._asked(job, timeout)
            if self.stopped or not (isinstance(outcome, Failure) and outcome.kind == "crash"):
                break
        return outcome

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        path = os.pathsep.join(sys.path)
        with theirs:
            # Not by multiprocessing's own start methods: forking a process with threads of JAX may
            # hang, and the others run the user's main script again.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "grre_jax.tasks.pool_worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C is not for it, and what it starts is killed with it.
                start_new_session=True,
                # A verifier that computes is not to take the accelerator.
                env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
            )
        outcome = self._asked(self._built_from, START_SECONDS)
        if not isinstance(outcome, Failure):
            return
        self.stop()
        error = DataError if outcome.kind in ("crash", "timeout") else UsageError
        raise error(
            f"task.verify_processes: expected 0, as a process cannot build task {self._task}"
            f" ({outcome.reason})"
        )

    def _asked(self, job: bytes, timeout: float) -> dict[str, Any] | Failure:
        """Returns the answer of the process, which is ended if it gives none in time."""
        failure = Failure("timeout", f"no answer within {timeout:g} s")
        try:
            self._connection.send_bytes(job)
            if self._connection.poll(timeout):
                kind, answer = json.loads(self._connection.recv_bytes())
                return Failure(kind, answer) if kind else answer
        except (EOFError, OSError, ValueError):
            failure = None
        status = self.stop()
        self._connection.close()
        return failure or Failure("crash", f"the verifier's process ended with status {status}")

    def stop(self) -> int:
        """Ends the process, with all that the verifier started; returns how it ended."""
        with contextlib.suppress(OSError):  # there is nobody left
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()


def _pickled(*arguments: Any) -> bytes:
    try:
        return pickle.dumps(arguments)
    except Exception as error:  # pickle raises whatever an object's own methods do
        raise UsageError(
            f"{shown(arguments)} cannot be sent to the verifier's processes ({error}): judge in"
            " this one with task.verify_processes 0"
        ) from error


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.stopped = True
        if worker.is_running:
            worker.stop()
