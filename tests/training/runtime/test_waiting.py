"""Waiting sleeps, looks again, says what it waits for, and can be stopped."""

import pytest

from grre_jax.training.runtime import waiting
from grre_jax.training.runtime.waiting import AGAIN, LONGEST_PAUSE, wait_until


@pytest.fixture
def clock(monkeypatch):
    """The pauses that were slept; time passes by them alone."""
    pauses = []
    monkeypatch.setattr(waiting.time, "sleep", pauses.append)
    monkeypatch.setattr(waiting.time, "monotonic", lambda: 100.0 + sum(pauses))
    return pauses


def test_what_is_there_is_not_waited_for(clock):
    said = []
    wait_until(lambda: True, lambda: "nothing", say=said.append)
    assert clock == [] and said == []


def test_it_looks_ever_less_often_and_says_what_it_waits_for(clock):
    said = []
    wait_until(
        lambda: sum(clock) > 2 * AGAIN, lambda: f"version 4, {sum(clock):.0f}", say=said.append
    )
    assert clock[0] < 0.1 and max(clock) == LONGEST_PAUSE and len(clock) < 2.1 * AGAIN + 10
    assert len(said) == 2 and "version 4" in said[0]


def test_it_can_be_stopped_between_two_looks(clock):
    def stop():
        raise KeyError

    with pytest.raises(KeyError):
        wait_until(lambda: False, lambda: "nothing", say=print, between=stop)
    assert clock == []
