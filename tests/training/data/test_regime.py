"""Which policy samples which batch: tables by hand, and the two views of it agree for any
regime.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grre_jax.training.data.regime import Regime

TABLES = {
    # sync_interval, sync_offset, offline, staleness, reuse -> the version that samples the batch of
    # step 0, 1, 2, ...
    (1, 0, False): [0, 1, 2, 3, 4, 5],
    (20, 0, False): [0] * 20 + [20] * 20 + [40] * 3,
    (1, 10, False): [0] * 11 + [1, 2, 3, 4, 5],
    (4, 3, False): [0] * 7 + [4] * 4 + [8] * 4 + [12],
    (1, 0, True): [0] * 30,
    (1, 0, False, 3): [0, 0, 0, 0, 1, 2, 3, 4],
    (1, 0, False, 0, 3): [0, 0, 0, 3, 3, 3, 6, 6],
    (2, 0, False, 0, 3): [0, 0, 0, 2, 2, 2, 6, 6, 6, 8],
    (1, 0, False, 2, 2): [0, 0, 0, 0, 2, 2, 4, 4, 6],
    (1, 0, True, 0, 4): [0] * 9,
}


@pytest.mark.parametrize("fields, versions", TABLES.items())
def test_versions(fields, versions):
    regime = Regime(*fields)
    steps = range(len(versions))
    assert [regime.version(s) for s in steps] == versions
    assert [regime.age(s) for s in steps] == [s - v for s, v in zip(steps, versions, strict=True)]


kinds = {"sync_interval": st.integers(1, 30), "sync_offset": st.integers(0, 40)}
reuse = st.integers(1, 6)
regimes = st.one_of(
    st.builds(Regime, offline=st.just(True), reuse=reuse),
    st.builds(Regime, **kinds, reuse=reuse),
    st.builds(Regime, staleness=st.integers(0, 40), reuse=reuse),
)


@given(regimes, st.integers(0, 120))
def test_every_batch_is_sampled_once_by_an_earlier_policy(regime, steps):
    sampled = []
    for version in range(steps + 1):
        batches = regime.batches(version, steps)
        sampled += batches
        for step in batches:
            assert regime.version(step) == version <= step
    # Versions sample batches in order, each once: data of a later batch is never older than that of
    # an earlier one.
    assert sampled == list(range(0, steps, regime.reuse))


@given(regimes, st.integers(0, 150))
def test_a_batch_is_trained_on_for_as_many_steps_as_it_is_reused(regime, steps):
    first = steps * regime.reuse
    uses = range(first, first + regime.reuse)
    assert {regime.batch(step) for step in uses} == {steps} and regime.batch(
        first + regime.reuse
    ) == steps + 1
    assert len({regime.version(step) for step in uses}) == 1
    assert [regime.age(step) - regime.age(first) for step in uses] == list(range(regime.reuse))


@given(regimes, st.integers(0, 60), st.integers(0, 60))
def test_a_longer_run_only_adds_batches(regime, steps, more):
    for version in range(steps + 1):
        short, long = regime.batches(version, steps), regime.batches(version, steps + more)
        assert list(long)[: len(short)] == list(short)


@given(regimes, st.integers(0, 400))
def test_the_oldest_batch_of_a_run(regime, steps):
    assert regime.oldest(steps) == max((regime.age(step) for step in range(steps)), default=0)


def test_on_policy_is_the_default_alone():
    assert Regime().on_policy
    assert not any(
        Regime(**{name: 2}).on_policy
        for name in ("sync_interval", "sync_offset", "staleness", "reuse")
    )
    assert not Regime(offline=True).on_policy and not Regime(replay_ratio=0.1).on_policy


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"sync_interval": 0}, "sync_interval"),
        ({"offline": True, "sync_offset": 1}, "offline"),
        ({"staleness": 2, "sync_interval": 4}, "staleness"),
        ({"reuse": 0}, "reuse"),
        ({"replay_ratio": float("nan")}, "replay_ratio"),
        ({"replay_window": 3}, "replay_window"),
    ],
)
def test_domain(fields, field):
    with pytest.raises(ValueError, match=field):
        Regime(**fields)


@pytest.mark.parametrize(
    "regime, step, expected",
    [
        (Regime(), 5, range(5, 6)),
        (Regime(sync_interval=3), 0, range(0, 1)),
        (Regime(sync_interval=3), 5, range(3, 6)),
        (Regime(staleness=4), 7, range(3, 8)),
        (Regime(sync_offset=2), 1, range(0, 2)),
        (Regime(offline=True), 6, range(0, 7)),
        (
            Regime(reuse=2),
            5,
            range(4, 5),
        ),  # the batch of steps 4 and 5: at most one update old in the second
        (Regime(reuse=9), 5, range(0, 1)),  # the run of eight steps ends within its first batch
        (Regime(staleness=1, reuse=6), 7, range(2, 7)),  # and here within its second
    ],
)
def test_no_version_is_allowed_that_would_get_older_than_the_regime_lets_it(regime, step, expected):
    assert regime.window(step, 8) == expected
    last = min(step // regime.reuse * regime.reuse + regime.reuse, 8) - 1
    assert all(last - version <= regime.oldest(8) for version in regime.window(step, 8))
