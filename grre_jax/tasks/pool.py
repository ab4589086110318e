"""Verification in processes of their own, with a time limit for each completion; on one machine, or
on processors of a Ray cluster.

Each process builds the task, then judges the completions that it is sent, or steps environments,
one at a time, until the pool lets go of it. It has a thread here that sends it jobs. One that hangs
is killed, whatever it blocks, and another takes its place. What a completion gets does not depend
on which process judged it, or after what: where a process ends under a completion, a fresh one
tries it once more.

The standard library's pools and others' run one task after another but cannot do this:
concurrent.futures and multiprocessing.Pool have no time limit and break with their workers; pebble
(5.2) has one, but its workers share one locked pipe and outlive a killed parent while they hang,
and its limit follows the wall clock.
"""

import contextlib
import ctypes
import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from queue import LifoQueue
from typing import Any

from grre_jax.domains import shown
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.environments.environment import Environments, InProcessEnvironments
from grre_jax.tasks.judging import Failure, InProcess, Pairs, guarded, verdict_of
from grre_jax.tasks.task import Verdict, is_environment

MOST_PROCESSES = 8  # that are started where nobody says how many
START_SECONDS = 120  # to import and build the task
# That each actor gets of what is judged together on a cluster, so that all end at about one time.
CHUNKS = 4
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


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


class VerifierPool(InProcess):
    """Judges completions in several processes, which start when they are needed. Threads may share
    it.

    Args:
        config: of the task; a process that takes longer than its time limit is killed.
        seed: of the task.
        processes: how many at most.

    Raises:
        UsageError: options that cannot be sent to another process; as a call may, of a question, or
            if the task cannot be built there.
        DataError: of a call: the processes do not start.
    """

    def __init__(self, config: TaskConfig, seed: int, processes: int):
        self._timeout = config.verify_timeout
        self._name = config.name
        built_from = _pickled(config, seed)
        self._workers = [_Worker(config.name, built_from) for _ in range(processes)]
        self._idle: LifoQueue[_Worker] = LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(processes, "verifiers")
        self._finalizer = weakref.finalize(self, _stop, self._workers)

    def _outcomes(self, pairs: Pairs) -> list[Verdict | Failure]:
        answers = self.answers(pairs)
        return [a if isinstance(a, Failure) else Verdict(**a) for a in answers]

    def answers(self, asked: Sequence[tuple]) -> list[dict[str, Any] | Failure]:
        """Returns the answers of the worker processes.

        Args:
            asked: arguments for what the worker makes of the task.

        Returns:
            Their answers, in order.

        Raises:
            UsageError, DataError: as for a call.
        """
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


