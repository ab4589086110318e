"""Joining, with every mistake a user can make, and ending together when a process fails."""

import ctypes
import os
import signal
import socket
import subprocess
import sys

import jax
import pytest

from grre_jax.cli import entry
from grre_jax.errors import UsageError
from grre_jax.parallel import distributed

MEMBER = """
import os, sys
import jax, numpy as np
from jax.experimental import multihost_utils
from grre_jax.errors import DataError, UsageError
from grre_jax.parallel import distributed

class Agreed(Exception):
    pass

distributed.HEARTBEAT_SECONDS, distributed.SHUTDOWN_SECONDS = 10, 3
address, count, number, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with distributed.joined(address, count, number, timeout=int(sys.argv[5]), agreed=(Agreed,)):
    print("joined", flush=True)
    if what == "both":
        raise UsageError("field x is wrong")
    if what == "agreed":
        raise Agreed("all of us")
    if number == 1:
        raise {"data": DataError("no such file"), "bug": KeyError("mistake")}[what]
    multihost_utils.process_allgather(np.ones(3))
"""


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def members(
    what: str, *, count: int = 2, present: int = 2, timeout: int = 60
) -> tuple[list[int], list[str]]:
    """Exit statuses and errors of processes that join and then do `what`."""
    address = free_address()
    started = []
    for number in range(present):
        words = map(str, (address, count, number, what, timeout))
        command = [sys.executable, "-c", MEMBER, *words]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        started.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    said = [process.communicate(timeout=2000)[1] for process in started]
    return [process.returncode for process in started], said


def test_a_process_that_fails_says_why_and_the_other_ends_too():
    (first, second), (lost, why) = members("data")
    assert (first, second) == (1, 1)
    assert why.splitlines()[-1] == "grre: no such file" and "Traceback" not in why
    last = lost.strip().splitlines()[-1]
    assert (
        last.startswith("grre: process 0 of 2 lost another process of the run")
        and "start all processes again with --resume" in last
    )


def test_a_mistake_in_the_code_is_shown_whole():
    (_, status), (_, why) = members("bug")
    assert status == 1 and "Traceback" in why and "KeyError: 'mistake'" in why
    assert why.splitlines()[-1] == "grre: process 1 failed; the others end with it"


def test_processes_that_fail_alike_all_say_so():
    statuses, said = members("both")
    assert (
        statuses == [2, 2]
        and [text.splitlines()[-1] for text in said] == ["grre: field x is wrong"] * 2
    )


def test_what_all_agree_on_passes():
    statuses, said = members("agreed")
    assert statuses == [1, 1]  # Python's own, for an exception
    assert all(text.strip().splitlines()[-1] == "Agreed: all of us" for text in said), said


def test_a_process_that_never_comes_is_said():
    (status,), (said,) = members("both", present=1, timeout=2)
    assert status == 1
    assert said.splitlines()[-1].startswith(
        "grre: the processes did not find each other. Start all of them within 2 s"
    )


@pytest.mark.parametrize(
    "arguments",
    [(None, None, 1), ("host:1", 2, 2), ("host:1", 0, 0), ("host", 2, 0)],
    ids=["not all three", "id too high", "no process", "no port"],
)
def test_wrong_arguments_name_the_flags(arguments):
    with (
        pytest.raises(UsageError, match="--coordinator, --num-processes, --process-id"),
        distributed.joined(*arguments),
    ):
        pytest.fail("it joined")


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_the_command_line_takes_them(command, capsys):
    words = f"{command} absent --coordinator host:1 --num-processes 2 --process-id 3".split()
    assert entry.main(words) == 2
    assert "--process-id" in capsys.readouterr().err


def test_nobody_at_the_address():
    address = free_address()
    with pytest.raises(
        UsageError, match=f"no coordinator at {address} within 1 s .*: start process 0 on that host"
    ):
        distributed._join(address, 2, 1, 1)


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_that_is_taken(host):
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UsageError,
            match=f"process 0 cannot listen on port {port} .*: choose another in --coordinator",
        ):
            distributed._join(f"127.0.0.1:{port}", 2, 0, 1)


def test_without_a_cluster_a_process_is_alone():
    jax.devices()
    for arguments in ((), (None, 1), (None, 1, 0)):
        with distributed.joined(*arguments):
            assert not jax.distributed.is_initialized()
        with pytest.raises(KeyError), distributed.joined(*arguments):
            raise KeyError  # as it is: nobody waits


def test_the_abort_signal_is_given_back():
    c = ctypes.CDLL(None)
    c.signal.argtypes, c.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p

    def handler():
        found = c.signal(signal.SIGABRT, None)
        c.signal(signal.SIGABRT, found)
        return found

    before = handler()
    with distributed.joined():
        assert handler() == before
    with pytest.raises(UsageError):
        distributed._join(free_address(), 2, 1, 1)
    assert handler() == before
