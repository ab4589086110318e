"""What is drawn, verified and sealed at the same time, by the order of events."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.training.actors import supply
from grre_jax.training.actors.explorer import MOST_DRAWN, Explorer
from grre_jax.training.actors.supply import Supply
from grre_jax.training.actors.weight_sync import Policy
from grre_jax.training.data.sources import Source

PATIENCE = 60  # seconds until what does not come is given up


class Told(Explorer):
    """Calls `at` with "draw" or "verify" and the call's position as each begins."""

    def questions(self, positions):
        return list(positions)

    def _draw(self, policy, call, size):
        self.graph("draw", call.positions[0])
        return call.positions

    def _judged(self, positions):
        self.graph("verify", positions[0])
        versions = np.zeros(3, np.int32)
        return [self.judge(p, position=p, policy_version=versions) for p in positions]


@pytest.fixture
def explored(tmp_path, make_group):
    """`explored(calls, at=..)`: samples and seals calls of one group each; `at` is called with
    "draw" or "verify" and the call's position as each begins.
    """

    def run(calls, at=lambda *event: None):
        explorer = Told(at, SimpleNamespace(), None, None, None, 0, make_group)
        reader = rollouts.read(tmp_path)
        parts = SimpleNamespace(config=SimpleNamespace(cluster=SimpleNamespace(samples=False)))
        here = Supply(parts, explorer, SimpleNamespace(source=Source(reader), rounds=0), None)
        try:
            here._sample_calls(Policy(0, None, {}), calls, 1, lambda: None)
            here._wait()
        finally:
            here.close()
        return reader

    return run


def test_a_call_is_drawn_while_the_last_is_verified_and_the_one_before_is_sealed(
    explored, monkeypatch
):
    together = threading.Barrier(3, timeout=PATIENCE)  # all three are there, or none goes on
    write = rollouts.write

    def at(event, position):
        if (event, position) in {("draw", 2), ("verify", 1), ("seal", 0)}:
            together.wait()

    def noted(folder, groups, **options):
        at("seal", groups[0].position)
        return write(folder, groups, **options)

    monkeypatch.setattr(supply.rollouts, "write", noted)
    reader = explored([[0], [1], [2]], at=at)
    assert [group.position for group in reader] == [0, 1, 2]
    assert [entry.groups for entry in reader.datasets] == [1, 1, 1]


def test_an_error_of_a_verifier_ends_the_exploration_and_what_was_sealed_stays(explored):
    def at(event, position):
        if (event, position) == ("verify", 1):
            raise DataError("no verdict")

    with pytest.raises(DataError, match="no verdict"):
        explored([[0], [1], [2], [3], [4]], at=at)
    sealed = {group.position for group in explored([])}
    assert 0 in sealed and 1 not in sealed


def test_the_sampler_is_at_most_two_calls_ahead_of_verification(explored):
    """Each call is verified only once the second after it is drawn, and the third after it drawn
    only once it is verified.
    """
    begun, verified = [threading.Event() for _ in range(20)], set()

    def at(event, position):
        if event == "draw":
            begun[position].set()
            assert {*range(position - MOST_DRAWN)} <= verified
        elif event == "verify":
            assert begun[min(position + MOST_DRAWN, 19)].wait(PATIENCE)
            verified.add(position)

    assert len(explored([[p] for p in range(20)], at=at)) == 20
