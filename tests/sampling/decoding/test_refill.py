"""Fewer rows than completions, longer caches, limits, streams: whatever the way, the completions
are the same.
"""

import jax
import numpy as np
import pytest

from grre_jax import sampling
from grre_jax.sampling import call as calls

from ..calls import call, sample
from ..test_sampler import ALL_PARTS, check_logprobs

PROMPTS = [np.random.default_rng(i).integers(1, 24, 1 + i % 8).tolist() for i in range(3)]
OPTIONS = {"group_size": 2, "max_new_tokens": 100, "key": jax.random.key(1), "eos_ids": (5,)}


@pytest.fixture(scope="module")
def weights(tiny):
    return sampling.prepared(tiny(**ALL_PARTS))


@pytest.fixture(scope="module")
def together(weights):
    """Every completion in a row of its own from start to end."""
    got = sample(weights, PROMPTS, **OPTIONS)
    assert (
        got.lengths.max() > calls.FIRST_COLUMNS and got.lengths.min() < 5
    )  # caches grow, and rows end early
    return got


def test_logprobs_of_grown_caches_are_those_of_the_forward_pass(weights):
    check_logprobs(weights.model, PROMPTS, **OPTIONS)


def same(got, expected):
    np.testing.assert_array_equal(got.tokens, expected.tokens)
    np.testing.assert_array_equal(got.lengths, expected.lengths)
    np.testing.assert_array_equal(got.finish_reasons, expected.finish_reasons)
    np.testing.assert_allclose(got.behavior_logprobs, expected.behavior_logprobs, atol=2e-5)


def test_refilled_rows_give_the_same_completions(weights, together):
    same(sample(weights, PROMPTS, max_concurrent=4, **OPTIONS), together)


def test_a_prompt_is_held_once_for_its_completions(weights):
    def bytes_held(prompts, samples):
        options = OPTIONS | {"group_size": samples, "max_new_tokens": 64}
        held = jax.tree.leaves(call(weights, prompts, **options)._state)
        return sum(x.nbytes for x in held if x.ndim == 4)

    long = [list(range(1, 24)) * 44]  # 1,012 tokens in a bucket of 1,024
    assert bytes_held(long, 16) * 6 <= bytes_held(long * 16, 1)


@pytest.mark.slow
def test_narrow_caches_stay_near(weights, together):
    """Near the policy's log-probs of what was drawn; the draws may differ once a probability has
    moved.
    """
    got = sample(weights, PROMPTS, cache_dtype="bfloat16", **OPTIONS)
    alike = (got.tokens == together.tokens).cumprod(-1).astype(bool)
    assert alike.mean() > 0.5
    difference = np.abs(got.behavior_logprobs - together.behavior_logprobs)[alike]
    assert 0 < difference.mean() < 0.02 and difference.max() < 0.3


@pytest.mark.slow
def test_rows_that_idle_beyond_a_window_leave_nothing_behind(tiny):
    """Where prompts wait for a lane, rows idle; with a window short of the prompt they see
    nothing, and what they leave in their caches must be finite.
    """
    windowed = sampling.prepared(tiny(sliding_layers=(True, False), sliding_window=4))
    prompts = [[1 + i, 2, 3] for i in range(20)]
    options = OPTIONS | {"group_size": 8, "max_new_tokens": 60, "eos_ids": (5, 6, 7)}
    same(*(sample(windowed, prompts, max_concurrent=rows, **options) for rows in (16, None)))
