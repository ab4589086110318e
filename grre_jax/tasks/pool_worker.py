"""One process of a verifier pool: builds the task, then judges the completions that it is sent, or
steps environments, one at a time, until the pool lets go of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from grre_jax.tasks.environments.environment import Environments, is_environment
from grre_jax.tasks.judging import Failure, guarded, verdict_of
from grre_jax.tasks.rewards import TaskSpec
from grre_jax.tasks.task import Question

_PR_SET_PDEATHSIG = 1  # of Linux's prctl
# Of an answer: it goes through the connection at once, and the pool never waits for the rest of
# one.
_MOST_BYTES = 32_768


def main(connection: int, lifeline: int, parent: int) -> None:
    """Serves a pool.

    Args:
        connection: file descriptor of the two-way connection.
        lifeline: file descriptor of a pipe that ends when the pool's process does.
        parent: the pool's process, which takes this one with it however it ends.
    """
    _end_with(lifeline, parent)
    pipe = Connection(connection)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(pipe)


def _serve(pipe: Connection) -> None:
    process = os.getpid()
    respond = _responder
    for number in itertools.count():
        asked = pipe.recv_bytes()
        signal.alarm(0)  # of the job before
        outcome = guarded(_answer, respond, asked)
        if os.getpid() != process:
            os._exit(1)  # a verifier's fork that came back would answer in its parent's place
        if isinstance(outcome, Failure):
            _send(pipe, {"n": number, "kind": outcome.kind, "reason": outcome.reason})
        elif number:
            _send(pipe, {"n": number, "answer": outcome})
        else:
            respond = outcome
            _send(pipe, {"n": number, "answer": {}})


def _answer(respond: Callable[..., Any], asked: bytes) -> Any:
    # The pool's own pickles: nothing that a verifier returned is unpickled anywhere.
    return respond(*pickle.loads(asked))


def _responder(spec: TaskSpec) -> Callable[..., dict[str, Any] | Failure]:
    """Builds a task; returns what answers the pool's requests about it."""
    task = spec.build()
    if is_environment(task):
        return Environments(task)

    def judge(question: Question, completion: str) -> dict[str, Any] | Failure:
        outcome = verdict_of(task, question, completion)
        if isinstance(outcome, Failure):
            return outcome
        return {"reward": outcome.reward, "components": outcome.components}

    return judge


def _send(pipe: Connection, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    if len(data) > _MOST_BYTES:
        reason = f"answer: expected at most {_MOST_BYTES:,} bytes, got {len(data):,}"
        data = json.dumps({"n": message["n"], "kind": "invalid", "reason": reason}).encode()
    pipe.send_bytes(data)


def _end_with(lifeline: int, parent: int) -> None:
    """Ends this process, and what the verifier started, with the pool's, kill -9 included."""

    def watch() -> None:
        os.read(lifeline, 1)  # nothing is ever written: it returns when the other end is closed
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":
        # Memory that a verifier takes is not to cost the run: where it runs out, this process is
        # the first to be ended.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        # The thread above cannot run while a verifier hangs in C code.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
