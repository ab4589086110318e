"""Verification in processes of their own, with a time limit for each completion.

Each worker is a fresh Python process with a connection of its own to the pool; a worker that hangs
is killed, whatever it blocks, and another takes its place. What a completion gets does not depend
on which worker judged it, or after what: where a worker ends under a completion, a fresh one tries
it once more.

The standard library's pools and others' run one task after another but cannot do this:
concurrent.futures and multiprocessing.Pool have no time limit and break with their workers; pebble
(5.2) has one, but its workers share one locked pipe and outlive a killed parent while they hang,
and its limit follows the wall clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Pipe, wait
from typing import Any

from grre_jax.domains import shown
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.judging import Asked, Failure, InProcess, Judge, Judged, Report, pairs
from grre_jax.tasks.rewards import TaskSpec
from grre_jax.tasks.task import Task, Verdict

MOST_PROCESSES = 8  # that are started where nobody says how many
START_SECONDS = 120  # to import and build the task
_STARTS = 3  # workers in a row that may end while they start
_TICK = 0.25  # seconds between two looks at the clock
# Seconds by which this process itself may be late before it gives the workers that time back: it
# was stopped, and so perhaps were they.
_LATE = 1.0
# Not by multiprocessing's own start methods: forking a process with threads of JAX may hang, and
# the others run the user's main script again. A job that is told to stop tells all its processes,
# and the one in charge finishes its step first. Handlers, since what the verifier runs would
# inherit SIG_IGN.
_START = """
import json, signal, sys
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)
sys.path[:] = json.loads(sys.argv[1])
from grre_jax.tasks.pool_worker import main
main(*map(int, sys.argv[2:]))
"""


def make_judge(
    task: Task,
    spec: TaskSpec,
    *,
    processes: int = -1,
    timeout: float = 10.0,
    failed_reward: float | None = None,
) -> Judge:
    """The judge of a task's completions.

    Args:
        task: built from `spec`.
        spec: how processes build it.
        processes: how many; 0 judges in this process, -1 does so for a task that says
            `trusted_verifier = True` and else takes one a core, MOST_PROCESSES at most.
        timeout: seconds a completion.
        failed_reward: as of `judging.Report`.
    """
    count = process_count(task, processes)
    if not count:
        return InProcess(task, failed_reward, timeout)
    return VerifierPool(spec, count, timeout, failed_reward)


def process_count(task: Any, processes: int) -> int:
    """Returns how many processes run a task's code, 0 for this one; see `make_judge`."""
    if processes < 0 and getattr(task, "trusted_verifier", False):
        return 0
    return min(os.cpu_count() or 1, MOST_PROCESSES) if processes < 0 else processes


class VerifierPool:
    """Judges completions in several processes, which start when the first completion comes. Threads
    may share it: one after the other is served.

    Args:
        spec: the task.
        processes: how many at most.
        timeout: seconds that a completion may take; then its worker is killed.
        failed_reward: as of `judging.Report`.

    Raises:
        UsageError: options that cannot be sent to another process; as a call may, of a question.
    """

    def __init__(
        self, spec: TaskSpec, processes: int, timeout: float, failed_reward: float | None = None
    ):
        self._built_from = _sent(spec)
        self._name = spec.name
        self._processes = processes
        self._timeout = timeout
        self._report = Report(spec.name, failed_reward=failed_reward)
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._turn = threading.Lock()
        # What a parent's death signals is the end of the thread that started the child: this one
        # lasts as long as the pool.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="verifiers")
        # At the latest when this process ends.
        self._finalizer = weakref.finalize(self, _kill_all, self._workers, os.getpid())

    def __call__(self, asked: Asked) -> list[Judged]:
        """Judges completions in the worker processes; see `judging.Judge`.

        Raises:
            UsageError: the task cannot be built in another process.
            DataError: the workers do not start.
        """
        answers = self.answers(pairs(asked), self._timeout)
        outcomes = (a if isinstance(a, Failure) else Verdict(**a) for a in answers)
        return self._report.groups(asked, outcomes)

    def answers(self, asked: Sequence[tuple], timeout: float) -> list[dict[str, Any] | Failure]:
        """Asks the worker processes.

        Args:
            asked: arguments for what the worker makes of the task.
            timeout: seconds that each may take.

        Returns:
            Their answers, in order.

        Raises:
            UsageError, DataError: as for a call.
        """
        with self._turn:
            try:
                jobs = [_Job(_sent(*arguments), timeout) for arguments in asked]
                self._run(jobs)
            except BaseException:
                self.close()  # what is under way would answer somebody else's question
                raise
        return [job.outcome for job in jobs]

    def close(self) -> None:
        """Ends the workers; they are started again when needed."""
        _kill_all(self._workers, os.getpid())
        self._failed_starts = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def _run(self, jobs: list[_Job]) -> None:
        left = deque(jobs)
        while left or any(worker.busy for worker in self._workers):
            wanted = len(left) + sum(worker.busy for worker in self._workers)
            while len(self._workers) < min(self._processes, wanted):
                started = self._starter.submit(_Worker, self._built_from)
                self._workers.append(started.result())
            for worker in self._workers:
                if left and not worker.job:
                    worker.take(left.popleft())
            self._await(left)

    def _await(self, left: deque[_Job]) -> None:
        waiting = [worker for worker in self._workers if worker.job]
        now = time.monotonic()
        planned = max(now, min(now + _TICK, *(worker.deadline for worker in waiting)))
        ready = wait([worker.connection for worker in waiting], planned - now)
        late = time.monotonic() - planned
        for worker in waiting:
            if late > _LATE:
                worker.deadline += late
            if worker.connection in ready or worker.connection.poll():
                self._answered(worker, left)
            elif time.monotonic() >= worker.deadline:
                reason = f"no answer within {worker.job.timeout:g} s"
                self._lost(worker, left, Failure("timeout", reason))

    def _answered(self, worker: _Worker, left: deque[_Job]) -> None:
        outcome = worker.read()
        if outcome is None:
            self._lost(worker, left)
            return
        if worker.number == 0:
            if isinstance(outcome, Failure):
                raise UsageError(
                    f"the verifier's process cannot build task {self._name} ({outcome.reason}):"
                    " correct it, or judge in this process with task.verify_processes 0"
                )
            self._failed_starts = 0
        worker.job.outcome = outcome
        worker.job = None

    def _lost(self, worker: _Worker, left: deque[_Job], failure: Failure | None = None) -> None:
        """Discards a worker that ended, wrote no answer to its job, or (`failure`) was too late."""
        self._workers.remove(worker)
        status = worker.kill()
        failure = failure or Failure("crash", f"the verifier's process ended with {status}")
        job = worker.job
        if worker.number == 0:
            self._failed_starts += 1
            if self._failed_starts >= _STARTS:
                raise DataError(
                    f"the processes that verify task {self._name} do not start (the last:"
                    f" {failure.reason}): see what they print, or judge in this process with"
                    " task.verify_processes 0"
                )
        elif failure.kind == "crash" and not job.tried:
            job.tried = True
            left.appendleft(job)
        else:
            job.outcome = failure


