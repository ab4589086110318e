"""What is drawn, verified and sealed at the same time, by the order of events."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.training.actors import exploration
from grre_jax.training.actors.exploration import MOST_DRAWN, Backlog, begin
from grre_jax.training.runtime.stopwatch import Stopwatch

PATIENCE = 60  # seconds until what does not come is given up


def explore(*arguments, **options):
    """Samples calls and seals them; returns the number of groups that were sealed."""
    with Backlog() as backlog:
        sealed = begin(*arguments, backlog=backlog, **options)
        return sum(groups.result() for groups in sealed)


@pytest.fixture
def explored(tmp_path, make_group):
    """`explored(calls, run=explore, at=.., **options)`: samples calls of one group each; `at` is
    called with "draw", "verify" or "seal" and the call's position as each begins.
    """

    def run(calls, run=explore, at=lambda *event: None, **options):
        def draw(params, prepared, size, version):
            for _, positions in prepared:
                at("draw", positions[0])
                yield positions

        def judged(positions):
            at("verify", positions[0])
            versions = np.zeros(3, np.int32)
            return [make_group(p, position=p, policy_version=versions) for p in positions]

        explorer = SimpleNamespace(questions=list, draw=draw, judged=judged, watch=Stopwatch())
        reader = rollouts.read(tmp_path)
        options = {"size": 1, "policy_version": 0, "metadata": {}} | options
        found = run(explorer, {}, reader=reader, calls=calls, **options)
        return found, reader

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

    monkeypatch.setattr(exploration.rollouts, "write", noted)
    count, reader = explored([[0], [1], [2]], at=at, each=True)
    assert count == 3 and [group.position for group in reader] == [0, 1, 2]
    assert [entry.groups for entry in reader.datasets] == [1, 1, 1]


def test_an_error_of_a_verifier_ends_the_exploration_and_what_was_sealed_stays(explored):
    def at(event, position):
        if (event, position) == ("verify", 1):
            raise DataError("no verdict")

    with pytest.raises(DataError, match="no verdict"):
        explored([[0], [1], [2], [3], [4]], at=at, each=True)
    sealed = {group.position for group in explored([])[1]}
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

    assert explored([[p] for p in range(20)], at=at)[0] == 20
