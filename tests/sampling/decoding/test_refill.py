"""Fewer rows than completions, longer caches, narrow caches, rows that idle. (That refilled rows
draw the same tokens: test_sampler.)
"""

import jax
import numpy as np
import pytest

from grre_jax import sampling
from grre_jax.sampling import call as calls
from grre_jax.sampling.decoding import cache, slots
from grre_jax.sampling.prompt_batch import make_prompt_batch

from ..calls import sample
from ..test_sampler import ALL_PARTS, check_logprobs

PROMPTS = [np.random.default_rng(i).integers(1, 24, 1 + i % 8).tolist() for i in range(3)]
OPTIONS = {"group_size": 2, "max_new_tokens": 100, "key": jax.random.key(8), "eos_ids": (5,)}


@pytest.fixture(scope="module")
def weights(tiny):
    return sampling.prepared(tiny(**ALL_PARTS))


def test_logprobs_of_refilled_rows_and_grown_caches_are_those_of_the_forward_pass(weights):
    # Two prompts are held at a time: the third takes the place of one whose completions have ended.
    options = OPTIONS | {"group_size": 4, "max_concurrent": 2}
    lengths = sample(weights, PROMPTS, **options).lengths
    # Caches grow, and rows end early.
    assert lengths.max() > calls.FIRST_COLUMNS and lengths.min() < 5
    check_logprobs(weights.model, PROMPTS, **options)


@pytest.mark.parametrize("samples, rows, held", [(1, 1, 2), (1, 8, 10), (4, 2, 2), (16, 8, 2)])
def test_more_prompts_are_held_than_rows_are_decoded(samples, rows, held):
    shape = calls.call_shape(
        shards=1,
        prompts=100,
        samples=samples,
        max_concurrent=rows,
        max_new_tokens=8,
        prompt_tokens=8,
        cache_dtype="float32",
    )
    assert (shape.decode_slots, shape.prompt_slots) == (rows, held)


def test_blocks_of_keys_divide_what_they_hold():
    for tokens, before, width in ((128, 0, 64), (96, 64, 32), (48, 0, 16), (24, 0, 24)):
        assert cache.width_for(tokens, before) == width


def test_what_pads_the_prompts_has_no_row():
    zero = np.zeros((1, 2), np.int32)
    requested = np.array([[2, 0]], np.int32)
    prompts = slots.PromptSlots(zero, zero, requested, zero, zero, zero, np.zeros((1, 2, 2, 2)))
    assert slots.assign_all(prompts, 2).prompt_slot.tolist() == [[0, 0, slots.NONE, slots.NONE]]


def test_a_prompt_is_held_once_for_its_completions(weights):
    def bytes_held(prompts, samples):
        batch = make_prompt_batch(weights.model.config, prompts, samples, 64, jax.random.key(0))
        distribution = sampling.SamplingDistribution.of(sampling.SamplingParams())
        held = jax.tree.leaves(sampling.SamplerCall(weights, batch, distribution)._state)
        return sum(x.nbytes for x in held if x.ndim == 4)

    long = [list(range(1, 24)) * 44]  # 1,012 tokens in a bucket of 1,024
    assert bytes_held(long, 16) * 6 <= bytes_held(long * 16, 1)


@pytest.mark.slow
def test_narrow_caches_stay_near(weights):
    """Near the policy's log-probs of what was drawn; the draws may differ once a probability has
    moved.
    """
    wide, got = (sample(weights, PROMPTS, cache_dtype=x, **OPTIONS) for x in (None, "bfloat16"))
    alike = (got.tokens == wide.tokens).cumprod(-1).astype(bool)
    assert alike.mean() > 0.5
    difference = np.abs(got.behavior_logprobs - wide.behavior_logprobs)[alike]
    assert 0 < difference.mean() < 0.02 and difference.max() < 0.3


@pytest.mark.slow
def test_rows_that_idle_beyond_a_window_leave_nothing_behind(tiny):
    """Where prompts wait for a lane, rows idle; with a window short of the prompt they see
    nothing, and what they leave in their caches must be finite.
    """
    windowed = sampling.prepared(tiny(sliding_layers=(True, False), sliding_window=4))
    prompts = [[1 + i, 2, 3] for i in range(20)]
    options = OPTIONS | {"group_size": 8, "max_new_tokens": 60, "eos_ids": (5, 6, 7)}
    got, expected = (sample(windowed, prompts, max_concurrent=n, **options) for n in (16, None))
    np.testing.assert_array_equal(got.tokens, expected.tokens)
    np.testing.assert_allclose(got.behavior_logprobs, expected.behavior_logprobs, atol=2e-5)
