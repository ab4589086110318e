import pytest
from hypothesis import given, strategies as st

from grre_jax.reporting.intervals import wilson_interval


@given(st.integers(1, 10**6), st.data())
def test_the_interval_is_scipys_and_holds_the_share(n, data):
    from scipy.stats import binomtest  # slow to import: here for one process of the suite alone

    successes = data.draw(st.integers(0, n))
    low, high = wilson_interval(successes, n)
    expected = binomtest(successes, n).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= low <= successes / n <= high <= 1


def test_without_trials_nothing_is_known():
    assert wilson_interval(0, 0) == (0.0, 1.0)
