"""Signals are noted, not obeyed, while a run is between steps; afterwards all is as it was."""

import os
import signal
import threading

import pytest

from grre_jax.training.stopping import Stopped, StopRequest


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


def test_handlers_are_restored_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyError), StopRequest():
        raise KeyError
    assert signal.getsignal(signal.SIGTERM) is before


def test_off_the_main_thread_it_listens_to_nothing():
    seen = []

    def work():
        handler = signal.getsignal(signal.SIGTERM)
        with StopRequest() as stop:
            seen.append((stop.received, signal.getsignal(signal.SIGTERM) is handler))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(None, True)]
