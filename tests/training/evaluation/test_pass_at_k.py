"""The estimators against counting every draw, and the intervals against how often they hold the
truth.
"""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from grre_jax.reporting import wilson_interval
from grre_jax.reporting.intervals import over_questions
from grre_jax.rollouts import Group
from grre_jax.training.evaluation.pass_at_k import (
    majority,
    majority_at_k,
    pass_at_k,
    pass_metrics,
)


@pytest.mark.parametrize("n", [1, 5, 8])
def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_right_one(n):
    for k in range(1, n + 1):
        draws = np.array([*itertools.combinations(range(n), k)])
        counted = [(draws < c).any(1).mean() for c in range(n + 1)]
        shares = [pass_at_k(n, c, k) for c in range(n + 1)]
        np.testing.assert_allclose(shares, counted, atol=1e-15)
    many = [pass_at_k(4096, c, 1024) for c in (0, 1, 4095, 4096)]
    assert many == pytest.approx([0, 0.25, 1, 1], abs=1e-12)


@pytest.mark.parametrize(
    ("answers", "place"),
    [
        (["8", "5", "5", "8"], 0),
        (["5", "8", "8", "5"], 0),
        ([None, "7", None, None], 1),
        ([None, None], None),
    ],
)
def test_majority(answers, place):
    assert majority(answers) == place


def test_majority_at_k_by_hand():
    answers = ["a", "b", "b", None, "b", "a", "c", "c"]
    right = np.array([0, 1, 1, 0, 1, 0, 0, 0], bool)
    # Of 2: a b, b -, b a, c c; of 3: b of a b b and of - b a, two are left over; of 4: b, c.
    shares = [majority_at_k(answers, right, k) for k in (1, 2, 3, 4, 8)]
    assert shares == [3 / 8, 2 / 4, 1, 1 / 2, 1]
    assert majority_at_k([None] * 4, np.ones(4, bool), 2) == 0


class Votes:
    """Answers are the texts' last letters; "?" is none."""

    name = "votes"

    def final_answer(self, completion):
        return None if completion.endswith("?") else completion[-1:]


def group(number, texts, rewards, **fields):
    return Group(group_id=f"g{number}", prompt="q", texts=texts, rewards=rewards, **fields)


def test_by_hand():
    groups = [
        group(0, ["a", "xb", "b", "?"], [0, 1, 1, 0]),
        group(1, ["c", "c", "d", "d"], [1, 1, 0, 0]),
        group(2, ["?"] * 4, [0] * 4),
    ]
    found = pass_metrics(groups, Votes())
    assert found["num_samples"] == 4 and found["left_out"] == {}
    # a b, b -: wrong and right; c c, d d: right and wrong; of all four b, c (two each, c first) and
    # nobody
    for name, means in (
        ("pass_at_k", {"1": 1 / 3, "2": 2 * (5 / 6) / 3, "4": 2 / 3}),
        ("maj_at_k", {"1": 1 / 3, "2": (0.5 + 0.5 + 0) / 3, "4": 2 / 3}),
    ):
        values = {k: estimate["value"] for k, estimate in found[name].items()}
        assert values == pytest.approx(means)
    low, high = wilson_interval(2, 3)
    assert found["maj_at_k"]["4"] == pytest.approx({"value": 2 / 3, "low": low, "high": high})
    twice = found["pass_at_k"]["2"]
    assert 0 <= twice["low"] < twice["value"] < twice["high"] <= 1
    silent = pass_metrics(
        groups, SimpleNamespace(name="silent")
    )  # a task that reads off no answers
    assert "pass_at_k" in silent and silent["left_out"].keys() == {"maj_at_k"}


def test_completions_without_a_verdict_are_left_out():
    """A question counts for the k that it has verdicts for, and no failure is a wrong answer."""
    whole = group(0, ["b", "a"], [1.0, 0.0])
    failed = group(1, ["b", "b"], [1.0, np.nan], extra={"verify_failures": ["", "crash"]})
    lost = group(2, ["a", "a"], [np.nan] * 2, extra={"verify_failures": ["crash"] * 2})
    found = pass_metrics([whole, failed, lost], Votes())
    assert found["pass_at_k"]["1"]["value"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["pass_at_k"]["2"]["value"] == 1
    assert pass_metrics([lost], Votes())["pass_at_k"] == {}


def test_rewards_that_are_not_right_or_wrong():
    def metrics(**components):
        shaped = [
            group(
                number,
                ["a", "b"],
                rewards,
                components={n: x[number] for n, x in components.items()},
            )
            for number, rewards in enumerate(([0.1, 1.3], [0.0, 0.5]))
        ]
        return pass_metrics(shaped, Votes())

    assert metrics().keys() == {"num_samples", "left_out"}
    assert metrics()["left_out"].keys() == {"pass_at_k", "maj_at_k"}
    found = metrics(correct=[[0, 1], [0, 0]])
    assert found["pass_at_k"]["1"]["value"] == 0.25 and found["maj_at_k"]["2"]["value"] == 0


def test_intervals_are_of_questions_not_of_completions():
    """Of very different difficulty, four completions each: one over completions would hold the
    truth far more rarely.
    """
    draw = np.random.default_rng(0)
    estimates = [over_questions(draw.binomial(4, draw.beta(0.3, 0.3, 60)) / 4) for _ in range(200)]
    held = [estimate["low"] <= 0.5 <= estimate["high"] for estimate in estimates]
    assert 0.9 <= np.mean(held) <= 0.985
