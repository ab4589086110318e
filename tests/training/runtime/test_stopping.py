"""Signals are noted, not obeyed, while a run is between steps; afterwards all is as it was."""

import os
import signal

import pytest

from grre_jax.parallel import processes
from grre_jax.training import stopping
from grre_jax.training.stopping import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_handlers_are_restored(number):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with StopRequest() as stop:
        assert stop.agreed() is None
        os.kill(os.getpid(), number)
        assert stop.agreed() is number
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
    assert stop.stopped("at step 3, which is saved").exit_status == 128 + number


def test_a_preemption_notice_is_a_signal_at_the_call_that_the_service_names(monkeypatch):
    monkeypatch.setattr(processes, "many", lambda: True)
    monkeypatch.setattr(
        stopping.multihost_utils, "reached_preemption_sync_point", lambda call: call == 3
    )
    stop = StopRequest()
    stop._largest = lambda number: number
    assert [stop.agreed() for _ in range(3)] == [None, None, signal.SIGTERM]
