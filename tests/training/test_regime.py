"""Which policy samples which batch: tables by hand, and the two views of it agree for any regime."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grre_jax.training.regime import Regime

TABLES = {
    # sync_interval, sync_offset, offline -> the version that samples batch 0, 1, 2, ...
    (1, 0, False): [0, 1, 2, 3, 4, 5],
    (20, 0, False): [0] * 20 + [20] * 20 + [40] * 3,
    (1, 10, False): [0] * 11 + [1, 2, 3, 4, 5],
    (4, 3, False): [0] * 7 + [4] * 4 + [8] * 4 + [12],
    (1, 0, True): [0] * 30,
}


@pytest.mark.parametrize("fields, versions", TABLES.items())
def test_versions(fields, versions):
    regime = Regime(*fields)
    steps = range(len(versions))
    assert [regime.version(s) for s in steps] == versions
    assert [regime.staleness(s) for s in steps] == [s - v for s, v in zip(steps, versions, strict=True)]
    for version in range(len(versions) + 5):
        assert list(regime.batches(version, len(versions))) == [s for s in steps if versions[s] == version]


def test_staleness_of_the_regimes_in_words():
    assert {Regime().staleness(s) for s in range(50)} == {0}
    assert [Regime(sync_interval=4).staleness(s) for s in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert {Regime(sync_offset=10).staleness(s) for s in range(10, 50)} == {10}
    assert max(Regime(sync_interval=4, sync_offset=3).staleness(s) for s in range(100)) == 6
    assert Regime(offline=True).staleness(99) == 99


regimes = st.one_of(st.just(Regime(offline=True)), st.builds(Regime, st.integers(1, 30), st.integers(0, 40)))


@given(regimes, st.integers(0, 120))
def test_every_batch_is_sampled_once_by_an_earlier_policy(regime, steps):
    sampled = []
    for version in range(steps + 1):
        batches = regime.batches(version, steps)
        sampled += batches
        for step in batches:
            assert regime.version(step) == version <= step
    # Versions sample batches in order, each once: data of a later batch is never older than that of an earlier one.
    assert sampled == list(range(steps))


@given(regimes, st.integers(0, 60), st.integers(0, 60))
def test_a_longer_run_only_adds_batches(regime, steps, more):
    for version in range(steps + 1):
        short, long = regime.batches(version, steps), regime.batches(version, steps + more)
        assert list(long)[: len(short)] == list(short)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"sync_interval": 0}, "sync_interval must be at least 1, got 0"),
        ({"sync_offset": -1}, "sync_offset must be at least 0, got -1"),
        ({"offline": True, "sync_interval": 2}, "offline=True never refreshes the sampler"),
        ({"offline": True, "sync_offset": 1}, "offline=True never refreshes the sampler"),
    ],
)
def test_domain(fields, message):
    with pytest.raises(ValueError, match=message):
        Regime(**fields)
