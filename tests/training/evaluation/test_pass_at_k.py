"""The estimators against counting every draw and by hand."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from grre_jax.reporting import wilson_interval
from grre_jax.training.evaluation import majority_at_k, pass_at_k, pass_metrics

from ...groups import text_group


@pytest.mark.parametrize("n", [1, 5, 8])
def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_right_one(n):
    for k in range(1, n + 1):
        draws = np.array([*itertools.combinations(range(n), k)])
        counted = [(draws < c).any(1).mean() for c in range(n + 1)]
        shares = [pass_at_k(n, c, k) for c in range(n + 1)]
        np.testing.assert_allclose(shares, counted, atol=1e-15)
    many = [pass_at_k(4096, c, 1024) for c in (0, 1, 4095, 4096)]
    assert many == pytest.approx([0, 0.25, 1, 1], abs=1e-12)


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


def means(groups):
    found = pass_metrics(groups, Votes())
    return [
        {k: estimate["value"] for k, estimate in found.get(name, {}).items()}
        for name in ("pass_at_k", "maj_at_k")
    ]


def test_by_hand():
    groups = [
        text_group(0, ["a", "xb", "b", "?"], [0, 1, 1, 0]),
        text_group(1, ["c", "c", "d", "d"], [1, 1, 0, 0]),
        text_group(2, ["?"] * 4, [0] * 4),
    ]
    # a b, b -: wrong and right; c c, d d: right and wrong; of all four b, c (two each, c first) and
    # nobody
    passed, majority = means(groups)
    assert passed == pytest.approx({"1": 1 / 3, "2": 2 * (5 / 6) / 3, "4": 2 / 3})
    assert majority == pytest.approx({"1": 1 / 3, "2": (0.5 + 0.5 + 0) / 3, "4": 2 / 3})
    found = pass_metrics(groups, SimpleNamespace(name="silent"))  # reads off no answers
    assert found["num_samples"] == 4 and "maj_at_k" not in found
    low, high = wilson_interval(2, 3)
    assert found["pass_at_k"]["4"] == pytest.approx({"value": 2 / 3, "low": low, "high": high})
    twice = found["pass_at_k"]["2"]
    assert 0 <= twice["low"] < twice["value"] < twice["high"] <= 1


def test_completions_without_a_verdict_are_left_out():
    """A question counts for the k that it has verdicts for, and no failure is a wrong answer."""
    whole = text_group(0, ["b", "a"], [1.0, 0.0])
    failed = text_group(1, ["b", "b"], [1.0, np.nan], extra={"verify_failures": ["", "crash"]})
    lost = text_group(2, ["a", "a"], [np.nan] * 2, extra={"verify_failures": ["crash"] * 2})
    assert means([whole, failed, lost])[0] == pytest.approx({"1": (1 / 2 + 1) / 2, "2": 1})
    assert means([lost])[0] == {}


def test_rewards_that_are_not_right_or_wrong_need_a_component_that_is():
    rewards = ([0.1, 1.3], [0.0, 0.5])
    shaped = [text_group(n, ["a", "b"], row) for n, row in enumerate(rewards)]
    assert means(shaped) == [{}, {}]
    for group, correct in zip(shaped, ([0, 1], [0, 0]), strict=True):
        group.components = {"correct": np.array(correct, np.float32)}
    assert means(shaped) == [{"1": 0.25, "2": 0.5}, {"1": 0.25, "2": 0}]
