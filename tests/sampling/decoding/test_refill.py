"""Fewer rows than completions, longer caches, limits, streams: whatever the way, the completions
are the same.
"""

import jax
import numpy as np
import pytest
from flax import nnx

from grre_jax import sampling
from grre_jax.sampling import call as calls
from grre_jax.sampling.decoding import cache
from grre_jax.sampling.decoding.weights import latest

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
        return call(weights, prompts, steps=64, **options)[0].cache_bytes

    long = [list(range(1, 24)) * 44]  # 1,012 tokens in a bucket of 1,024
    assert bytes_held(long, 16) * 6 <= bytes_held(long * 16, 1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_narrow_caches_stay_near(weights, together, dtype):
    """Near the policy's log-probs of what was drawn; the draws may differ once a probability has
    moved.
    """
    got = sample(weights, PROMPTS, cache_dtype=dtype, **OPTIONS)
    alike = (got.tokens == together.tokens).cumprod(-1).astype(bool)
    assert alike.mean() > 0.5
    difference = np.abs(got.behavior_logprobs - together.behavior_logprobs)[alike]
    assert 0 < difference.mean() < 0.02 and difference.max() < 0.3


@pytest.mark.parametrize(
    "before, columns, width", [(0, 128, 64), (48, 64, 16), (64, 64, 64), (24, 16, 40)]
)
def test_keys_in_blocks_are_where_values_are(before, columns, width):
    """Through a prompt, steps round the ring, its growth and its halving; and products with them
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
    for one in (held, held.grown(before), *([] if before else [held.shrunk(4)])):
        keys = np.asarray(one.keys).reshape(3, 2, -1, 8, one.width).swapaxes(3, 4)
        assert (keys.reshape(one.values.shape) == one.values).all()
        expected = np.einsum("nkmd,nkcd->nkmc", q, one.values)
        np.testing.assert_allclose(one.scores(q), expected, atol=1e-5)


def test_an_empty_prompt_begins_with_the_models_first_token(weights):
    begins = weights.model.config.start_id
    options = OPTIONS | {"max_new_tokens": 30}
    same(*(sample(weights, [first, PROMPTS[1]], **options) for first in ([], [begins])))


def test_kept_mass_is_what_truncation_left(weights):
    got = sample(weights, PROMPTS, top_k=3, **OPTIONS)
    live = np.arange(150) < got.lengths[..., None]
    assert (got.kept_mass[live] <= 1 + 1e-5).all() and got.kept_mass[live].min() < 0.9
    np.testing.assert_array_equal(got.kept_mass[~live], 1)


def test_calls_with_one_model_share_its_prepared_weights_until_it_changes(tiny):
    model = tiny()
    first = latest.of(model)
    assert latest.of(model).head is first.head
    model.layers.o_proj[...] = -model.layers.o_proj[...]
    changed = latest.of(model)
    assert changed.layers is not first.layers
    # The same parameters in another model are another policy.
    other = nnx.merge(nnx.split(tiny(query_scale=0.2))[0], nnx.split(model)[1])
    assert latest.of(other).model.config.query_scale == 0.2


@pytest.mark.parametrize("slots", [None, SLOTS])
def test_limits_are_each_completions_own(weights, slots):
    options = OPTIONS | {"eos_ids": ()}
    limits = np.random.default_rng(0).integers(1, 151, (10, 4))
    got = sample(weights, PROMPTS, limits=limits, max_concurrent=slots, **options)
    np.testing.assert_array_equal(got.lengths, limits)
    assert (got.finish_reasons == sampling.FINISH_LENGTH).all()
    free = sample(weights, PROMPTS, **options)
    live = np.arange(150) < limits[..., None]
    np.testing.assert_array_equal(got.tokens, np.where(live, free.tokens, 0))


@pytest.mark.slow
def test_rows_that_idle_beyond_a_window_leave_nothing_behind(tiny):
    """Where prompts wait for a lane, rows idle; with a window short of the prompt they see
    nothing, and what they leave in their caches must be finite.
    """
    windowed = sampling.prepared(tiny(sliding_layers=(True, False), sliding_window=4))
    prompts = [[1 + i, 2, 3] for i in range(20)]
    limits = np.full((20, 8), 6)
    limits[:8] = 1
    limits[:8, 0] = (60, *range(20, 48, 4))  # a straggler a prompt, the first prompt's the last
    options = OPTIONS | {"group_size": 8, "max_new_tokens": 60, "limits": limits, "eos_ids": ()}
    same(*(sample(windowed, prompts, max_concurrent=rows, **options) for rows in (16, None)))
