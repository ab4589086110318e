"""Joining, with every mistake a user can make, and ending together when a process fails."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from grre_jax.errors import UsageError
from grre_jax.parallel import processes

MEMBER = """
import os, sys
import jax, numpy as np
from jax.experimental import multihost_utils
from grre_jax.errors import UsageError
from grre_jax.parallel import processes

class Agreed(Exception):
    pass

processes.HEARTBEAT_SECONDS, processes.SHUTDOWN_SECONDS = 10, 3
address, count, number, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with processes.joined(address, count, number, agreed=(Agreed,)):
    print("joined", flush=True)
    if what == "both":
        raise UsageError("field x is wrong")
    if what == "agreed":
        raise Agreed("all of us")
    if number == 1:
        raise KeyError("mistake")
    multihost_utils.process_allgather(np.ones(3))
"""


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def members(what):
    """Exit statuses and errors of two processes, which join and then do `what`."""
    address = free_address()
    started = []
    for number in range(2):
        words = map(str, (address, 2, number, what))
        process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, *words],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
    errors = [process.communicate(timeout=2000)[1] for process in started]
    return [process.returncode for process in started], errors


@pytest.mark.distributed
@pytest.mark.parametrize(
    "what, status, last",
    [
        # JAX may end the other one, by an abort.
        ("bug", 1, ["lost another process|another task died", "process 1 failed"]),
        # Processes that fail alike.
        pytest.param("both", 2, ["grre: field x is wrong"] * 2, marks=pytest.mark.slow),
        # What all agree on passes; the status is Python's own.
        ("agreed", 1, ["Agreed: all of us"] * 2),
    ],
)
def test_a_process_that_fails_says_why_and_the_other_ends_too(what, status, last):
    found, errors = members(what)
    assert found[1] == status and found[0] in ((1, -signal.SIGABRT) if what == "bug" else (status,))
    for text, expected in zip(errors, last, strict=True):
        assert re.search(expected, text), text
    assert ("Traceback" in errors[1]) == (what in ("bug", "agreed"))
    assert what != "bug" or "KeyError: 'mistake'" in errors[1]


@pytest.mark.parametrize(
    "arguments",
    [(None, None, 1), ("host:1", 2, 2), ("host:1", 0, 0), ("host", 2, 0)],
    ids=["not all three", "id too high", "no process", "no port"],
)
def test_wrong_arguments_name_the_flags(arguments):
    with pytest.raises(UsageError, match="--coordinator"), processes.joined(*arguments):
        pytest.fail("it joined")


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_that_is_taken(host):
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--coordinator.*{port}"):
            processes._join(f"127.0.0.1:{port}", 2, 0, 1)
