"""One process of a verifier pool: builds the task, then judges the completions that it is sent, or
steps environments, one at a time, until the pool lets go of it.
"""

import contextlib
import ctypes
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from grre_jax.tasks.config import TaskConfig
from grre_jax.tasks.environments.environment import Environments, is_environment
from grre_jax.tasks.judging import Failure, guarded, verdict_of
from grre_jax.tasks.task import Question

_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def main(connection: int) -> None:
    """Serves a pool.

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
    with contextlib.suppress(EOFError, ConnectionError):
        _serve(pipe)


def _serve(pipe: Connection) -> None:
    process = os.getpid()
    respond = guarded(_answer, _responder, pipe.recv_bytes())
    _send(pipe, respond if isinstance(respond, Failure) else {})
    while True:
        asked = pipe.recv_bytes()
        signal.alarm(0)  # of the job before
        outcome = guarded(_answer, respond, asked)
        if os.getpid() != process:
            os._exit(1)  # a verifier's fork that came back would answer in its parent's place
        _send(pipe, outcome)


def _answer(respond: Callable[..., Any], asked: bytes) -> Any:
    # The pool's own pickles: nothing that a verifier returned is unpickled anywhere.
    return respond(*pickle.loads(asked))


def _responder(config: TaskConfig, seed: int) -> Callable[..., dict[str, Any] | Failure]:
    """Builds a task; returns what answers the pool's requests about it."""
    task = config.build(seed)
    if is_environment(task):
        return Environments(task)

    def judge(question: Question, completion: str) -> dict[str, Any] | Failure:
        outcome = verdict_of(task, question, completion)
        if isinstance(outcome, Failure):
            return outcome
        return {"reward": outcome.reward, "components": outcome.components}

    return judge


def _send(pipe: Connection, outcome: dict[str, Any] | Failure) -> None:
    message = ["", outcome]
    if isinstance(outcome, Failure):
        message = [outcome.kind, outcome.reason]
    pipe.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
