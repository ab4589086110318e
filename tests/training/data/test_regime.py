"""Which policy samples which batch: tables by hand, and the two views of it agree for any
regime.
"""

import pytest
from hypothesis import given, strategies as st

from grre_jax.training.data.plan import Regime

TABLES = {
    # sync_interval, sync_offset, offline, staleness, reuse -> the version that samples the batch of
    # step 0, 1, 2, ...
    (1, 0, False): range(6),
    (4, 3, False): [0] * 7 + [4] * 4 + [8] * 4 + [12],
    (1, 0, True): [0] * 30,
    (1, 0, False, 3): [0, 0, 0, 0, 1, 2, 3, 4],
    (2, 0, False, 0, 3): [0, 0, 0, 2, 2, 2, 6, 6, 6, 8],
    (1, 0, False, 2, 2): [0, 0, 0, 0, 2, 2, 4, 4, 6],
}


@pytest.mark.parametrize("fields, versions", TABLES.items())
def test_versions(fields, versions):
    regime = Regime(*fields)
    assert [regime.version(step) for step in range(len(versions))] == [*versions]


kinds = {"sync_interval": st.integers(1, 30), "sync_offset": st.integers(0, 40)}
reuse = st.integers(1, 6)
regimes = st.one_of(
    st.builds(Regime, offline=st.just(True), reuse=reuse),
    st.builds(Regime, **kinds, reuse=reuse),
    st.builds(Regime, staleness=st.integers(0, 40), reuse=reuse),
)


@given(regimes, st.integers(0, 60), st.integers(1, 60))
def test_a_step_may_take_every_version_that_stays_as_young_as_the_regime_lets_it(
    regime, step, more
):
    steps = step + more
    first = step // regime.reuse * regime.reuse
    last = min(first + regime.reuse, steps) - 1  # the run may end within the batch
    window = [version for version in range(first + 1) if last - version <= regime.oldest(steps)]
    assert list(regime.window(step, steps)) == window


@given(regimes, st.integers(0, 120))
def test_every_batch_is_sampled_once_by_an_earlier_policy(regime, steps):
    sampled = []
    for version in range(steps + 1):
        batches = regime.batches(version, steps)
        sampled += batches
        assert all(regime.version(step) == version <= step for step in batches)
    # Versions sample batches in order, each once: data of a later batch is never older than that of
    # an earlier one.
    assert sampled == list(range(0, steps, regime.reuse))
    ages = [step - regime.version(step) for step in range(steps)]
    assert regime.oldest(steps) == max(ages, default=0)
