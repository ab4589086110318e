"""What a thread prepares in advance is what would have been prepared in time."""

import threading

import pytest

from grre_jax.training.data.prefetch import Prefetcher


class Prepare:
    """Notes who prepared which step."""

    def __init__(self, fails=()):
        self.calls = []
        self.fails = fails

    def __call__(self, step):
        self.calls.append((step, threading.current_thread() is threading.main_thread()))
        if step in self.fails:
            raise OSError(f"step {step}")
        return 10 * step


def test_an_error_is_that_of_its_step():
    prepare = Prepare(fails={2})
    with Prefetcher(prepare, lambda step: True) as ahead:
        ahead.begin(2)
        ahead.settle()
        with pytest.raises(OSError, match="step 2"):
            ahead.take(2)
        ahead.begin(2)
        assert ahead.take(3) == 30  # nobody asked for step 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("data")]


def test_what_is_ready_is_prepared_by_the_thread_and_handed_out_for_its_step():
    prepare = Prepare()
    with Prefetcher(prepare, lambda step: step != 2) as ahead:
        for step in range(4):
            assert ahead.take(step) == 10 * step
            ahead.begin(step + 1)
        assert prepare.calls[:4] == [(0, True), (1, False), (2, True), (3, False)]  # each once
        assert ahead.take(6) == 60  # of step 4 was begun
        assert ahead.take(4) == 40  # prepared again: what was begun is forgotten
        ahead.begin(7)
        ahead.begin(8)
        assert ahead.take(7) == 70
        assert ahead.take(8) == 80
    assert [step for step, _ in prepare.calls[4:]] == [4, 6, 4, 7, 8, 7, 8]
