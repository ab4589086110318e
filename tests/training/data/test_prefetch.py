"""What a thread prepares in advance is what would have been prepared in time."""

import threading

import pytest

from grre_jax.training.data.batches import Prefetcher


def test_what_is_ready_is_prepared_by_the_thread_and_handed_out_for_its_step():
    """An error too."""
    calls = []

    def prepare(step):
        calls.append((step, threading.current_thread() is threading.main_thread()))
        if step == 5:
            raise OSError("step 5")
        return 10 * step

    with Prefetcher(prepare, lambda step: step != 2) as ahead:
        for step in range(4):
            assert ahead.take(step) == 10 * step
            ahead.begin(step + 1)
        assert calls[:4] == [(0, True), (1, False), (2, True), (3, False)]  # each once
        assert ahead.take(6) == 60  # of step 4 was begun
        ahead.begin(5)
        with pytest.raises(OSError, match="step 5"):
            ahead.take(5)
        ahead.begin(5)
        assert ahead.take(7) == 70  # step 5 is not taken
        ahead.begin(8)
        ahead.begin(9)
        assert ahead.take(8) == 80  # prepared again: what was begun is forgotten
    assert [step for step, _ in calls[4:]] == [4, 6, 5, 5, 7, 8, 9, 8]