@dataclasses.dataclass(eq=False)
class _Job:
    """One question for a worker. `tried`: one has ended under it once."""

    asked: bytes
    timeout: float
    outcome: dict[str, Any] | Failure | None = None
    tried: bool = False


class _Worker:
    """One process. Its job 0 is to build the task; it is idle without a job."""

    def __init__(self, built_from: bytes):
        self.connection, theirs = Pipe()
        lifeline, self._alive = os.pipe()  # closed by the system when this process ends
        with theirs, os.fdopen(lifeline, "rb", buffering=0):
            fds = (theirs.fileno(), lifeline)
            numbers = map(str, (*fds, os.getpid()))
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), *numbers],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                # Ctrl-C is not for it, and what it starts is killed with it.
                start_new_session=True,
                # A verifier that computes is not to take the accelerator.
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
            )
        self.number = -1  # of the job
        self.take(_Job(built_from, START_SECONDS))

    @property
    def busy(self) -> bool:
        return self.job is not None and self.number > 0

    def take(self, job: _Job) -> None:
        """Gives it a job."""
        self.job: _Job | None = job
        self.number += 1
        self.deadline = time.monotonic() + job.timeout
        with contextlib.suppress(OSError):  # it ended already: the wait will tell
            self.connection.send_bytes(job.asked)

    def read(self) -> dict[str, Any] | Failure | None:
        """Returns the answer to its job; None if it ended, or wrote something else, as what a
        verifier started may where its worker does.
        """
        try:
            message = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError, ValueError):
            return None
        match message:
            case {"n": self.number, "kind": str(kind), "reason": str(reason)}:
                return Failure(kind, reason)
            case {"n": self.number, "answer": dict(answer)}:
                return answer
        return None

    def kill(self) -> str:
        """Ends it, with all that the verifier started; says how it ended."""
        ended = self.process.poll()
        with contextlib.suppress(OSError):  # there is nobody left
            os.killpg(self.process.pid, signal.SIGKILL)
        # Stuck in the kernel: it cannot be waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended = self.process.wait(5) if ended is None else ended
        self.connection.close()
        with contextlib.suppress(OSError):
            os.close(self._alive)
        return f"signal {-ended}" if ended is not None and ended < 0 else f"status {ended}"


def _sent(*arguments: Any) -> bytes:
    try:
        return pickle.dumps(arguments)
    except Exception as error:  # pickle raises whatever an object's own methods do
        raise UsageError(
            f"{shown(arguments)} cannot be sent to the verifier's processes ({error}): judge in"
            " this one with task.verify_processes 0"
        ) from error


def _kill_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the process whose workers they are
        return
    while workers:
        workers.pop().kill()
