"""Signals are noted, not obeyed, while a run is between steps; afterwards all is as it was."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from grre_jax.parallel import processes
from grre_jax.training.runtime import stopping
from grre_jax.training.runtime.stopping import Stopped, StopRequest

NOTICED = """
import os, signal, sys
import jax
from grre_jax.parallel import distributed
from grre_jax.training.runtime.stopping import StopRequest

with distributed.joined(sys.argv[1], 2, int(sys.argv[2]), timeout=120):
    if sys.argv[2] == "1":
        os.kill(os.getpid(), signal.SIGTERM)  # before the run listens: the preemption service hears it
    with StopRequest() as stop:
        calls = next(calls for calls in range(1, 100000) if stop.agreed())
    print("stopped", calls, stop.received.name, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_handlers_are_restored(number):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with StopRequest() as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received is number
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
    stopped = stop.stopped("at step 3, which is saved")
    assert isinstance(stopped, Stopped) and stopped.exit_status == 128 + number
    assert str(stopped) == f"stopped by {number.name} at step 3, which is saved"


def test_one_process_agrees_with_itself_at_once():
    with StopRequest() as stop:
        assert stop.agreed() is None and stop.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.agreed() is signal.SIGTERM and stop.agreed() is signal.SIGTERM


def test_another_process_s_signal_becomes_this_one_s():
    stop = StopRequest()
    stop._largest = lambda number: int(signal.SIGINT)  # as several processes find it
    assert stop.received is None and stop.agreed() is signal.SIGINT
    assert stop.stopped("here").exit_status == 128 + signal.SIGINT


def test_a_preemption_notice_is_a_signal_at_the_call_that_the_service_names(monkeypatch):
    monkeypatch.setattr(processes, "many", lambda: True)
    monkeypatch.setattr(
        stopping.multihost_utils, "reached_preemption_sync_point", lambda call: call == 3
    )
    stop = StopRequest()
    stop._largest = lambda number: number
    assert [stop.agreed() for _ in range(3)] == [None, None, signal.SIGTERM]
    assert stop.stopped("at step 3").exit_status == 143


@pytest.mark.slow
def test_two_processes_stop_at_the_same_call_after_a_notice():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", NOTICED, address, str(i)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0]
    last = [text.splitlines()[-1] for text in said]
    assert last[0] == last[1] and last[0].startswith("stopped ") and last[0].endswith(" SIGTERM")
