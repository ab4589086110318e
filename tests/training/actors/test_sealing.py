"""What is drawn, verified and sealed at the same time, by the order of events."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.training.actors.explorer import MOST_DRAWN, Explorer
from grre_jax.training.actors.supply import Policy, Supply
from grre_jax.training.data.sources import Source


class Told(Explorer):
    """Calls `graph` with "draw" or "verify" and the call's position as each begins."""

    def questions(self, positions):
        return list(positions)

    def _draw(self, policy, call, size):
        self.graph("draw", call.positions[0])
        return call.positions, None

    def _judged(self, call, dtype, positions, samples):
        self.graph("verify", positions[0])
        versions = np.zeros(3, np.int32)
        return [self.judge(p, position=p, policy_version=versions) for p in positions]


@pytest.fixture
def explored(tmp_path, make_group):
    """`explored(count, at)`: samples and seals so many calls of one group each; `at` is called
    with "draw" or "verify" and the call's position as each begins.
    """

    def run(count, at=None):
        explorer = Told(at, SimpleNamespace(), None, None, None, 0, make_group)
        reader = rollouts.read(tmp_path)
        parts = SimpleNamespace(config=SimpleNamespace(cluster=SimpleNamespace(samples=False)))
        here = Supply(parts, explorer, SimpleNamespace(source=Source(reader), rounds=0), None)
        calls = [[position] for position in range(count)]
        try:
            here._sample_calls(Policy(0, SimpleNamespace(dtype=""), {}), calls, 1, lambda: None)
            here._wait()
        finally:
            here.close()
        return [group.position for group in reader]

    return run


def test_an_error_of_a_verifier_ends_the_exploration_and_what_was_sealed_stays(explored):
    def at(event, position):
        if (event, position) == ("verify", 1):
            raise DataError("no verdict")

    with pytest.raises(DataError, match="no verdict"):
        explored(5, at)
    sealed = explored(0)
    assert 0 in sealed and 1 not in sealed


def test_the_sampler_is_at_most_two_calls_ahead_of_verification(explored):
    """Each call is verified only once the second after it is drawn, and the third after it drawn
    only once it is verified.
    """
    begun = [threading.Event() for _ in range(20)]
    verified = set()

    def at(event, position):
        if event == "draw":
            begun[position].set()
            assert {*range(position - MOST_DRAWN)} <= verified
        else:
            assert begun[min(position + MOST_DRAWN, 19)].wait(60)
            verified.add(position)

    assert explored(20, at) == [*range(20)]
