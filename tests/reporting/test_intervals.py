import pytest
from hypothesis import given, strategies as st
from scipy.stats import binomtest

from grre_jax.reporting.intervals import (
    Evaluation,
    difference_interval,
    outcome,
    wilson_interval,
)


def shares(*values, n=512):
    return [
        Evaluation(20 * i, value, *wilson_interval(value * n, n)) for i, value in enumerate(values)
    ]


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


@pytest.mark.parametrize(
    "a, m, b, n, expected",
    [(48, 80, 56, 70, (0.0524, 0.3339)), (3, 10, 9, 10, (0.1705, 0.8090))],
)
def test_the_difference_interval_is_newcombes(a, m, b, n, expected):
    """His table II, (a) and (e): 56/70 against 48/80, 9/10 against 3/10; method 10."""
    before, after = (Evaluation(0, x / k, *wilson_interval(x, k)) for x, k in ((a, m), (b, n)))
    assert difference_interval(before, after) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    "values, n, change",
    [
        ((0.41, 0.40, 0.27), 512, "WORSE"),
        ((0.27, 0.40, 0.41), 512, "better"),
        ((0.40, 0.41, 0.41), 512, "no clear change"),
        ((0.41, 0.27), 12, "no clear change"),
    ],
)
def test_the_interval_decides(values, n, change):
    sentence = outcome("accuracy", shares(*values, n=n))
    assert sentence.startswith(f"{change}:")
    assert f"{values[0]:.1%}" in sentence and f"{values[-1]:.1%}" in sentence
