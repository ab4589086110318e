"""What a thread prepares in advance is what would have been prepared in time."""

import threading

import pytest

from grre_jax.training.actors.supply import LocalSupply
from grre_jax.training.data.prefetch import Prefetcher
from grre_jax.training.learner import Learner
from grre_jax.training.runtime.stopping import StopRequest
from grre_jax.training.runtime.stopwatch import Stopwatch


class Prepare:
    """Notes who prepared which step."""

    def __init__(self, fails=()):
        self.calls, self.fails, self.gate = [], set(fails), threading.Event()
        self.gate.set()

    def __call__(self, step):
        assert self.gate.wait(10)
        self.calls.append((step, threading.current_thread() is threading.main_thread()))
        if step in self.fails:
            raise OSError(f"step {step}")
        return 10 * step


def test_steps_that_are_ready_are_prepared_by_the_thread():
    prepare = Prepare()
    with Prefetcher(prepare, lambda step: step % 2 == 1) as ahead:
        for step in range(4):
            assert ahead.take(step) == 10 * step
            ahead.begin(step + 1)
    assert prepare.calls == [(0, True), (1, False), (2, True), (3, False)]  # each once


def test_what_was_prepared_of_another_step_is_not_handed_out():
    prepare = Prepare()
    with Prefetcher(prepare, lambda step: True) as ahead:
        ahead.begin(3)
        assert ahead.take(5) == 50
        assert ahead.take(3) == 30  # prepared again: what was begun is forgotten
        ahead.begin(6)
        ahead.begin(7)
        assert (ahead.take(6), ahead.take(7)) == (60, 70)
    assert [step for step, _ in prepare.calls] == [3, 5, 3, 6, 7, 6, 7]


def test_an_error_is_that_of_its_step():
    prepare = Prepare(fails={2})
    with Prefetcher(prepare, lambda step: True) as ahead:
        ahead.begin(2)
        ahead.settle()
        with pytest.raises(OSError, match="step 2"):
            ahead.take(2)
        ahead.begin(2)
        assert ahead.take(3) == 30  # nobody asked for step 2
    with pytest.raises(KeyError), Prefetcher(prepare, lambda step: True) as ahead:
        ahead.begin(1)
        raise KeyError
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("data")]


def test_a_step_is_packed_while_later_calls_are_sampled():
    """Once its groups are sealed: neither the sampler nor the packing goes on before the other has
    begun.
    """
    packing, sampled, sealed = threading.Event(), threading.Event(), []

    class Sampling(LocalSupply):
        def __init__(self):
            pass

        def ensure(self, step, state, bar, between):
            between()
            sealed.append(step)
            between()
            assert packing.wait(60)
            sampled.set()

    def pack(step):
        packing.set()
        assert sampled.wait(60)
        return 10 * step

    learner = object.__new__(Learner)
    learner.supply, learner.stop, learner.watch = Sampling(), StopRequest(), Stopwatch()
    with Prefetcher(pack, lambda step: step in sealed) as ahead:
        assert learner._data_of(3, None, ahead, None, None) == 30
