"""A run that got worse is told from one that got better, and from one of which evaluations
cannot tell.
"""

import pytest

from grre_jax.reporting import summarise, wilson_interval
from grre_jax.reporting.outcome import (
    BETTER,
    UNCLEAR,
    WORSE,
    Evaluation,
    difference_interval,
    outcome,
    sentences,
)

N = 512


def shares(*values, n=N):
    return [
        Evaluation(20 * i, value, *wilson_interval(value * n, n)) for i, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    "values, n, change, fell",
    [
        ((0.41, 0.40, 0.27), N, WORSE, True),
        ((0.27, 0.40, 0.41), N, BETTER, False),
        ((0.40, 0.41, 0.41), N, UNCLEAR, False),
        ((0.41, 0.27), 12, UNCLEAR, False),  # too few answers to say
        (
            (0.10, 0.80, 0.50),
            N,
            BETTER,
            True,
        ),  # better than at the start, and half of what it had learned is lost
        ((0.40, 0.44, 0.39), N, UNCLEAR, False),
    ],
)
def test_the_interval_decides(values, n, change, fell):
    found = outcome("accuracy", shares(*values, n=n))
    assert (found.change, found.fell) == (change, fell)
    assert found.low < values[-1] - values[0] < found.high
    assert found.best.value == max(values)


def test_the_difference_interval_is_newcombes():
    """His table II, (a) and (e): 56/70 against 48/80, 9/10 against 3/10; method 10."""
    for (a, m), (b, n), expected in [
        ((48, 80), (56, 70), (0.0524, 0.3339)),
        ((3, 10), (9, 10), (0.1705, 0.8090)),
    ]:
        before, after = (
            Evaluation(0, x / size, *wilson_interval(x, size)) for x, size in ((a, m), (b, n))
        )
        assert difference_interval(before, after) == pytest.approx(expected, abs=5e-5)


def test_the_best_of_many_evaluations_is_high_by_chance():
    """Two of the same value and spread: alone the drawdown is clear, as the best of two hundred
    it is not.
    """
    pair = shares(0.46, 0.39)
    assert outcome("accuracy", pair).fell
    many = [*shares(0.46, *[0.40] * 198, 0.39)]
    assert not outcome("accuracy", many).fell


def test_without_two_evaluations_or_their_intervals_there_is_none():
    unknown = float("nan")
    assert outcome("accuracy", shares(0.4)) is None
    evaluations = [Evaluation(step, 0.4, unknown, unknown) for step in (0, 1)]
    assert outcome("accuracy", evaluations) is None


def test_the_sentences_hold_the_change_the_fall_and_greedy_accuracy():
    evaluations = shares(0.41, 0.41, 0.27)
    change, fall = sentences(outcome("accuracy", evaluations))
    assert change.startswith("WORSE")
    assert "41.0% at step 0 to 27.0% at step 40 (-14.0 points" in change
    assert "-19.7 points to -8.2 points" in change
    assert "41.0% at step 0" in fall
    (change,) = sentences(outcome("accuracy", shares(0.2, 0.4), shares(1.0, 0.9)))
    assert "greedy accuracy from 100.0% to 90.0%" in change


def test_a_run_without_an_accuracy_is_judged_by_its_reward():
    rows = [
        {"step": step, "kind": "eval", "reward": value, "reward_low": low, "reward_high": high}
        for step, value, low, high in ((0, -0.5, -0.6, -0.4), (10, 0.25, 0.15, 0.35))
    ]
    comparison = summarise("run", "", {"eval": rows}).outcome
    assert (comparison.measure, comparison.change) == ("reward", BETTER)
    assert "%" not in sentences(comparison)[0].replace("95%", "")
