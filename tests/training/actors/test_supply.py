"""What a learner does before a step: sample what is missing, and name what cannot come any more."""

import collections
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import jax.numpy as jnp
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.training.actors.supply import Supply
from grre_jax.training.data.plan import Samples
from grre_jax.training.data.sources import Source
from grre_jax.training.metrics import Stopwatch


def test_a_resumed_run_samples_what_explorers_left_with_every_policy_that_is_there(
    store, make_config, monkeypatch
):
    """Staleness 2, stopped at step 4 before version 3 had sampled the batch of step 5."""
    sampled = []

    def sample(self, policy, calls, size, between):
        sampled.append((policy.weights, {*sum(calls, [])}))

    monkeypatch.setattr(Supply, "_sample_calls", sample)
    config = make_config(store.folder, "--regime.sync_interval 1 --regime.staleness 2")
    for version in range(3):
        store.seal(version, config.schedule.sampled(version, 8))
    checkpoints = SimpleNamespace(
        steps=[0, 2, 3, 4], restore_params=lambda like, version: {"version": jnp.array(version)}
    )
    here = local_supply(store, config, checkpoints)
    here.ensure(4, SimpleNamespace(params={"version": jnp.array(4)}), Mock(), lambda: None)
    expected = [(3, set(range(20, 24))), (4, set(range(24, 28)))]
    assert sampled == [({"version": version}, positions) for version, positions in expected]


# ---- explorers beside the learner


@pytest.fixture
def beside(store, make_config, monkeypatch):
    """A supply with explorers on a cluster, one step ahead of the learner; what they were asked to
    sample, and gates that its versions wait for before they are sealed.
    """
    words = "--regime.sync_interval 1 --regime.sync_offset 1 --cluster.address local"
    config = make_config(store.folder, words)
    gates = collections.defaultdict(threading.Event)
    asked = []

    def sample(self, policy, calls, size, between):
        asked.append((policy.version, policy.weights))
        if policy.version == 2:
            raise DataError("no memory")

        def write():
            assert gates[policy.version].wait(60)
            store.seal(policy.version, sum(calls, []))

        self._open.add(self._sealer.submit(write))

    monkeypatch.setattr(Supply, "_sample_calls", sample)
    checkpoints = SimpleNamespace(steps=[])
    here = local_supply(store, config, checkpoints)

    def ensure(step):
        params = {"version": jnp.array(step)}
        here.ensure(step, SimpleNamespace(params=params), Mock(), lambda: None)

    yield SimpleNamespace(
        here=here, ensure=ensure, asked=asked, gates=gates, checkpoints=checkpoints
    )
    for version in range(8):
        gates[version].set()
    here.close()


def test_a_step_waits_for_its_own_groups_and_not_for_what_its_policy_samples(beside):
    """And is told what failed in the sampler's thread."""
    beside.gates[0].set()
    beside.ensure(0)
    beside.ensure(1)  # of version 0; version 1 samples for step 2
    beside.gates[1].set()
    with pytest.raises(DataError, match="no memory"):
        beside.ensure(2)
        beside.ensure(3)
    assert beside.asked == [(version, {"version": version}) for version in range(3)]


def test_a_checkpoint_waits_for_what_earlier_policies_sample(beside):
    """Unless they have checkpoints: a run that is resumed could not sample it."""
    beside.gates[0].set()
    beside.ensure(0)
    beside.ensure(1)
    beside.here.settle(1)  # version 1 is the one that is saved
    beside.checkpoints.steps = [1]
    beside.here.settle(2)  # version 1 can be sampled with again
    beside.checkpoints.steps = []
    found = []

    def save():
        beside.here.settle(2)
        found.append(beside.here.reader.find(8, 1))

    saver = threading.Thread(target=save)
    saver.start()
    assert not found
    beside.gates[1].set()
    saver.join()
    assert found == [8]


@pytest.fixture
def store(make_config, make_group, tmp_path):
    """A run of eight steps of four groups, synchronised every third step, and
    `seal(version, positions)`.
    """
    (tmp_path / "rollouts").mkdir()
    reader = rollouts.read(tmp_path / "rollouts")

    def seal(version, positions):
        fields = {"rewards": [0, 1, 1], "policy_version": [version] * 3}
        groups = [make_group(position, position=position, **fields) for position in positions]
        rollouts.write(reader.folder, groups, writer="x", policy_version=version)
        reader.refresh()

    config = make_config(tmp_path)
    return SimpleNamespace(reader=reader, config=config, seal=seal, folder=tmp_path)


def local_supply(store, config, checkpoints):
    """A supply whose policies are their versions."""
    parts = SimpleNamespace(config=config, full=lambda params: params, provenance=dict)
    explorer = SimpleNamespace(
        watch=Stopwatch(), policy=lambda weights: weights, close=lambda: None
    )
    own = Samples(Source(store.reader), config.schedule, config.training.steps)
    return Supply(parts, explorer, own, checkpoints)
