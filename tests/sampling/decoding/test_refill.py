"""Fewer rows than completions, longer caches, limits, streams: whatever the way, the completions
are the same.
"""

import jax
import numpy as np
import pytest

from grre_jax import sampling
from grre_jax.sampling import call as calls
from grre_jax.sampling.decoding import cache

from ..calls import call, sample

PROMPTS = [np.random.default_rng(i).integers(1, 24, 1 + i % 8).tolist() for i in range(10)]
SLOTS = 8  # wherever the number does not matter, so that tests share their programs
OPTIONS = {"group_size": 4, "max_new_tokens": 150, "key": jax.random.key(1), "eos_ids": (5,)}


@pytest.fixture(scope="module")
def weights(tiny):
    return sampling.prepared(tiny(sliding_layers=(True, False), sliding_window=20))


@pytest.fixture(scope="module")
def together(weights):
    """Every completion in a row of its own from start to end."""
    got = sample(weights, PROMPTS, **OPTIONS)
    assert (
        got.lengths.max() > calls.FIRST_COLUMNS and got.lengths.min() < 5
    )  # caches grow, and rows end early
    return got


def same(got, expected):
    np.testing.assert_array_equal(got.tokens, expected.tokens)
    np.testing.assert_array_equal(got.lengths, expected.lengths)
    np.testing.assert_array_equal(got.finish_reasons, expected.finish_reasons)
    np.testing.assert_allclose(got.behavior_logprobs, expected.behavior_logprobs, atol=2e-5)


@pytest.mark.parametrize(
    "slots",
    [SLOTS, *(pytest.param(slots, marks=pytest.mark.slow) for slots in (1, 7))],
)
def test_refilled_rows_give_the_same_completions(weights, together, slots):
    same(sample(weights, PROMPTS, max_concurrent=slots, **OPTIONS), together)


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


@pytest.mark.parametrize(
    "before, columns, width", [(0, 128, 64), (48, 64, 16), (64, 64, 64), (24, 16, 40)]
)
def test_keys_in_blocks_are_where_values_are(before, columns, width):
    """Through a prompt, steps round the ring, and its growth; and products with them
    are those with the values.
    """
    random = np.random.default_rng(0)

    def tokens(count):
        return random.normal(size=(3, count, 2, 8)).astype(np.float32)

    assert cache.width_for(before + columns, before) == width
    held = cache.Cache.empty(3, 2, 8, before + columns, np.float32, width)
    if before:
        prompt = tokens(before)
        held = held.begin(cache.Cache.of(prompt, prompt, np.float32, min(width, before)))
        assert (np.asarray(held.values)[:, :, :before] == np.moveaxis(prompt, 1, 2)).all()
    for step in range(columns + 5):
        token = tokens(1)
        held = held.write(before + step % columns, token, token)
    q = random.normal(size=(3, 2, 4, 8)).astype(np.float32)
    for one in (held, held.grown(before)):
        keys = np.asarray(one.keys).reshape(3, 2, -1, 8, one.width).swapaxes(3, 4)
        assert (keys.reshape(one.values.shape) == one.values).all()
        expected = np.einsum("nkmd,nkcd->nkmc", q, one.values)
        np.testing.assert_allclose(one.scores(q), expected, atol=1e-5)


def test_an_empty_prompt_begins_with_the_models_first_token(weights):
    begins = weights.model.config.start_id
    options = OPTIONS | {"max_new_tokens": 30}
    same(*(sample(weights, [first, PROMPTS[1]], **options) for first in ([], [begins])))


@pytest.mark.slow
def test_rows_that_idle_beyond_a_window_leave_nothing_behind(tiny):
    """Where prompts wait for a lane, rows idle; with a window short of the prompt they see
    nothing, and what they leave in their caches must be finite.
    """
    windowed = sampling.prepared(tiny(sliding_layers=(True, False), sliding_window=4))
    prompts = [[1 + i, 2, 3] for i in range(20)]
    options = OPTIONS | {"group_size": 8, "max_new_tokens": 60, "eos_ids": (5, 6, 7)}
    same(*(sample(windowed, prompts, max_concurrent=rows, **options) for rows in (16, None)))
