import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from grre_jax.reporting.intervals import wilson_interval


@pytest.mark.parametrize(
    "successes, n, low, high",
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, the score interval without
    # continuity correction
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_values(successes, n, low, high):
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10**6), st.data())
def test_the_interval_is_scipys_and_holds_the_share(n, data):
    successes = data.draw(st.integers(0, n))
    low, high = wilson_interval(successes, n)
    expected = binomtest(successes, n).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= low <= successes / n <= high <= 1


def test_without_trials_and_out_of_range():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    for arguments in ((3, 2), (-1, 2), (0, -1)):
        with pytest.raises(ValueError):
            wilson_interval(*arguments)