class ClusterJudges(VerifierPool):
    """Judges completions by actors that `start_judges` returned.

    Args:
        config, seed: as of `VerifierPool`.
        judges: the actors.
    """

    def __init__(self, config: TaskConfig, seed: int, judges: Sequence[Any]) -> None:
        super().__init__(config, seed, 1)  # whose own process never starts
        self._judges = judges

    def answers(self, asked: Sequence[tuple]) -> list[dict[str, Any] | Failure]:
        """Returns the actors' answers; see `VerifierPool.answers`."""
        from ray.exceptions import RayTaskError
        from ray.util import ActorPool

        size = -(-len(asked) // (CHUNKS * len(self._judges))) or 1
        chunks = [asked[start : start + size] for start in range(0, len(asked), size)]
        answers = ActorPool(self._judges).map(
            lambda judge, chunk: judge.answers.remote(chunk), chunks
        )
        try:
            return [answer for part in answers for answer in part]
        except RayTaskError as error:
            raise error.cause from None


def start_judges(ray: Any, config: TaskConfig, seed: int, count: int) -> list[Any]:
    """Starts judges on a cluster; returns the actors.

    Each is a `VerifierPool` of one process, so that time limits and failures are those of processes
    on one machine. Ray restarts a judge whose node or process is lost, and repeats what it was
    asked.

    Args:
        ray: the module, connected to the cluster.
        config, seed: as of `VerifierPool`.
        count: number of judges, a processor each.
    """
    actor = ray.remote(
        num_cpus=1,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy="SPREAD",
    )(VerifierPool)
    return [actor.remote(config, seed, 1) for _ in range(count)]


class _Worker:
    """A process that is started for its first job, and again after it ended.

    What the death of a parent signals is the end of the thread that started the child: those of
    the pool last as long as it.
    """

    def __init__(self, task: str, built_from: bytes):
        self._task = task
        self._built_from = built_from
        self.process: subprocess.Popen | None = None
        self.stops = 0  # not a flag: the next call may begin before the stopped one's jobs end

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def answer(self, job: bytes, timeout: float) -> dict[str, Any] | Failure:
        """Returns the answer to a job; a second process tries what the first ended under."""
        stops = self.stops
        for _ in range(2):
            if not self.is_running:
                self._start()
            outcome = self._asked(job, timeout)
            ended = isinstance(outcome, Failure) and outcome.kind == "crash"
            if not ended or self.stops > stops:
                break
        return outcome

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        path = os.pathsep.join(sys.path)
        with theirs:
            # Not by multiprocessing's own start methods: forking a process with threads of JAX may
            # hang, and the others run the user's main script again.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "grre_jax.tasks.pool", str(theirs.fileno())],
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
        worker.stops += 1
        if worker.is_running:
            worker.stop()


class EnvironmentPool(InProcessEnvironments):
    """Runs environments in several processes, each of which serves its own trajectories in turn.

    A process that ends under one trajectory is replaced, and the environments of its others are
    made again by their actions, in the time of a step.

    Args:
        pools: of one process each.
    """

    def __init__(self, pools: Sequence[VerifierPool]):
        # A thread for each, so that a trajectory's steps all go to one process.
        self._lanes = [(pool, ThreadPoolExecutor(1, "environments")) for pool in pools]

    def close(self) -> None:
        """Ends the processes; they are started again when needed."""
        for pool, _ in self._lanes:
            pool.close()

    def _ask(self, kind: type, key: tuple[int, ...], *asked: Any) -> Future[Any]:
        pool, thread = self._lanes[hash(key) % len(self._lanes)]

        def answer() -> Any:
            (result,) = pool.answers([asked])
            return result if isinstance(result, Failure) else kind(**result)

        return thread.submit(answer)


def make_judge(task: Any, config: TaskConfig, seed: int) -> InProcess | InProcessEnvironments:
    """Returns the judge of a task's completions, or the runner of its environments.

    Args:
        task: built from `config` and `seed`.
        config: how processes build it, how many they are, and their time limit.
        seed: of the task.
    """
    count = process_count(task, config.verify_processes)
    if is_environment(task):
        if not count:
            return InProcessEnvironments(task)
        return EnvironmentPool([VerifierPool(config, seed, 1) for _ in range(count)])
    return VerifierPool(config, seed, count) if count else InProcess(task, config.verify_timeout)


# ---- the process


def serve(connection: int) -> None:
    """Serves a pool, in a process of its own.

    Args:
        connection: file descriptor of the two-way connection.
    """
    # A signal to a job reaches all its processes, and the run finishes its step before it ends.
    # Handlers, since what the verifier runs would inherit SIG_IGN.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        # Memory that a verifier takes is not to cost the run: where it runs out, this process is
        # the first to be ended.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        # An end of the connection is not seen while a verifier hangs.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    pipe = Connection(connection)
    process = os.getpid()
    with contextlib.suppress(EOFError, ConnectionError):
        respond = guarded(_answer, _responder, pipe.recv_bytes())
        _send(pipe, respond if isinstance(respond, Failure) else {})
        while True:
            job = pipe.recv_bytes()
            signal.alarm(0)  # of the job before
            outcome = guarded(_answer, respond, job)
            if os.getpid() != process:
                os._exit(1)  # a verifier's fork that came back would answer in its parent's place
            _send(pipe, outcome)


def _answer(respond: Callable[..., Any], asked: bytes) -> Any:
    # The pool's own pickles: nothing that a verifier returned is unpickled anywhere.
    return respond(*pickle.loads(asked))


def _responder(config: TaskConfig, seed: int) -> Callable[..., Any]:
    """Builds a task; returns what answers the pool's requests about it."""
    task = config.build(seed)
    return Environments(task) if is_environment(task) else functools.partial(verdict_of, task)


def _send(pipe: Connection, outcome: Any) -> None:
    message = ["", outcome]
    if isinstance(outcome, Failure):
        message = [outcome.kind, outcome.reason]
    # Of a verdict, or what an environment answers, the fields are sent.
    pipe.send_bytes(json.dumps(message, default=vars).encode())


if __name__ == "__main__":
    serve(int(sys.argv[1]))
